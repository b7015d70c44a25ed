"""`status`, `wait`, `scale`, `checkpoint` and `stop`: for a job that somebody started, on this
machine or on a cluster.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from elasticdl.cli.jobs.job import Job, JobQuery, Report
from elasticdl.cli.jobs.resolve_job import RULE, found, job_argument
from elasticdl.cli.jobs.watch import ENDS
from elasticdl.cli.param_types import Seconds, typed_range
from elasticdl.cli.views import progress
from elasticdl.cli.views.console import plain, tell
from elasticdl.cli.views.documents import Format, as_json, render
from elasticdl.errors import ExitCode
from elasticdl.formatting import amount

SETTINGS: dict[str, Any] = {
    "token_normalize_func": lambda token: token.replace("_", "-"),
    "help_option_names": ["-h", "--help"],
}
_FORMS = [str(one) for one in Format]
FORMAT_OPTION = click.option(
    "-o",
    "--format",
    "form",
    type=click.Choice(_FORMS),
    default=str(Format.TABLE),
    help="How it is printed. [table]",
)


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@FORMAT_OPTION
@click.option(
    "-w",
    "--watch",
    is_flag=True,
    help=(
        "Go on until the job has ended, or Ctrl-C; the exit code is then the job's. Into a file or"
        " pipe: a line when something has changed."
    ),
)
def status(sought: JobQuery, form: str, watch: bool) -> int:
    """Show how a job is doing, or how it ended."""
    with found(sought) as job:
        if watch:
            return _watch(job, Format(form))
        report = job.report()
    if form != Format.TABLE:
        click.echo(render(report.as_dict(), Format(form)), nl=False)
        return ExitCode.DONE
    for line in lines(report):
        click.echo(line)
    return ExitCode.DONE


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(),
    metavar="SECONDS",
    help="Give up after so long, with exit code 124.",
)
@FORMAT_OPTION
def wait(sought: JobQuery, timeout_s: float | None, form: str) -> int:
    """Wait until a job has ended. The exit code is the job's."""
    from elasticdl.cli.jobs import watch
    from elasticdl.cli.views.live_view import LineView
    from elasticdl.cli.views.result_output import tell_end

    with found(sought) as job:
        outcome = watch.wait(job, LineView(sys.stderr), timeout_s)
    tell_end(outcome, Format(form))
    return outcome.exit_code


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@click.option("--num-workers", required=True, metavar="N|MIN:MAX", help="Workers from now on.")
def scale(sought: JobQuery, num_workers: str) -> None:
    """Ask for another range of workers."""
    low, high = typed_range(num_workers)
    with found(sought) as job:
        job.scale(low, high)
    click.echo(
        f"asked for {amount(low, 'worker') if low == high else f'{low}:{high} workers'}", err=True
    )


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
def checkpoint(sought: JobQuery) -> None:
    """Ask for a checkpoint now."""
    with found(sought) as job:
        job.checkpoint()
    click.echo("asked for a checkpoint; `elasticdl status` shows it when it is complete", err=True)


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@click.option(
    "--reason", default="`elasticdl stop`", show_default=True, help="Shown in the job's events."
)
@click.option(
    "--now",
    is_flag=True,
    help="End it at once, without a last checkpoint; works without its master, too.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def stop(sought: JobQuery, reason: str, now: bool, yes: bool) -> int:
    """Stop a job in order: workers give their work back and a last checkpoint is taken.

    A job on a cluster whose master does not run (not yet, or for good) is deleted.
    """
    with found(sought) as job:
        where = f"job {job.name} in {job.place}"
        if job.outcome() is not None:
            click.echo(f"{where} has ended already", err=True)
            return ExitCode.DONE
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(f"This stops {where}: say --yes.")
            if not click.confirm(f"Stop {where}?", err=True):
                tell(f"{where} goes on")
                return ExitCode.INTERRUPTED
        click.echo(job.end(reason) if now else job.stop(reason), err=True)
    return ExitCode.DONE


def _watch(job: Job, form: Format) -> int:
    """Until its end; its exit code."""
    from elasticdl.cli.jobs import watch

    if form is not Format.TABLE:
        return watch.follow(job, lambda report: _print_data(report, form), tell).exit_code
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

        def show(report: Report) -> None:
            for line in changes.lines(report) if report.state not in ENDS else ():
                click.echo(line)
            sys.stdout.flush()

        outcome = watch.follow(job, show, tell)
    for line in lines(job.report()):
        click.echo(line)
    return outcome.exit_code


def _print_data(report: Report, form: Format) -> None:
    found = report.as_dict()
    click.echo(as_json(found) if form is Format.JSON else f"---\n{render(found, form)}", nl=False)
    sys.stdout.flush()


def lines(report: Report) -> list[str]:
    """A status in lines: the job, its processes, what it waits for."""
    status: Mapping[str, Any] = report.status
    over = report.state in ENDS
    shown = [plain(progress.head({**status, "message": report.state} if over else status))]
    if report.exit_code is not None:
        shown.append(
            f"{'ended' if over else 'ends'} with exit code {report.exit_code}:"
            f" {plain(report.outcome)}"
        )
    receipt = status.get("receipt") or {}
    why = str(receipt.get("why_left") or "").partition("\n")[0]
    if why and not report.outcome.startswith(why):
        shown.append(plain(f"left: {amount(receipt['total'].get('left', 0), 'record')}, {why}"))
    if report.hint:
        shown.append(f"hint: {plain(report.hint)}")
    rows = [
        (p["name"], p["state"], p["where"], p["cause"] or "", plain(p["shard"] or p["message"]))
        for p in status["processes"]
    ]
    if rows:
        shown += progress.table([("PROCESS", "STATE", "WHERE", "CAUSE", "WHAT"), *rows])
    shown += [f"waiting: {plain(reason)}" for reason in status.get("waiting") or ()]
    shown += [
        f"checkpoint: version {one['version']}, {one['path']}"
        for one in (status.get("checkpoints") or ())[-1:]
    ]
    return shown
