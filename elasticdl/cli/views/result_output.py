"""Print how a job ended: results on stdout; problems and next steps on stderr."""

from __future__ import annotations

import sys

from elasticdl.cli.views.console import one_line, put, show, silence, tell
from elasticdl.cli.views.documents import Format, render
from elasticdl.cli.views.goodput import goodput_line
from elasticdl.cli.views.progress import named_values, update_words
from elasticdl.errors import ExitCode
from elasticdl.formatting import amount, done_word
from elasticdl.job_status import Goodput, UpdateCounts
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
    try:
        if form is Format.TABLE:
            show("\n".join(summary(outcome)))
        else:
            put(render(outcome.to_json(), form))
    except BrokenPipeError:
        silence(sys.stdout)  # The reader closed the output; the exit code still tells the result.


def summary(outcome: Outcome) -> list[str]:
    """Return the receipt, the final metrics and the outputs, one per line."""
    total = outcome.receipt.get("total") or {}
    lines = []
    if total:
        done = done_word(outcome.action)
        counts = {
            key: {"trained": done, "left": f"not {done}"}.get(key, key)
            for key in total
            if total[key] or key not in _RARE
        }
        counted = (
            f"  (counted {outcome.receipt['counted']})" if outcome.receipt.get("counted") else ""
        )
        least = total.get("repeated") and outcome.receipt.get("repeated_at_least")
        bound = {"repeated": "at least "} if least else {}
        lines.append(
            "records  "
            + "  ".join(f"{word} {bound.get(key, '')}{total[key]}" for key, word in counts.items())
            + counted
        )
    if updates := outcome.receipt.get("updates"):
        lines.append(f"updates  {update_words(UpdateCounts(**updates))}")
    if outcome.receipt.get("goodput"):
        lines.append(f"goodput  {goodput_line(Goodput.from_json(outcome.receipt['goodput']))}")
    why = str(outcome.receipt.get("why_left") or "").partition("\n")[0]
    if why and not outcome.message.startswith(why):
        lines.append(f"left     {amount(total.get('left', 0), 'record')}: {why}")
    if values := named_values(outcome.loss, outcome.metrics, 6):
        lines.append("metrics  " + "  ".join(values))
    if outcome.output:
        lines.append(f"output   {one_line(outcome.output)}")
    lines.append(f"job      {one_line(outcome.job_dir)}")
    return lines
