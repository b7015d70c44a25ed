"""`status`, `scale`, `checkpoint` and `stop`: for a job that somebody started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from elasticdl.cli import progress
from elasticdl.cli.documents import Format, render
from elasticdl.cli.finding import ended, find, job_argument, master_of
from elasticdl.errors import ExitCode, SpecError
from elasticdl.job import WorkerRange

_FORMAT = click.option(
    "-o", "--format", "form", type=click.Choice([str(one) for one in Format]), default=str(Format.TABLE), help="How it is printed."
)
_SETTINGS: dict[str, Any] = {"token_normalize_func": lambda token: token.replace("_", "-")}


@click.command(context_settings=_SETTINGS)
@job_argument
@_FORMAT
def status(job: str, job_dir: str, form: str) -> None:
    """Show how a job is doing, or how it ended."""
    directory = find(job, job_dir)
    left = ended(directory)
    if left:
        found: Mapping[str, Any] = {
            **(left.get("status") or {}),
            "exit_code": left.get("exit_code"),
            "outcome": left.get("message"),
        }
    else:
        with master_of(directory) as master:
            found = master.status()
    if form != Format.TABLE:
        click.echo(render(dict(found), Format(form)), nl=False)
        return
    for line in _table(found):
        click.echo(line)


@click.command(context_settings=_SETTINGS)
@job_argument
@click.option("--num-workers", required=True, metavar="N|MIN:MAX", help="Workers from now on.")
def scale(job: str, job_dir: str, num_workers: str) -> None:
    """Ask for another range of workers."""
    try:
        wanted = WorkerRange.model_validate(WorkerRange.parse(num_workers))
    except ValueError as error:
        raise SpecError(
            f"--num-workers {num_workers!r} is no range of workers", hint="expected N or MIN:MAX, such as 1:3"
        ) from error
    with master_of(find(job, job_dir)) as master:
        master.scale(wanted.low, wanted.high)
    click.echo(f"asked for {wanted} workers", err=True)


@click.command(context_settings=_SETTINGS)
@job_argument
def checkpoint(job: str, job_dir: str) -> None:
    """Ask for a checkpoint now."""
    with master_of(find(job, job_dir)) as master:
        master.checkpoint()
    click.echo("asked for a checkpoint; `elasticdl status` shows it when it is complete", err=True)


@click.command(context_settings=_SETTINGS)
@job_argument
@click.option("--reason", default="`elasticdl stop`", show_default=True, help="Shown in the job's events.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def stop(job: str, job_dir: str, reason: str, yes: bool) -> int:
    """Stop a job in order: workers give their work back and a last checkpoint is taken."""
    directory = find(job, job_dir)
    if ended(directory):
        click.echo(f"the job in {directory.path} has ended already", err=True)
        return ExitCode.DONE
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"This stops the job in {directory.path}: say --yes.")
        click.confirm(f"Stop the job in {directory.path}?", abort=True, err=True)
    with master_of(directory) as master:
        master.stop(reason)
    click.echo("asked to stop; it ends when its workers have drained", err=True)
    return ExitCode.DONE


def _table(status: Mapping[str, Any]) -> list[str]:
    """A status in lines: the job, its processes, what it waits for."""
    if "records" not in status:
        return [f"ended with exit code {status['exit_code']}: {status['outcome']}"]
    lines = [progress.head(status)]
    if status.get("exit_code") is not None:
        lines.append(f"ends with exit code {status['exit_code']}: {status['outcome']}")
    rows = [
        (p["name"], p["state"], p["where"], p["cause"] or "", progress.plain(p["shard"] or p["message"]))
        for p in status["processes"]
    ]
    titled = [("PROCESS", "STATE", "WHERE", "CAUSE", "WHAT"), *rows]
    widths = [max(len(row[column]) for row in titled) for column in range(4)]
    lines += ["  ".join([*(row[column].ljust(widths[column]) for column in range(4)), row[4]]).rstrip() for row in titled]
    lines += [f"waiting: {progress.plain(reason)}" for reason in status.get("waiting") or ()]
    lines += [f"checkpoint: version {one['version']}, {one['path']}" for one in (status.get("checkpoints") or ())[-1:]]
    return lines
