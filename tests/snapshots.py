"""Snapshots of jobs, as the page and the report embed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from elasticdl.history.job_event import JobEvent
from elasticdl.history.snapshot import About, Record, StatusReading
from elasticdl.history.snapshot import snapshot as made
from elasticdl.history.timeline import Bar, Generation, TimelineEvent
from elasticdl.job_status import (
    ProcessStatus,
    RecordCounts,
    ScaleStatus,
    ShardCounts,
    unknown_status,
)
from tests import statuses

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'\u202egpj.exe"
NOW_S = 61.0
LOSS = {
    "name": "loss",
    "label": "",
    "unit": "",
    "at_s": [1.0, 2.0, 3.0],
    "records": [10, 20, 30],
    "values": [0.5, None, 0.25],
}


def process(name: str, state: str = "ready", **changes: Any) -> ProcessStatus:
    usual = {"since_s": 3.0, "started_s": 0.5, "where": "node-1", "records": 10}
    return statuses.process(name, state, **{**usual, **changes})


ROWS = (
    process("ps-0"),
    process("worker-0"),
    process("worker-1", "ended", cause="out_of_memory", message="out of memory at 1.0 of 1.0 GiB"),
)


def bar(row: ProcessStatus) -> dict[str, Any]:
    """Return the row's bar on the timeline, ready after 2 s."""
    known = Bar(row.name, row.role, row.started_s, state=row.state, text=row.message)
    known.cause, known.where = row.cause or "", row.where or ""
    known.ready_s = 2.0 if row.state in ("ready", "ended") else None
    known.ended_s = row.since_s if row.state == "ended" else None
    return asdict(known)


def snapshot(
    rows: Sequence[ProcessStatus] = ROWS,
    *,
    name: str = "digits",
    shards: int = 40,
    text: str = "worker-0 is started",
    series: Sequence[dict[str, Any]] = (LOSS,),
    **changes: Any,
) -> dict[str, Any]:
    """Return the snapshot of a job that trains; `changes` are fields of its status.

    `text` is that of its only event and of a bad record.
    """
    records = RecordCounts(6000, 1234, 7, 0, 0, 4766, resumed=0, undone=0)
    epoch = statuses.epoch(0, 6000, 1234)
    gauges = {"records_per_s": 10.3, "cpu_cores": 0.5, "rss_bytes": 3.0 * 2**20}
    usual = {
        "action": "train",
        "phase": "working",
        "at_s": NOW_S,
        "epochs": 2,
        "version": 77,
        "records": records,
        "records_per_s": 20.5,
        "shards": {"training": ShardCounts(shards - 3, 2, 1, 0)},
        "scale": ScaleStatus(1, 3, 2, 2),
        "processes": tuple(rows),
        "gauges": {row.name: gauges for row in rows},
        "loss": 0.25,
        "metrics": {"accuracy": 0.5},
        "bad_examples": (text,),
        "receipt": statuses.receipt(epoch, expected=6000, trained=1234),
    }
    status = replace(unknown_status("training, epoch 1 of 2"), **{**usual, **changes})
    about = About(name, "train", "ParameterServerStrategy", 0.0, "1")
    timeline = {
        "now_s": NOW_S,
        "bars": [bar(row) for row in rows],
        "generations": [asdict(Generation(1, 3.0, ("worker-0",), "1 worker is ready"))],
        "marks": [asdict(TimelineEvent(9.0, "checkpoint", "checkpoint of version 5 saved"))],
    }
    record = Record([JobEvent(0, 0.0, 1.0, "process", text)], 0, timeline, {}, 0.0)
    return made(StatusReading(about, status, "running", NOW_S), record, series)
