"""Read what is known of the previous run of a resumed job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from elasticdl.errors import Corrupted
from elasticdl.job_status import UpdateCounts
from elasticdl.jobdir.last_status import last_measured, newest_status
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.master.core.data.resuming import RunBefore, counts_of, repeated_at_least
from elasticdl.master.journal.recovery import last_start


def run_before(directory: JobDirectory) -> RunBefore:
    """Return facts about a killed or ended training in the directory; empty if unknown.

    A run that was killed before it wrote a status is known by the ledger that it started with.
    """
    started, since_s = dict[int, tuple[int, int]](), None
    known = RunBefore({})
    with suppress(OSError, Corrupted):
        if (start := last_start(directory.journal)) is not None:
            started, since_s = counts_of(start.ledger), start.at_s
            at_least = repeated_at_least(start.ledger)
            known = replace(known, sources=start.training, at_least=at_least)
    counts, trained, updates = dict[int, tuple[int, int]](), 0, None
    with suppress(OSError, ValueError):
        status = newest_status(directory)
        # An earlier status describes the run before: that run's records are in `started`.
        if status.receipt is not None and (since_s is None or status.at_s >= since_s):
            counts = {row.epoch: (row.trained, row.repeated) for row in status.receipt.epochs}
            # The status may leave out epochs; the total has them.
            trained, since_s = status.receipt.total.trained, status.at_s
            updates = status.updates
            known = replace(known, at_least=known.at_least or status.receipt.repeated_at_least)
    if not counts:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            receipt = json.loads(directory.receipt.read_text(encoding="utf-8"))
            updates = UpdateCounts(**receipt["updates"]) if receipt.get("updates") else None
            at_least = known.at_least or bool(receipt.get("repeated_at_least"))
            counts = {**started, **_counts(receipt)}
            return replace(known, counts=counts, updates=updates, at_least=at_least)
    if since_s is None:
        return known
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        # A loss row is written within a second, so the status is older. Rows before it may belong
        # to other runs.
        rows = [row for row in last_measured(directory) if float(row["at_s"]) >= since_s]
        trained = max([trained, *(int(row["records"]) for row in rows)])
    # The later ones may lack epochs.
    counted = {**started, **counts}
    return replace(known, counts=counted, trained=trained, killed=True, updates=updates)


def _counts(receipt: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    return {
        int(row["epoch"]): (int(row["trained"]), int(row["repeated"])) for row in receipt["epochs"]
    }
