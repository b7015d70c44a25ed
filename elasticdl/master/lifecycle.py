"""The life of a master: it takes its part of the job, and records the outcome if the job ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

from elasticdl.clock import SystemClock
from elasticdl.errors import ElasticDLError, ExitCode, MasterSuperseded
from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.master_address import read_master
from elasticdl.jobdir.spec_files import read_spec
from elasticdl.master.call_port import CallPort
from elasticdl.master.core.commands import FinishJob
from elasticdl.master.core.events import StopRequested
from elasticdl.master.core.job_context import Limits
from elasticdl.master.job_record import continue_events
from elasticdl.master.journal.fetching import fetch
from elasticdl.master.journal.recovery import Recovered, Recovery, claim
from elasticdl.master.master import Master
from elasticdl.master.outcome import (
    leave_outcome,
    leave_report,
    outcome_of,
    tell_story,
)
from elasticdl.master.platform.local import LocalPlatform
from elasticdl.master.platform.platform import JobHasEnded, MasterEnvironment, Platform
from elasticdl.own_process import log_to_stderr, raise_file_limit
from elasticdl.paused_collection import paused_collection, without_collection
from elasticdl.tokens import run_name

_LOG = logging.getLogger("elasticdl.master")
_CONTINUED = (ExitCode.DRAINED, ExitCode.SUPERSEDED, ExitCode.UNAVAILABLE)
"""The job goes on under another master."""
_REPLAY_S = 0.02
"""How long a master that takes over handles events of the journal at once. Processes connect, and
the tenure is renewed, between these times."""
_IN_POD = "ELASTICDL_JOB_NAME"
"""The variable that tells a master in a pod from one on this machine."""


def on_signals(first: Callable[[str], object], second: Callable[[], object]) -> None:
    """Handle SIGTERM and SIGINT."""
    loop, seen = asyncio.get_running_loop(), 0

    def caught(number: signal.Signals) -> None:
        nonlocal seen
        seen += 1
        _LOG.warning("%s: %s", number.name, "stopping gracefully" if seen == 1 else "exiting now")
        if seen == 1:
            first(f"the master received {number.name}")
        elif seen == 2:
            second()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, caught, number)


async def serve(environment: MasterEnvironment, platform: Platform) -> FinishJob:
    """Run the job and save its outcome, unless the next master continues the job.

    Raises ElasticDLError if it cannot begin.
    """
    async with AsyncExitStack() as ports:
        spec = read_spec(environment.directory)
        environment, recovered = await _recovered(environment, spec, platform.limits, ports)
        if recovered is None and environment.replaces:
            environment = await platform.begin_anew(environment)
            spec = read_spec(environment.directory)
        job, calls = recovered or (None, None)
        if calls is None:
            calls = await ports.enter_async_context(CallPort.of(environment))
        with without_collection():
            # It reads the newest events of earlier masters.
            master = Master(environment, spec, platform, calls, job)
        return await _finish(master, environment, platform)


async def _finish(master: Master, environment: MasterEnvironment, platform: Platform) -> FinishJob:
    """Run the master to its end, and save the outcome if it is the job's."""
    try:
        finish = await _run(master, environment, platform)
        ends = not master.has_left and finish.exit_code not in _CONTINUED
        if ends:
            finish = master.with_resume_command(finish)
            master.close_record(finish)
            outcome, status = master.outcome(finish)
            # An earlier master may have begun the job that this one was refused to continue.
            begun = status is not None or environment.replaces
            leave_outcome(environment.directory, outcome, status, begun=begun)
            if status is not None:
                leave_report(environment.directory, lambda: master.snapshot(outcome, status))
    finally:
        # Only now: it may wait for a store, and a master that is ended at once is soon killed.
        await asyncio.to_thread(master.record.close)
    if not ends:
        await asyncio.gather(*(tracker.close() for tracker in master.trackers))
        return finish
    if platform.has_next:
        tell_story(master.record.event_log)
    version = status.version if status is not None else 0
    # First: a next master that finds neither outcome nor journal would start the job over.
    await platform.tell(outcome)
    await asyncio.gather(*(tracker.end(outcome, version) for tracker in master.trackers))
    return finish


async def _recovered(
    environment: MasterEnvironment, spec: JobSpec, limits: Limits, ports: AsyncExitStack
) -> tuple[MasterEnvironment, tuple[Recovered, CallPort] | None]:
    """Return the environment with our term, the job as an earlier master left it, and the port at
    which its processes connect. `ports` closes it.

    None: there was none, or its journal cannot continue the job, which is logged.
    """
    directory, name = environment.directory, run_name(environment.token)
    newest_at = None
    # A master that died may not have removed its file.
    before = read_master(directory)
    term = max(environment.term, before.term + 1 if before is not None else 0)
    try:
        if environment.copies is not None and environment.replaces:
            age_s = await fetch(environment.copies, directory.journal)
            newest_at = SystemClock().wall_s() - age_s if age_s is not None else None
        term = claim(directory.journal, name, term)
    except OSError as error:
        _LOG.error("cannot continue with the journal in %s: %s", directory.journal, error)
        return replace(environment, term=term), None
    environment = replace(environment, term=term)
    recovered = await _replayed(environment, name, spec, limits, ports)
    if recovered is not None and newest_at is not None:
        continue_events(directory, recovered[0].at_s, newest_at)
    if environment.copies is not None:
        environment = replace(environment, copies=replace(environment.copies, term=term))
    return environment, recovered


async def _replayed(
    environment: MasterEnvironment,
    run: str,
    spec: JobSpec,
    limits: Limits,
    ports: AsyncExitStack,
) -> tuple[Recovered, CallPort] | None:
    """Return the job after its journal, and the port at which its processes connect meanwhile.

    None if the journal cannot continue it; then the port is closed.
    """
    with paused_collection():
        # It may take a second, and the tenure needs this loop meanwhile.
        recovery = await asyncio.to_thread(
            Recovery, environment.directory.journal, run, spec, limits
        )
    if not recovery.found:
        return None
    calls = await ports.enter_async_context(CallPort.of(environment))
    with suppress(OSError):  # `Master.run` tries again, and says what is wrong.
        await calls.open()
    # In this thread: each call of another one would wait for it.
    while _replay(recovery):
        await asyncio.sleep(0)
    if (recovered := recovery.recovered()) is None:
        await ports.aclose()
        return None
    return recovered, calls


def _replay(recovery: Recovery) -> bool:
    with without_collection():
        return recovery.replay(_REPLAY_S)


async def _run(master: Master, environment: MasterEnvironment, platform: Platform) -> FinishJob:
    """Run the master to its end, whatever that is."""
    running = asyncio.ensure_future(master.run())
    beside: list[asyncio.Future[None]] = [
        asyncio.ensure_future(_give_way(master, environment, running))
    ]
    if platform.has_next:
        # The node is being drained or the pod preempted, so the next master continues the job.
        on_signals(
            lambda _: beside.append(asyncio.ensure_future(master.leave(running))),
            lambda: master.leave_now(running),
        )
    else:
        on_signals(
            lambda reason: master.queue.post(StopRequested(master.queue.at_s(), reason)),
            running.cancel,
        )
    try:
        return await running
    except asyncio.CancelledError:
        return _cut_short(master)
    except MasterSuperseded as superseded:
        return FinishJob(superseded.exit_code, superseded.message)
    except Exception as error:  # noqa: BLE001 - the top of the process: it ends the job visibly
        _LOG.exception("the master failed")
        hint = (
            f"check {error.filename or environment.directory.path}"
            if isinstance(error, OSError)
            else "this is a bug in ElasticDL"
        )
        if platform.has_next and not master.acts:
            # Its job has lost nothing. The platform restarts it a few times only.
            return FinishJob(ExitCode.UNAVAILABLE, f"the master cannot start: {error!r}", hint)
        return FinishJob(ExitCode.JOB_FAILED, f"the master failed: {error!r}", hint)
    finally:
        for task in beside:
            task.cancel()


async def _give_way(
    master: Master, environment: MasterEnvironment, running: asyncio.Future[FinishJob]
) -> None:
    """Leave when another master takes the job over."""
    master.give_way(running, await environment.tenure.lost())


def _cut_short(master: Master) -> FinishJob:
    if master.superseded_by:
        return FinishJob(ExitCode.SUPERSEDED, master.superseded_by)
    if master.has_left:
        return FinishJob(ExitCode.DRAINED, "the master exits; the next one continues the job")
    status = master.core.status()
    if status.exit_code is None:
        return FinishJob(ExitCode.INTERRUPTED, "ended at once by a second signal", "")
    code, message = ExitCode(status.exit_code), status.outcome or ""
    if code is ExitCode.INTERRUPTED:
        message = f"{message}, and ended at once"
    return FinishJob(code, message, "")


def run() -> int:
    """Run the process; return its exit code."""
    raise_file_limit()
    # Until the loop has its own handlers: exit cleanly.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    log_to_stderr()
    try:
        finish = _work(_platform())
    except ElasticDLError as error:
        finish = FinishJob(error.exit_code, error.message, error.hint)
    level = (
        logging.INFO if finish.exit_code in (ExitCode.DONE, ExitCode.INTERRUPTED) else logging.ERROR
    )
    _LOG.log(
        level,
        "exit code %d: %s%s",
        finish.exit_code,
        finish.message,
        f"\n{finish.hint}" if finish.hint else "",
    )
    return finish.exit_code


def _platform() -> Platform:
    if _IN_POD not in os.environ:
        return LocalPlatform()
    from elasticdl.master.platform.kubernetes import KubernetesPlatform

    return KubernetesPlatform()


def _work(platform: Platform) -> FinishJob:
    """Do this master's part of the job.

    Raises ElasticDLError if even the platform cannot record the error.
    """
    opened: list[JobDirectory] = []
    try:
        return asyncio.run(_part(platform, opened))
    except KeyboardInterrupt:
        code = ExitCode.DRAINED if platform.has_next else ExitCode.INTERRUPTED
        finish = FinishJob(code, "interrupted before any process started")
        return asyncio.run(_failed(finish, platform, opened))


async def _part(platform: Platform, opened: list[JobDirectory]) -> FinishJob:
    """Serve the job on its platform. `opened` gets the job's directory once it is known."""
    try:
        async with platform.opened() as environment:
            opened.append(environment.directory)
            try:
                return await serve(environment, platform)
            except ElasticDLError as error:
                return await _failed(_finish_of(error), platform, opened)
    except JobHasEnded as ended:
        outcome = ended.outcome
        await platform.tell(outcome)
        return FinishJob(ExitCode(outcome.exit_code), outcome.message, outcome.hint)
    except ElasticDLError as error:
        if not platform.has_next:
            raise
        return await _failed(_finish_of(error), platform, opened)


def _finish_of(error: ElasticDLError) -> FinishJob:
    code = ExitCode.JOB_FAILED if error.exit_code is ExitCode.USER_ERROR else error.exit_code
    return FinishJob(code, error.message, error.hint)


async def _failed(
    finish: FinishJob, platform: Platform, opened: Sequence[JobDirectory]
) -> FinishJob:
    """Leave the outcome of a job that ends before any process started, if that is its end."""
    if finish.exit_code not in _CONTINUED:
        directory = opened[-1] if opened else None
        outcome = outcome_of(finish, directory)
        if directory is not None:
            leave_outcome(directory, outcome)
        await platform.tell(outcome)
    return finish
