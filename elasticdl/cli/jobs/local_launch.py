"""Run a local job: start its supervisor and wait for its end."""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, final

from elasticdl.cli.jobs.directory_job import DirectoryJob
from elasticdl.cli.jobs.event_follower import Events
from elasticdl.cli.views.live_view import View
from elasticdl.cluster.local.supervisor.supervisor_process import SupervisorProcess
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError
from elasticdl.formatting import exit_words
from elasticdl.job import JobSpec
from elasticdl.job_status import JobStatus
from elasticdl.jobdir.job_end import has_begun, killed_end, read_end, resume_hint, status_in
from elasticdl.jobdir.layout import JobDirectory, part_of, read_json
from elasticdl.jobdir.outcome import Outcome
from elasticdl.jobdir.supervisor_file import read_supervisor

T = TypeVar("T")
MASTER_COMMAND = (sys.executable, "-m", "elasticdl.master.main")
WORKER_IMPORTS = ("elasticdl.worker.lifecycle:preload",)
RING_IMPORTS = ("elasticdl.worker.lifecycle:preload_ring",)
"""Names only: neither command nor supervisor imports TensorFlow."""
POLL_S = 0.5
_LITTLE_BYTES = 64 * 1024
"""With less free space a master cannot record its outcome."""
STOP_GRACE_S = 300.0
"""Time limit of a drain with a last checkpoint, in case the master hangs."""


class Stopped(PermanentError):
    """A person stopped the job before it began."""

    exit_code = ExitCode.INTERRUPTED


@final
class LocalRun:
    """Owns the supervisor of one job.

    Methods run on the event loop of `run` unless they say otherwise. The loop's thread must live
    until `run` returns, since the supervisor ends with it.
    """

    def __init__(self, spec: JobSpec, directory: JobDirectory, view: View) -> None:
        self._spec = spec
        self._directory = directory
        self._view = view
        self.job = DirectoryJob(directory)
        self._supervisor: SupervisorProcess | None = None
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
        """Start the supervisor, show the job's events, and return when every process has ended.

        Raises PermanentError, and `refusal`.
        """
        directory = self._directory
        events = Events(directory.events, from_end=self._spec.checkpoint.resume)
        try:
            supervisor = self._start()
            # The loop is set only after the start: a stop requested before then waits for this
            # line, since no supervisor can receive it earlier.
            self._loop = asyncio.get_running_loop()
            if self._stop_asked:
                self._stop_once(self._stop_asked)
            following = asyncio.ensure_future(self._follow(events))
            try:
                code = await supervisor.wait()
            finally:
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
            self._view.show(status_in(read_json(directory.status)), self._news(events))
            outcome = outcome_of(directory, code, interrupted=self._interrupts > 0)
            self.refusal = refusal_of(directory, outcome)
            if self.refusal is not None:
                raise self.refusal
            return outcome
        finally:
            self.answers.set()
            self.begun.set()
            if self._supervisor is not None:
                await self._supervisor.close()

    def stop_from_any_thread(self, why: str) -> None:
        """Stop the job gracefully, with or without a running master."""
        # Set it before the check of the loop. `run` checks in the other order, so one of them sees
        # it.
        self._stop_asked = why
        if self._loop is not None:
            with suppress(RuntimeError):  # closed: the job has just ended
                self._loop.call_soon_threadsafe(self._stop_once, why)

    def interrupt(self, why: str) -> None:
        """Stop the job gracefully on the first call, at once on the second. Call it on the loop.

        The second lets the master record how the job stood, which takes a second or so; the third
        kills it, too.
        """
        self._interrupts += 1
        if self._interrupts == 1:
            how = (
                "stopping after a last checkpoint; interrupt again to end it at once"
                if self._directory.preflight.exists()
                else "ending the check of the model and the data"
            )
            self._view.say(f"{why}: {how}")
            self._beside(self._stop_gracefully(why))
        elif self._interrupts == 2 and self._supervisor is not None:
            self._view.say(f"{why}: ending at once")
            self._beside(self._supervisor.end())
        elif self._interrupts == 3 and self._supervisor is not None:
            self._beside(self._supervisor.close())

    def _stop_once(self, why: str) -> None:
        # A request from another thread must not count as the second Ctrl-C, which kills.
        if not self._interrupts:
            self.interrupt(why)

    def _start(self) -> SupervisorProcess:
        imports = RING_IMPORTS if self._spec.trains_on_ring else WORKER_IMPORTS
        try:
            self._supervisor = SupervisorProcess.start(self._directory, MASTER_COMMAND, imports)
        except OSError as error:
            reason = f"{error.strerror or error}: {error.filename or sys.executable}"
            raise PermanentError(f"the job cannot be started: {reason}") from error
        return self._supervisor

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

        The command's error reports that the check of model and data failed, so omit that event.
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
        assert self._supervisor is not None
        try:
            await in_thread(lambda: self.job.stop(why))
        except ElasticDLError:
            # No master listens yet or any more; the supervisor tells this or the next one.
            await self._supervisor.stop(STOP_GRACE_S)

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


def outcome_of(directory: JobDirectory, code: int, *, interrupted: bool) -> Outcome:
    """Return the master's outcome, or what is known of the job's end if none is recorded.

    `code` is the supervisor's, as Popen has it. The recorded outcome takes precedence: a second
    signal may hit the master in its last moment.
    """
    left = read_end(directory)
    if left is not None and (left[0].exit_code == ExitCode.DONE or not interrupted):
        return left[0]
    if left is not None:
        outcome = left[0]
    else:
        supervisor = read_supervisor(directory)
        message = supervisor.message if supervisor is not None else ""
        message = (
            message or f"its supervisor ended by {exit_words(code)} without recording an outcome"
        )
        outcome, _ = killed_end(directory, f"{message}{_full_disk(directory)}")
        if not interrupted:
            return replace(outcome, exit_code=code if code > 0 else ExitCode.JOB_FAILED)
        outcome = replace(outcome, message="ended at once")
    return replace(outcome, exit_code=ExitCode.INTERRUPTED, hint=resume_hint(directory))


def _full_disk(directory: JobDirectory) -> str:
    """Why no outcome may be recorded, as words that follow how a job ended; '' if not for that."""
    with suppress(OSError):
        if shutil.disk_usage(directory.path).free < _LITTLE_BYTES:
            return f"; no space is left for {directory.path}"
    return ""


def refusal_of(directory: JobDirectory, outcome: Outcome) -> ElasticDLError | None:
    """Return the error of a job that was refused or stopped before it began.

    None if the job began, or if its master failed: its log says why.
    """
    if has_begun(directory):
        return None
    if outcome.exit_code == ExitCode.INTERRUPTED:
        resumed = part_of(read_json(directory.spec), "checkpoint").get("resume")
        return Stopped(
            f"{outcome.message.removeprefix('stopped: ')}, before the job began",
            hint=resume_hint(directory) if resumed else "",  # A new job's directory is removed.
        )
    refused = outcome.exit_code == ExitCode.USAGE or directory.preflight.exists()
    return outcome.error() if refused else None
