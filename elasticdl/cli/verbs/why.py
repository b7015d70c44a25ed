"""`why`: explain waits, exits and slow starts of a job, with cause and duration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from elasticdl.cli.job_argument import FORMAT_OPTION, SETTINGS, job_argument
from elasticdl.cli.jobs.job import Diagnosis, Job, JobQuery
from elasticdl.cli.jobs.resolve_job import RULE, resolve_job
from elasticdl.cli.param_types import Lines
from elasticdl.cli.views.console import put, show, tell
from elasticdl.cli.views.documents import Format, render
from elasticdl.formatting import amount, duration, spoken

if TYPE_CHECKING:
    from elasticdl.job_status import Receipt


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@click.option(
    "-n",
    "--lines",
    type=Lines(),
    default=100,
    metavar="N",
    help="Print only the last N lines; 0 prints all. [100]",
)
@FORMAT_OPTION
def why(query: JobQuery, lines: int, form: str) -> None:
    """Explain what happened to a job and what slowed it down.

    Prints a line for each process that failed, with its cause and its successor; for each wait and
    slow start, with its reason and duration; and for each phase of the job. Then come the goodput,
    the share of the workers' time that computed the model, and the longest causes of the rest.
    Works for running and for ended jobs.
    """
    with resolve_job(query) as job:
        report = job.report()
        diagnosis = job.story()
        if form != Format.TABLE:
            all_of_it = report.as_dict()
            head = {key: all_of_it[key] for key in ("job", "place", "namespace", "job_dir")}
            receipt = report.status.receipt
            goodput = asdict(receipt.goodput) if receipt and receipt.goodput else None
            known = {"missing": diagnosis.missing, "goodput": goodput, **diagnosis.story}
            whole = {**head, "state": report.state, **known}
            put(render(whole, Format(form)))
            return
        outcome = report.outcome.removeprefix(f"{report.state}: ")
        ending = f": {outcome}" if outcome not in ("", report.state) else ""
        state = "failed" if report.state == "failed" else f"is {report.state}"
        show(f"{job.name} {state}{ending}")
        for line in (*shown(diagnosis, lines), *_time(report.status.receipt)):
            show(line)
        _tell_missing(job, diagnosis)


def shown(diagnosis: Diagnosis, most: int) -> list[str]:
    """Return the newest `most` entries by time (0: all), and their totals."""
    from elasticdl.history.diagnosis_text import entry_text, frame_lines

    entries = sorted(diagnosis.story["entries"], key=lambda entry: entry["at_s"])
    left_out = int(diagnosis.story["dropped"]) + (max(0, len(entries) - most) if most else 0)
    rows = []
    for entry in entries[-most:] if most else entries:
        rows.append(f"{_clock(entry['at_s']):>9}  {_mark(entry)}{entry_text(entry)}")
        rows += [f"{'':>9}      {line}" for line in frame_lines(entry)]
    head = (
        [f"{'…':>9}  {amount(left_out, 'earlier entry', 'earlier entries')} not shown"]
        if left_out
        else []
    )
    return [*head, *rows, *_in_all(diagnosis.story["totals"])]


def _in_all(totals: Mapping[str, Any]) -> list[str]:
    from elasticdl.history.awaited import awaited_text

    lines = []
    if exits := totals["exits"]:
        lines.append(
            "ended: "
            + ", ".join(
                f"{count:,} {cause.replace('_', ' ')}{_meaning(cause)}"
                for cause, count in sorted(exits.items())
            )
        )
    waited = {awaited_text(what): seconds for what, seconds in totals["waited_s"].items()}
    if waited:
        lines.append(
            "waited: "
            + ", ".join(f"{spoken(seconds)} for {what}" for what, seconds in waited.items())
        )
    recoveries = totals["recoveries"]
    if recoveries["count"]:
        mean, worst = spoken(recoveries["mean_s"]), spoken(recoveries["worst_s"])
        lines.append(
            f"made up for {amount(recoveries['count'], 'loss', 'losses')}: {mean} on average,"
            f" {worst} at most"
        )
    return lines


_MEANINGS = {
    "drained": "left when asked",
    "preempted": "displaced by a pod of higher priority",
    "evicted": "node short of resources or being emptied",
    "not_placed": "not placed on the node that the scheduler chose",
    "node_drained": "node being emptied",
    "fenced": "replaced, then refused",
    "straggler": "far slower than the others, or without progress for long",
    "stranded": "gave up waiting for the master or for servers",
}


def _meaning(cause: str) -> str:
    """What a cause says that its name alone does not, in brackets."""
    return f" ({_MEANINGS[cause]})" if cause in _MEANINGS else ""


def _time(receipt: Receipt | None) -> list[str]:
    if receipt is None or receipt.goodput is None:
        return []
    from elasticdl.cli.views.goodput import cause_lines, goodput_line

    account = receipt.goodput
    return [f"goodput: {goodput_line(account)}", *(f"  {line}" for line in cause_lines(account))]


def _mark(entry: Mapping[str, Any]) -> str:
    return "! " if entry["level"] in ("warning", "error") else "  "


def _clock(at_s: float) -> str:
    """Format the time since the job began: `7.3 s`, `3:07`, `2:03:07`."""
    return f"{at_s:.1f} s" if at_s < 60 else duration(at_s)


def _tell_missing(job: Job, diagnosis: Diagnosis) -> None:
    if diagnosis.missing:
        tell(f"not available for {job.name}: {diagnosis.missing}")
