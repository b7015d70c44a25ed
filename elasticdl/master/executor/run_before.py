"""Read what is known of the previous run of a resumed job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from elasticdl.jobdir.last_status import last_measured, newest_status
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.master.core.data.resuming import RunBefore


def run_before(directory: JobDirectory) -> RunBefore:
    """Return facts about a killed or ended training in the directory; empty if unknown."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        status = newest_status(directory)
        since_s, epochs = status.at_s, status.receipt.epochs if status.receipt else ()
        counts = {row.epoch: (row.trained, row.repeated) for row in epochs}
        # A loss row is written within a second, so the status is older. Rows before it may belong
        # to other runs.
        rows = [row for row in last_measured(directory) if float(row["at_s"]) >= since_s]
        return RunBefore(counts, max((int(row["records"]) for row in rows), default=0), killed=True)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        return RunBefore(_counts(json.loads(directory.receipt.read_text(encoding="utf-8"))))
    return RunBefore({})


def _counts(receipt: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    return {
        int(row["epoch"]): (int(row["trained"]), int(row["repeated"])) for row in receipt["epochs"]
    }
