"""`python -m elasticdl.master.main`: the master of one job, on this machine or in a pod."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

from elasticdl.cluster.kubernetes.planning import SPEC_VARIABLE
from elasticdl.cluster.local.parent_death import die_with_parent
from elasticdl.errors import ElasticDLError, ExitCode
from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.master.core.commands import FinishJob
from elasticdl.master.core.events import StopRequested
from elasticdl.master.journal.recovery import Recovered, recover
from elasticdl.master.master import Master
from elasticdl.master.outcome import (
    leave_outcome,
    leave_report,
    outcome_of,
    tell_story,
)
from elasticdl.master.platform.local import LocalPlatform
from elasticdl.master.platform.platform import MasterEnvironment, Platform
from elasticdl.master.read_spec import read_spec
from elasticdl.rpc.open_files import raise_file_limit
from elasticdl.tokens import run_name

_LOG = logging.getLogger("elasticdl.master")


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


async def serve(
    environment: MasterEnvironment,
    spec: JobSpec,
    platform: Platform,
    recovered: Recovered | None = None,
) -> FinishJob:
    """Run the job and save its outcome, unless the next master continues the job."""
    master = Master(environment, spec, platform, recovered)
    running = asyncio.ensure_future(master.run())
    departing: list[asyncio.Future[None]] = []
    if platform.has_next:
        # The node is being drained or the pod preempted, so the next master continues the job.
        on_signals(
            lambda _: departing.append(asyncio.ensure_future(master.leave(running))),
            lambda: master.leave_now(running),
        )
    else:
        on_signals(
            lambda reason: master.queue.post(StopRequested(master.queue.at_s(), reason)),
            running.cancel,
        )
    try:
        finish = await running
    except asyncio.CancelledError:
        finish = _cut_short(master)
    except Exception as error:  # noqa: BLE001 - the top of the process: it ends the job visibly
        _LOG.exception("the master failed")
        hint = (
            f"check {error.filename or environment.directory.path}"
            if isinstance(error, OSError)
            else "this is a bug in ElasticDL"
        )
        finish = FinishJob(ExitCode.JOB_FAILED, f"the master failed: {error!r}", hint)
    for task in departing:
        task.cancel()
    if not master.has_left and finish.exit_code is not ExitCode.UNAVAILABLE:
        finish = master.with_resume_command(finish)
        master.close_record(finish)
        outcome, status = master.outcome(finish)
        leave_outcome(environment.directory, outcome, status)
        if status is not None:
            leave_report(environment.directory, lambda: master.snapshot(outcome, status))
        if platform.has_next:
            tell_story(master.record.event_log)
        platform.tell(outcome)
    return finish


def _cut_short(master: Master) -> FinishJob:
    if master.has_left:
        return FinishJob(ExitCode.DRAINED, "the master exits; the next one continues the job")
    status = master.core.status()
    if status.exit_code is not None:
        return FinishJob(ExitCode(status.exit_code), status.outcome or "", "")
    return FinishJob(ExitCode.INTERRUPTED, "killed by a second signal", "")


def main() -> int:
    """Run the process; return its exit code."""
    die_with_parent()
    raise_file_limit()
    # Until the loop has its own handlers: exit cleanly.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
        stream=sys.stderr,
    )
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
    if SPEC_VARIABLE not in os.environ:
        return LocalPlatform()
    from elasticdl.master.platform.kubernetes import KubernetesPlatform

    return KubernetesPlatform()


def _work(platform: Platform) -> FinishJob:
    """Do this master's part of the job.

    Raises ElasticDLError if even the platform cannot record the error.
    """
    directory: JobDirectory | None = None
    try:
        environment = platform.open()
        directory = environment.directory
        spec = read_spec(directory)
        recovered = recover(directory.journal, run_name(environment.token), spec, platform.limits)
        if recovered is None and environment.restart:
            environment = platform.begin_anew(environment)
            spec = read_spec(directory)
        return asyncio.run(serve(environment, spec, platform, recovered))
    except ElasticDLError as error:
        if directory is None and not platform.has_next:
            raise
        code = ExitCode.JOB_FAILED if error.exit_code is ExitCode.USER_ERROR else error.exit_code
        finish = FinishJob(code, error.message, error.hint)
    except KeyboardInterrupt:
        code = ExitCode.DRAINED if platform.has_next else ExitCode.INTERRUPTED
        finish = FinishJob(code, "interrupted before any process started")
    if finish.exit_code not in (ExitCode.DRAINED, ExitCode.UNAVAILABLE):
        outcome = outcome_of(finish, directory)
        if directory is not None:
            leave_outcome(directory, outcome)
        platform.tell(outcome)
    return finish


if __name__ == "__main__":
    sys.exit(main())
