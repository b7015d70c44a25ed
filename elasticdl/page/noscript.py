"""What a browser without script shows of a job: how it stands, and where to read the rest."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from elasticdl.formatting import percent
from elasticdl.job_status import JobStatus
from elasticdl.page.markup import Child, Html, el


def summary(snapshot: Mapping[str, Any], *, live: bool) -> Html:
    """Return name, state, records, outcome and next step of a job.

    Raises ValueError for a status of another version.
    """
    job, status = snapshot["job"], JobStatus.from_json(snapshot["status"])
    records, outcome = status.records, snapshot["outcome"]
    state, share = snapshot["status"]["state"], percent(records.trained, records.expected)
    done = f": {records.trained:,} of {records.expected:,} records, {share}"
    more = " Reload the page for news." if live and outcome is None else ""
    return el(
        "noscript",
        el(
            "main",
            el("p", "ElasticDL", class_="brand"),
            el("h1", job["name"]),
            el("p", state + done if records.expected else state),
            el("p", status.message) if outcome is None else _end(outcome),
            el("p", "Curves and tables need JavaScript. ", el("code", _command(job)),
               f" shows the job in a terminal.{more}"),
            class_="summary",
        ),
    )  # fmt: skip


def _end(outcome: Mapping[str, Any]) -> Child:
    return [
        el("pre", outcome["message"]),
        el("p", f"What to do: {outcome['hint']}") if outcome["hint"] else None,
    ]


def _command(job: Mapping[str, Any]) -> str:
    return f"elasticdl status {shlex.quote(job['name'])}"
