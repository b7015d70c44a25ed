"""A job on this machine that Python code started: it runs in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import ExitStack
from typing import final

from elasticdl.cli.jobs.local_launch import LocalRun
from elasticdl.cli.jobs.watch import timed_out
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError
from elasticdl.jobdir.outcome import Outcome

START_S = 60.0
"""A master answers within a second or two; this is for a machine that is very busy."""


@final
class BackgroundRun:
    """A `HandledRun`. Thread-safe.

    The thread starts the job's processes and owns them. An interpreter that ends waits for the
    job. One that is killed takes every process of the job with it.
    """

    def __init__(self, run: LocalRun, claim: ExitStack) -> None:
        """Start the thread. `claim` keeps the job's directory ours; it is closed at the end."""
        self._run, self._claim = run, claim
        self._name = run.job.name
        self._pid = os.getpid()
        self._outcome: Outcome | None = None
        self._problem: BaseException | None = None
        # Not the thread itself is waited for: a `join` that Ctrl-C interrupts takes the thread for
        # ended, in Python 3.11.
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

    def ready(self) -> None:
        self._must_be_ours()
        self._run.answers.wait(START_S)

    def wait(self, timeout_s: float | None) -> Outcome:
        self._must_be_ours()
        try:
            self._over.wait(timeout_s)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(
                f"job {self._name} goes on: stop() ends it in order; a script that ends waits for"
                " it"
            )
            raise
        if self.running:
            raise timed_out(self._name, timeout_s or 0.0)
        if self._problem is not None:
            raise self._problem
        assert self._outcome is not None
        return self._outcome

    def stop(self, reason: str) -> None:
        """A master that is not up yet is told as soon as it is."""
        self._must_be_ours()
        if self.running:
            self._run.stop_from_any_thread(reason)

    def close(self) -> None:
        """The job goes on."""

    def _must_be_ours(self) -> None:
        """A process that was forked from ours has neither the thread nor the connections."""
        if os.getpid() != self._pid:
            raise PermanentError(
                f"job {self._name} is process {self._pid}'s, from which this one was forked",
                hint=f"look after it there, or by `elasticdl status {self._run.job.place}`",
            )

    def _work(self) -> None:
        """The thread. Whatever happens in it is raised by `wait`."""
        try:
            with self._claim:
                self._outcome = asyncio.run(self._run.run())
        except BaseException as error:  # noqa: BLE001 - the top of the thread
            self._problem = error if isinstance(error, ElasticDLError) else _unexpected(error)
        finally:
            self._over.set()
            self._run.answers.set()


def _unexpected(error: BaseException) -> ElasticDLError:
    problem = PermanentError(f"the job's thread failed: {error!r}", hint="a bug: please report it")
    problem.__cause__ = error
    problem.exit_code = ExitCode.JOB_FAILED
    return problem
