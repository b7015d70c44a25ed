"""A local job that Python code started, in its own thread."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import ExitStack
from typing import final

from elasticdl.cli.jobs.local_launch import LocalRun
from elasticdl.cli.jobs.watch import timed_out
from elasticdl.errors import ElasticDLError, PermanentError
from elasticdl.jobdir.outcome import Outcome

START_S = 60.0
"""Time limit for a master's first answer; a second or two unless the machine is very busy."""


@final
class BackgroundRun:
    """A `HandledRun`. Thread-safe.

    The thread starts and owns the job's processes. An exiting interpreter waits for the job. A
    killed interpreter takes every process of the job with it.
    """

    def __init__(self, run: LocalRun, claim: ExitStack) -> None:
        """Start the thread. It closes `claim`, which locks the job's directory, at the end."""
        self._run, self._claim = run, claim
        self._name = run.job.name
        self._pid = os.getpid()
        self._outcome: Outcome | None = None
        self._problem: BaseException | None = None
        # Wait for this event, not the thread: in Python 3.11, a `join` that Ctrl-C interrupts marks
        # the thread as ended.
        self._over = threading.Event()
        threading.Thread(target=self._work, name=f"job {self._name}", daemon=False).start()

    @property
    def running(self) -> bool:
        return not self._over.is_set()

    @property
    def state(self) -> str:
        if os.getpid() != self._pid:
            return f"of process {self._pid}"
        return "runs" if self.running else "has ended"

    def wait_for_begin(self) -> None:
        """Block until the preflight has passed. Ctrl-C ends the job.

        Raises the problem if the job did not begin.
        """
        try:
            self._run.begun.wait()
        except BaseException:
            self.stop("Ctrl-C")
            self._over.wait()
            raise
        if self._run.refusal is not None:
            self._over.wait()
            raise self._run.refusal

    def ready(self) -> None:
        self._must_be_ours()
        self._run.answers.wait(START_S)

    def wait(self, timeout_s: float | None) -> Outcome:
        self._must_be_ours()
        try:
            self._over.wait(timeout_s)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(
                f"job {self._name} continues: stop() stops it gracefully; Python waits for it"
                " before it exits"
            )
            raise
        if self.running:
            raise timed_out(self._name, timeout_s or 0.0)
        if self._problem is not None:
            raise self._problem
        assert self._outcome is not None
        return self._outcome

    def stop(self, reason: str) -> None:
        """Stop the job; a master that is still starting stops once it is up."""
        self._must_be_ours()
        if self.running:
            self._run.stop_from_any_thread(reason)

    def close(self) -> None:
        """Do nothing: the job continues."""

    def _must_be_ours(self) -> None:
        """Raise an error in a forked process, which has neither the thread nor the connections."""
        if os.getpid() != self._pid:
            raise PermanentError(
                f"job {self._name} belongs to process {self._pid}, from which this one was forked",
                hint=f"use it there, or run `elasticdl status {self._run.job.place}`",
            )

    def _work(self) -> None:
        """Run the job; runs in the thread. `wait` raises its errors."""
        try:
            with self._claim:
                self._outcome = asyncio.run(self._run.run())
        except BaseException as error:  # noqa: BLE001 - the top of the thread
            self._problem = error if isinstance(error, ElasticDLError) else _unexpected(error)
        finally:
            self._over.set()
            self._run.answers.set()
            self._run.begun.set()


def _unexpected(error: BaseException) -> ElasticDLError:
    problem = PermanentError(f"the job's thread failed: {error!r}", hint="a bug: please report it")
    problem.__cause__ = error
    return problem
