"""Watch a job until it ends, wherever it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from elasticdl.cli.jobs.job import Job, Report
from elasticdl.cli.views.live_view import View
from elasticdl.cli.views.progress import ends
from elasticdl.errors import ExitCode, TransientError
from elasticdl.job_status import JobStatus
from elasticdl.jobdir.outcome import Outcome

LOOK_EVERY_S = 1.0
AWAY_S = 300.0
"""How long to keep trying while the job is unreachable. The job itself is unaffected."""
ENDS = ("done", "failed", "stopped")


def wait(job: Job, view: View, timeout_s: float | None = None) -> Outcome:
    """Block until the job ends, and return its outcome. Print only problems.

    Raises TransientError with exit code 124 after `timeout_s`, and TransientError after five
    minutes without an answer.
    """
    return follow(job, None, view.say, timeout_s)


def watch(job: Job, view: View, timeout_s: float | None = None) -> Outcome:
    """Do the same with a view of the job's progress. An interrupt does not end the job."""
    before: JobStatus | None = None

    def show(report: Report) -> None:
        nonlocal before
        if report.state not in ENDS:
            view.show(report.status, ends(before, report.status))
            before = report.status

    return follow(job, show, view.say, timeout_s)


def follow(
    job: Job,
    seen: Callable[[Report], None] | None,
    say: Callable[[str], None],
    timeout_s: float | None = None,
    every_s: float = LOOK_EVERY_S,
) -> Outcome:
    """Do the same with callbacks: `seen` for reports, `say` for problems.

    `seen` gets a report every `every_s`, and the last one when the job has ended.
    """
    begin_s = heard_s = time.monotonic()
    warned = False
    while True:
        try:
            outcome = job.outcome()
            if seen is not None:
                seen(job.report())
            if outcome is not None:
                return outcome
            # Report the next loss of contact again.
            heard_s, warned = time.monotonic(), False
        except TransientError as error:
            # A master that restarts, or a short network failure, must not end the watch.
            if time.monotonic() - heard_s > AWAY_S:
                message = f"nothing was heard of job {job.name} for {AWAY_S:g} s: {error.message}"
                raise TransientError(
                    message, hint="the job may still be running: look again later"
                ) from error
            if not warned:
                say(f"{error.message}; looking again")
            warned = True
        left_s = float("inf") if timeout_s is None else begin_s + timeout_s - time.monotonic()
        if left_s <= 0:
            raise timed_out(job.name, timeout_s or 0.0)
        time.sleep(min(every_s, left_s))


def timed_out(name: str, timeout_s: float) -> TransientError:
    """Return the error of a wait that timed out."""
    return TransientError(
        f"job {name} has not ended after {timeout_s:g} s",
        hint="it is still running: wait longer, or stop it",
        exit_code=ExitCode.TIMED_OUT,
    )
