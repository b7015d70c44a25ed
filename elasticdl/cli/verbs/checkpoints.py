"""`checkpoints list` and `checkpoints verify`: inspect the checkpoints that a job has kept."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, final

import click

from elasticdl.addresses import is_address
from elasticdl.cli.completion_sources import job_names
from elasticdl.cli.job_argument import FORMAT_OPTION, SETTINGS
from elasticdl.cli.jobs.directory_job import DirectoryJob
from elasticdl.cli.jobs.job import JobQuery
from elasticdl.cli.jobs.resolve_job import resolve_job
from elasticdl.cli.param_types import TEXT
from elasticdl.cli.views import progress
from elasticdl.cli.views.console import put, show, tell
from elasticdl.cli.views.documents import Format, render
from elasticdl.errors import Corrupted, SpecError
from elasticdl.formatting import NOTHING, amount, size
from elasticdl.jobdir.layout import JobDirectory, part_of
from elasticdl.storage.address import below

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from elasticdl.checkpoint.inspection import CheckpointSummary, Verification

_COLUMNS = ("VERSION", "AGE", "SIZE", "KIND", "MADE BY", "TRAINED", "PATH")


def _complete(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem[str]]:
    from click.shell_completion import CompletionItem

    names = [CompletionItem(name) for name in job_names(begun, "", "")]
    return names or [CompletionItem(begun, type="dir")]


_TARGET = click.argument("target", type=TEXT, metavar="JOB|DIR|ADDRESS", shell_complete=_complete)


@final
class _Checkpoints(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(
                f"No such command {args[0]!r}. There are {' and '.join(self.commands)}, for"
                f" example `elasticdl checkpoints list {args[0]}`."
            )
        return super().resolve_command(ctx, args)


@click.group(cls=_Checkpoints, context_settings=SETTINGS)
def checkpoints() -> None:
    """List or verify the checkpoints of a job.

    Works on files, so it needs a directory that this machine sees, or the address of copies in an
    object store. For a running job on a cluster without a volume, its name is enough once it has a
    checkpoint. Otherwise name the address of its --checkpoint-dir, or mount its volume and name the
    directory.
    """


@checkpoints.command("list", context_settings=SETTINGS)
@_TARGET
@FORMAT_OPTION
def list_(target: str, form: str) -> None:
    """List the checkpoints of a job, in a directory or at an address, newest first.

    A delta has the rows that were changed since the checkpoint before it. Its size is without the
    files that it shares with the checkpoints before it.
    """
    from elasticdl.checkpoint.inspection import summaries, summaries_of_copies

    location = _location(target)
    listed = summaries_of_copies(location) if isinstance(location, str) else summaries(location)
    if form != Format.TABLE:
        put(render([asdict(summary) for summary in listed], Format(form)))
        return
    if not listed:
        tell(f"there are no checkpoints in {location}")
        return
    for line in progress.table([_COLUMNS, *(_row(summary) for summary in listed)]):
        show(line)


@checkpoints.command("verify", context_settings=SETTINGS)
@_TARGET
@click.argument("version", type=click.IntRange(min=0), required=False)
@FORMAT_OPTION
def verify(target: str, version: int | None, form: str) -> None:
    """Read every byte of all checkpoints, or of one version, and compare the checksums.

    Of a delta it also reads the files of the checkpoints that it is based on.

    The exit code is 1 if a file is damaged or missing. The error names each one.
    """
    from elasticdl.checkpoint.inspection import verify_all, verify_copies

    location = _location(target)
    verifications = (
        verify_copies(location, version)
        if isinstance(location, str)
        else verify_all(location, version)
    )
    if form != Format.TABLE:
        put(render([asdict(verification) for verification in verifications], Format(form)))
    else:
        for verification in verifications:
            show(_verdict(verification))
    if problems := [problem for verification in verifications for problem in verification.problems]:
        raise Corrupted(
            "; ".join(problems),
            hint="restore the files from a copy; --resume uses the newest intact checkpoint",
        )


def _location(target: str) -> Path | str:
    """Return the directory, or the address, of the checkpoints that the user names.

    Raises SpecError for a job on a cluster without a checkpoint in a store, and NoSuchJob.
    """
    if is_address(target):
        from elasticdl.checkpoint import copies

        return target if copies.versions(target) else _copies_of_job(target)
    path = Path(target)
    if path.is_dir() and not JobDirectory(path).spec.exists() and _has_versions(path):
        return path
    with resolve_job(JobQuery(target, "", "", "")) as job:
        if isinstance(job, DirectoryJob):
            return job.directory.checkpoints
        for newest in job.report().status.checkpoints[-1:]:
            if is_address(newest.path):
                return newest.path.rpartition("/")[0]
        raise SpecError(
            f"job {job.name} runs on a cluster, and does not say where its checkpoints are",
            hint=(
                "name the address of its --checkpoint-dir; or mount its volume on this machine and"
                " name the directory of the checkpoints"
            ),
        )


def _copies_of_job(address: str) -> str:
    """Return where the job at an address copies its checkpoints to."""
    from elasticdl.jobdir.small_object import read_object
    from elasticdl.storage.attempts import STARTING

    job = read_object(below(address, "job.json"), STARTING) or {}
    folder = part_of(job, "checkpoint").get("checkpoint_dir")
    return str(folder or below(address, "checkpoints"))


def _has_versions(path: Path) -> bool:
    from elasticdl.checkpoint.layout import has_checkpoint, incomplete_checkpoint

    return has_checkpoint(path) or incomplete_checkpoint(path) is not None


def _row(summary: CheckpointSummary) -> tuple[str, ...]:
    made_by = "ring" if summary.servers == 0 else f"{amount(summary.servers or 0, 'server')}"
    return (
        NOTHING if summary.version is None else str(summary.version),
        NOTHING if summary.made_at is None else progress.age(time.time() - summary.made_at),
        size(summary.bytes),
        _kind(summary),
        NOTHING if summary.servers is None else made_by,
        NOTHING if summary.trained is None else f"{summary.trained:,}",
        f"{summary.path}: {summary.problem}" if summary.problem else summary.path,
    )


def _kind(summary: CheckpointSummary) -> str:
    if summary.base is not None:
        return f"delta {summary.deltas} of {summary.base}"
    return NOTHING if summary.problem else "full"


def _verdict(checked: Verification) -> str:
    verdict = f"{amount(len(checked.problems), 'problem')}" if checked.problems else "intact"
    return f"{checked.path}: {amount(checked.files, 'file')}, {size(checked.bytes)}: {verdict}"
