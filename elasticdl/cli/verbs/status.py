"""`status`: show the state of a job, or how it ended."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from elasticdl.cli.job_argument import FORMAT_OPTION, SETTINGS, job_argument
from elasticdl.cli.jobs.job import Job, JobQuery, Report
from elasticdl.cli.jobs.resolve_job import RULE, resolve_job
from elasticdl.cli.jobs.watch import ENDS, LOOK_EVERY_S
from elasticdl.cli.views import progress
from elasticdl.cli.views.console import one_line, plain, put, show, tell
from elasticdl.cli.views.documents import Format, as_json, render
from elasticdl.errors import ExitCode
from elasticdl.formatting import amount, spoken
from elasticdl.job_status import CheckpointStatus, JobStatus, ProcessStatus


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@FORMAT_OPTION
@click.option(
    "-w",
    "--watch",
    is_flag=True,
    help=(
        "Keep watching until the job ends, and exit with its exit code. Into a file or pipe, print"
        " a line for each change."
    ),
)
def status(query: JobQuery, form: str, watch: bool) -> int:
    """Show the state of a job, or how it ended."""
    with resolve_job(query) as job:
        if watch:
            return _watch(job, Format(form))
        report = job.report()
    if form != Format.TABLE:
        put(render(report.as_dict(), Format(form)))
        return ExitCode.DONE
    for line in lines(report):
        show(line)
    return ExitCode.DONE


def _watch(job: Job, form: Format, every_s: float = LOOK_EVERY_S) -> int:
    """Watch the job until it ends; return its exit code."""
    from elasticdl.cli.jobs import watch

    if form is not Format.TABLE:
        show_data = lambda report: _print_data(report, form)  # noqa: E731
        return watch.follow(job, show_data, tell, every_s=every_s).exit_code
    if sys.stdout.isatty():
        from elasticdl.cli.views.live_view import view_for

        view = view_for()
        try:
            outcome = watch.watch(job, view)
        finally:
            view.close()
    else:
        from elasticdl.cli.views.line_progress import LineProgress

        changes = LineProgress()

        def show_changes(report: Report) -> None:
            for line in changes.lines(report) if report.state not in ENDS else ():
                show(line)

        outcome = watch.follow(job, show_changes, tell, every_s=every_s)
    for line in lines(job.report()):
        show(line)
    return outcome.exit_code


def _print_data(report: Report, form: Format) -> None:
    document = report.as_dict()
    put(as_json(document) if form is Format.JSON else f"---\n{render(document, form)}")


def lines(report: Report) -> list[str]:
    """Format a status as lines: the job, its processes and its waits."""
    status = report.status
    over = report.state in ENDS
    shown = [plain(progress.head(replace(status, message=report.state) if over else status))]
    if report.exit_code is not None:
        shown.append(
            f"{'ended' if over else 'ends'} with exit code {report.exit_code}:"
            f" {plain(report.outcome)}"
        )
    if status.receipt is not None and status.receipt.counted:
        shown.append(f"counted: {one_line(status.receipt.counted)}")
    if status.receipt is not None and status.receipt.why_left:
        why = status.receipt.why_left.partition("\n")[0]
        if not report.outcome.startswith(why):
            shown.append(plain(f"left: {amount(status.receipt.total.left, 'record')}, {why}"))
    if status.cluster_share is not None:
        shown.append(f"share: {progress.cluster_share(status.cluster_share)}")
    if status.updates is not None and (status.updates.applied or over):
        shown.append(f"updates: {progress.update_words(status.updates).replace('  ', ', ')}")
    if status.steps is not None:
        shown.append(f"steps: {one_line(str(status.steps))}")
    if report.hint:
        shown.append(f"hint: {plain(report.hint)}")
    rows = [
        (p.name, p.state, p.where or "", p.cause or "", _what(p))
        for p in progress.in_order(status.processes)
    ]
    if report.master:
        rows.insert(0, ("master-0", "ready", report.master, "", ""))
    if rows:
        shown += progress.table([("PROCESS", "STATE", "WHERE", "CAUSE", "WHAT"), *rows])
    if status.processes_left_out:
        shown.append(f"and {status.processes_left_out:,} more that have not ended")
    if status.scale.holds_back and not over:
        shown.append(f"autoscale: {plain(status.scale.holds_back)}")
    shown += [f"waiting: {plain(reason)}" for reason in status.waiting]
    shown += [
        f"checkpoint: version {checkpoint.version}, {one_line(checkpoint.path)}"
        f"{_later(checkpoint, status)}"
        for checkpoint in status.checkpoints[-1:]
    ]
    return shown


def _later(checkpoint: CheckpointStatus, status: JobStatus) -> str:
    """Say how much newer a checkpoint is than the last counts of a job that was killed."""
    # The job may have gone back to an earlier version since.
    earlier = checkpoint.version <= status.version or checkpoint.at_s < status.at_s
    if earlier or not status.records.expected:
        return ""
    return f" (taken {spoken(checkpoint.at_s - status.at_s)} after these counts)"


def _what(process: ProcessStatus) -> str:
    """What a process works on, or how it ended where the cause alone does not say it."""
    text = process.shard or process.message
    return "" if text == process.cause else plain(text)
