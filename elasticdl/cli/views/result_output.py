"""Tells how a job ended: results on stdout; what went wrong, and what to do, on stderr."""

from __future__ import annotations

import sys

import click

from elasticdl.cli.jobs.outcome import Outcome, summary
from elasticdl.cli.views.console import silence, tell
from elasticdl.cli.views.documents import Format, render
from elasticdl.errors import ExitCode

_TITLES: dict[int, str] = {ExitCode.INTERRUPTED: "Stopped", ExitCode.DONE: "Warning"}


def tell_end(outcome: Outcome, form: Format) -> None:
    """The same for a job on this machine and for one on a cluster."""
    if outcome.exit_code != ExitCode.DONE or outcome.hint:
        tell(
            f"{_TITLES.get(outcome.exit_code, 'Error')}:"
            f" {outcome.message.removeprefix('stopped: ')}"
        )
        if outcome.hint:
            tell(f"Hint: {outcome.hint}")
    text = (
        "\n".join(summary(outcome)) + "\n"
        if form is Format.TABLE
        else render(outcome.as_dict(), form)
    )
    try:
        click.echo(text, nl=False)
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)  # nobody reads how it ended: the exit code still says it
