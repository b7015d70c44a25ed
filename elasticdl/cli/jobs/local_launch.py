"""Run a local job: start its master and wait for its end."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, final

from elasticdl.cli.jobs.directory_job import DirectoryJob
from elasticdl.cli.jobs.event_follower import Events
from elasticdl.cli.views.live_view import View
from elasticdl.cluster.base import (
    CreateRefused,
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessSpec,
    Role,
)
from elasticdl.cluster.local.cluster import LocalCluster
from elasticdl.cluster.local.machine import usable_cores
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError
from elasticdl.job import JobSpec
from elasticdl.job_status import JobStatus
from elasticdl.jobdir.job_end import killed_end, read_end, resume_hint, status_in
from elasticdl.jobdir.layout import JobDirectory, read_json
from elasticdl.jobdir.outcome import Outcome

T = TypeVar("T")
MASTER = ProcessName(Role.MASTER, 0)
MASTER_COMMAND = (sys.executable, "-m", "elasticdl.master.main")
POLL_S = 0.5
STOP_GRACE_S = 300.0
"""Time limit of a drain with a last checkpoint, in case the master hangs."""


class Stopped(PermanentError):
    """A person stopped the job before it began."""

    exit_code = ExitCode.INTERRUPTED


@final
class LocalRun:
    """Owns the master of one job.

    Methods run on the event loop of `run` unless they say otherwise. The loop's thread must live
    until `run` returns, since the master ends with it.
    """

    def __init__(self, spec: JobSpec, directory: JobDirectory, view: View) -> None:
        self._spec = spec
        self._directory = directory
        self._view = view
        self.job = DirectoryJob(directory)
        self._cluster: LocalCluster | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked = ""
        self._interrupts = 0
        self._side_tasks: set[asyncio.Task[None]] = set()
        self.answers = threading.Event()
        """Set once the master answers, or the job has ended without one."""
        self.begun = threading.Event()
        """Set once the preflight has passed, or the job has ended."""
        self.refusal: ElasticDLError | None = None
        """Why the job has ended without a beginning."""

    async def run(self) -> Outcome:
        """Start the master, show its events, and return when every process has ended.

        Raises PermanentError, and `refusal`.
        """
        directory = self._directory
        self._cluster = LocalCluster(directory.logs, usable_cores())
        events = Events(directory.events, from_end=self._spec.checkpoint.resume)
        try:
            await self._start()
            # The loop is set only after the start: a stop requested before then waits for this
            # line, since no master can receive it earlier.
            self._loop = asyncio.get_running_loop()
            if self._stop_asked:
                self._stop_once(self._stop_asked)
            following = asyncio.ensure_future(self._follow(events))
            try:
                status = await self._end_of_master()
            finally:
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
            self._view.show(status_in(read_json(directory.status)), self._news(events))
            outcome = outcome_of(directory, status, interrupted=self._interrupts > 0)
            self.refusal = refusal_of(directory, outcome)
            if self.refusal is not None:
                raise self.refusal
            return outcome
        finally:
            self.answers.set()
            self.begun.set()
            await self._cluster.close()

    def stop_from_any_thread(self, why: str) -> None:
        """Stop the job gracefully, with or without a running master."""
        # Set it before the check of the loop. `run` checks in the other order, so one of them sees
        # it.
        self._stop_asked = why
        if self._loop is not None:
            with suppress(RuntimeError):  # closed: the job has just ended
                self._loop.call_soon_threadsafe(self._stop_once, why)

    def interrupt(self, why: str) -> None:
        """Stop the job gracefully on the first call, at once on the second. Call it on the loop."""
        self._interrupts += 1
        if self._interrupts == 1:
            how = (
                "stopping after a last checkpoint; interrupt again to end it at once"
                if self._directory.preflight.exists()
                else "ending the check of the model and the data"
            )
            self._view.say(f"{why}: {how}")
            self._beside(self._stop_gracefully(why))
        elif self._interrupts == 2 and self._cluster is not None:
            self._view.say(f"{why}: ending at once")
            self._beside(self._cluster.delete(MASTER, grace_s=0))

    def _stop_once(self, why: str) -> None:
        # A request from another thread must not count as the second Ctrl-C, which kills.
        if not self._interrupts:
            self.interrupt(why)

    async def _start(self) -> None:
        assert self._cluster is not None
        spec = ProcessSpec(
            MASTER,
            MASTER_COMMAND,
            env={"ELASTICDL_JOB_DIR": str(self._directory.path)},
        )
        try:
            await self._cluster.create(spec)
        except CreateRefused as refused:
            raise PermanentError(f"the master cannot be started: {refused.reason}") from refused

    async def _end_of_master(self) -> ExitStatus:
        """Wait for the master. Unbounded on purpose: a job may take days, and Ctrl-C ends it."""
        assert self._cluster is not None
        async with aclosing(self._cluster.observe()) as events:
            async for event in events:
                if isinstance(event, ProcessExited) and event.name == MASTER:
                    return event.exit_status
        raise PermanentError("the cluster was closed under the job")

    async def _follow(self, events: Events) -> None:
        while True:
            began_s = time.monotonic()
            status = await self._asked()
            self._view.show(status, self._news(events))
            if self._directory.preflight.exists():
                self.begun.set()
            await asyncio.sleep(max(0.05, POLL_S - (time.monotonic() - began_s)))

    def _news(self, events: Events) -> list[dict[str, Any]]:
        """Return new events.

        The command's error reports the failure of a job that did not begin, so omit that event.
        """
        begun = self._directory.preflight.exists()
        return [
            event
            for event in events.read()
            if begun or event.get("kind") != "job" or event.get("level") != "error"
        ]

    async def _asked(self) -> JobStatus | None:
        try:
            status = await in_thread(self.job.status)
        except ElasticDLError:
            return None
        if not self.answers.is_set():
            with suppress(ElasticDLError), self.job.page() as address:  # A job may have no page.
                self._view.say(f"status page: {address}")
        self.answers.set()
        return status

    async def _stop_gracefully(self, why: str) -> None:
        assert self._cluster is not None
        try:
            await in_thread(lambda: self.job.stop(why))
        except ElasticDLError:
            # The master does not listen yet or any more; a signal reaches it anyway.
            await self._cluster.delete(MASTER, grace_s=STOP_GRACE_S)

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking function in its own thread.

    `asyncio.to_thread` does not work here: its pool ends with the script, while the job continues.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(outcome: Callable[[], None]) -> None:
        if not done.cancelled():
            outcome()

    def work() -> None:
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - the top of a thread: raised where it is awaited
            outcome = partial(done.set_exception, error)
        else:
            outcome = partial(done.set_result, result)
        # The loop is closed: nobody waits for the result.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, outcome)

    threading.Thread(target=work, name="call to the master", daemon=True).start()
    return await done


def outcome_of(directory: JobDirectory, status: ExitStatus, *, interrupted: bool) -> Outcome:
    """Return the master's outcome, or what is known of its end if it left none.

    The recorded outcome takes precedence over the master's exit status: a second signal may hit the
    master in its last moment.
    """
    left = read_end(directory)
    if left is not None and (left[0].exit_code == ExitCode.DONE or not interrupted):
        return left[0]
    if left is not None:
        outcome = left[0]
    else:
        tail = f"; its last lines:\n{status.log_tail}" if status.log_tail else ""
        message = f"the master ended by {_how(status)} without recording an outcome{tail}"
        outcome, _ = killed_end(directory, message)
        if not interrupted:
            return replace(outcome, exit_code=status.exit_code or ExitCode.JOB_FAILED)
        outcome = replace(outcome, message="ended at once")
    return replace(outcome, exit_code=ExitCode.INTERRUPTED, hint=resume_hint(directory))


def refusal_of(directory: JobDirectory, outcome: Outcome) -> ElasticDLError | None:
    """Return the error of a job that its preflight refused, or that was stopped before it began.

    None if the job began, or if its master failed: its log says why.
    """
    if directory.preflight.exists():
        return None
    if outcome.exit_code == ExitCode.INTERRUPTED:
        return Stopped(f"{outcome.message.removeprefix('stopped: ')}, before the job began")
    return outcome.error() if outcome.exit_code == ExitCode.USAGE else None


def _how(status: ExitStatus) -> str:
    if status.signal is not None:
        return f"signal {signal.Signals(status.signal).name}"
    return f"exit code {status.exit_code}"
