"""Print how a job ended: results on stdout; problems and next steps on stderr."""

from __future__ import annotations

import sys

import click

from elasticdl.cli.views.console import silence, tell
from elasticdl.cli.views.documents import Format, render
from elasticdl.cli.views.progress import named_values
from elasticdl.errors import ExitCode
from elasticdl.formatting import amount, done_word
from elasticdl.jobdir.outcome import Outcome

_RARE = ("bad", "left")
"""Fields of a receipt that are shown only if they are not zero."""
_TITLES: dict[int, str] = {ExitCode.INTERRUPTED: "Stopped", ExitCode.DONE: "Warning"}


def tell_end(outcome: Outcome, form: Format) -> None:
    """Print a job's end, local or on a cluster."""
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
        else render(outcome.to_json(), form)
    )
    try:
        click.echo(text, nl=False)
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)  # The reader closed the output; the exit code still tells the result.


def summary(outcome: Outcome) -> list[str]:
    """Return the receipt, the final metrics and the outputs, one per line."""
    total = outcome.receipt.get("total") or {}
    lines = []
    if total:
        done = done_word(outcome.action)
        named = {
            key: {"trained": done, "left": f"not {done}"}.get(key, key)
            for key in total
            if total[key] or key not in _RARE
        }
        counted = (
            f"  (counted {outcome.receipt['counted']})" if outcome.receipt.get("counted") else ""
        )
        bound = {"repeated": "at least "} if outcome.receipt.get("repeated_at_least") else {}
        lines.append(
            "records  "
            + "  ".join(f"{word} {bound.get(key, '')}{total[key]}" for key, word in named.items())
            + counted
        )
    why = str(outcome.receipt.get("why_left") or "").partition("\n")[0]
    if why and why != outcome.message.partition("\n")[0]:
        lines.append(f"left     {amount(total.get('left', 0), 'record')}: {why}")
    if values := named_values(outcome.loss, outcome.metrics):
        lines.append(
            "metrics  " + "  ".join(f"{name} {value:.6g}" for name, value in values.items())
        )
    if outcome.output:
        lines.append(f"output   {outcome.output}")
    lines.append(f"job      {outcome.job_dir}")
    return lines
