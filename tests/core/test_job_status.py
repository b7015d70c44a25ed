"""The JSON of a job's status: one value on both ends of each channel."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from elasticdl.job_status import (
    NO_RECORDS,
    CheckpointStatus,
    JobStatus,
    RingStatus,
    RoundStatus,
    ShardCounts,
    StallStatus,
    unknown_status,
)
from tests.statuses import epoch, process, receipt

pytestmark = pytest.mark.core


def full() -> JobStatus:
    return replace(
        unknown_status("training"),
        action="train",
        phase="working",
        at_s=12.5,
        records=replace(NO_RECORDS, expected=64, trained=16, left=48),
        records_per_s=4.0,
        shards={"training": ShardCounts(1, 2, 3, 4)},
        processes=(process("worker-0", where="pid 7", shard="half \ud83d"), process("ps-0")),
        gauges={"worker-0": {"rss_bytes": 1.0}},
        loss=0.25,
        metrics={"auc": 0.5},
        rounds=(RoundStatus(1, 8, 0, "done", {"auc": 0.5}),),
        checkpoints=(CheckpointStatus(8, "checkpoints/version-8", 9, 3.0),),
        waiting=("for room",),
        receipt=receipt(epoch(0, 64, 16), expected=64, trained=16),
        ring=RingStatus(2, 2, ("worker-0",), "fine"),
        stall=StallStatus(1.0, 2.0, "a step", ("worker-0",), 1.0, "", ""),
        ends={"worker": {"preempted": 1}},
        dropped={"ended_process": 2},
    )


@pytest.mark.parametrize("status", [full(), unknown_status("its master is starting")])
def test_a_status_comes_back_from_its_json(status: JobStatus) -> None:
    assert JobStatus.from_json(json.loads(json.dumps(status.to_json()))) == status


def test_a_value_that_is_no_finite_number_is_null_and_comes_back_as_unknown() -> None:
    values = {"auc": math.inf, "mae": math.nan, "mse": 0.5}
    rounds = (RoundStatus(1, 8, 0, "done", dict(values)),)
    status = replace(full(), loss=math.nan, metrics=dict(values), rounds=rounds)
    again = JobStatus.from_json(json.loads(json.dumps(status.to_json(), allow_nan=False)))
    known = {"auc": None, "mae": None, "mse": 0.5}
    assert (again.loss, again.metrics, again.rounds[0].values) == (None, known, known)
    assert again.to_json() == status.to_json()


def test_what_is_not_known_is_null() -> None:
    plain: Any = unknown_status("").to_json()
    for name in ("action", "phase", "loss", "receipt", "outcome", "exit_code", "ring", "stall"):
        assert plain[name] is None, name
    row: Any = full().to_json()["processes"]
    assert row[1]["where"] is row[1]["cause"] is row[1]["shard"] is None


def test_an_older_reader_ignores_the_fields_of_a_newer_master() -> None:
    plain: Any = full().to_json()
    plain["new"] = {"a": 1}
    plain["processes"][0]["new"] = 1
    plain["receipt"]["new"] = 1
    assert JobStatus.from_json(plain) == full()


def test_a_newer_reader_names_what_an_older_master_did_not_send() -> None:
    plain: Any = full().to_json()
    del plain["dropped"], plain["processes"][1]["evaluated"]
    plain["epochs"] = "many"
    with pytest.raises(ValueError, match=r"^not a job status of this version: ") as caught:
        JobStatus.from_json(plain)
    for words in ("dropped: Field required", "processes.1.evaluated: Field required", "epochs: "):
        assert words in str(caught.value)


@pytest.mark.parametrize("value", [None, [], 3, "status", {}])
def test_what_is_no_status_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match="not a job status of this version"):
        JobStatus.from_json(value)


def test_the_time_left_is_of_the_records_that_are_to_come() -> None:
    assert full().eta_s == 12.0
    assert replace(full(), records_per_s=0.0).eta_s is None
    assert replace(full(), exit_code=0).eta_s is None
    assert replace(full(), receipt=receipt(why_left="stopped")).eta_s is None
