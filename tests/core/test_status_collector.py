"""Curves of a running job out of its status."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticdl.clock import ManualClock
from elasticdl.errors import ExitCode
from elasticdl.history.lines import JsonLines
from elasticdl.history.series import MOST_LABELS
from elasticdl.job_status import (
    NO_RECORDS,
    CheckpointStatus,
    JobStatus,
    ScaleStatus,
    unknown_status,
)
from elasticdl.jobdir.last_status import cut_short, last_seen_s, status_when_killed
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.master.core.data.resuming import RunBefore
from elasticdl.master.executor.run_before import run_before
from elasticdl.master.status.collector import Collector, MetricsLog
from tests.statuses import epoch, process, receipt

pytestmark = pytest.mark.core


def status(at_s: float, version: int = 0, workers: int = 1, **more: Any) -> JobStatus:
    gauges = {"records_per_s": 10.0, "staleness_mean": 0.5, "pull_ms": 2.0, "push_ms": 4.0}
    known: dict[str, Any] = {
        "at_s": at_s,
        "records": replace(NO_RECORDS, trained=int(at_s * 10)),
        "scale": ScaleStatus(1, workers, workers, workers),
        "version": version,
        "records_per_s": 10.0 * workers,
        "gauges": {
            **{f"worker-{index}": gauges for index in range(workers)},
            "ps-0": {"pull_ms": 1.0},
        },
    }
    return replace(unknown_status(""), **{**known, **more})


@pytest.fixture
def collector(tmp_path: Path) -> Collector:
    return Collector(tmp_path / "series.json", ManualClock())


def values(collector: Collector, name: str, label: str = "") -> list[float | None]:
    return next(
        one["values"] for one in collector.as_list() if (one["name"], one["label"]) == (name, label)
    )


def test_each_look_is_a_point_of_each_curve_in_its_unit(collector: Collector) -> None:
    for second in range(3):
        collector.look(status(float(second), version=5 * second, workers=2))
    assert values(collector, "workers") == [2.0, 2.0, 2.0]
    assert values(collector, "records_per_s") == [20.0, 20.0, 20.0]
    assert (
        values(collector, "pull_s", "worker-1") == [0.002] * 3
        and values(collector, "push_s", "worker-1") == [0.004] * 3
    )
    assert values(collector, "staleness", "worker-0") == [0.5] * 3
    assert values(collector, "updates_per_s") == [0.0, 5.0, 5.0]
    assert {one["label"] for one in collector.as_list() if one["name"] == "pull_s"} == {
        "worker-0",
        "worker-1",
    }, "workers only"
    assert {sample.at_s for sample in collector.newest} == {2.0} and collector.looks == 3


def test_updates_come_in_jumps_and_a_version_that_falls_back_is_no_negative_rate(
    collector: Collector,
) -> None:
    for second in range(30):
        collector.look(status(float(second), version=20 * (second // 2)))
    assert values(collector, "updates_per_s")[-1] == pytest.approx(10.0)
    collector.look(status(30.0, version=3))
    assert values(collector, "updates_per_s")[-1] == 0.0


def test_what_goes_into_metrics_jsonl_is_a_point_at_once_and_news_at_the_next_look(
    tmp_path: Path, collector: Collector
) -> None:
    log = MetricsLog(JsonLines(tmp_path / "metrics.jsonl"), collector)
    log.append({"at_s": 1.0, "kind": "training", "records": 10, "values": {"loss": math.inf}})
    log.append(
        {"at_s": 1.5, "kind": "evaluation", "records": 15, "values": {"auc": 0.5, "loss": 0.25}}
    )
    log.close()
    assert values(collector, "loss") == [None] and values(collector, "metric", "auc") == [0.5]
    news = [
        sample.as_dict()
        for sample in collector.look(status(2.0))
        if sample.name in ("loss", "metric")
    ]
    assert [(curve["name"], curve["label"], curve["value"]) for curve in news] == [
        ("loss", "", None),
        ("metric", "auc", 0.5),
        ("metric", "loss", 0.25),
    ]
    assert not [
        sample for sample in collector.look(status(3.0)) if sample.name in ("loss", "metric")
    ]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_thousand_workers_are_sixty_four_curves_and_news_of_those_only(
    collector: Collector,
) -> None:
    for second in range(5):
        news = collector.look(status(float(second), workers=1_000))
    assert len([one for one in collector.as_list() if one["name"] == "staleness"]) == MOST_LABELS
    assert len([sample for sample in news if sample.name == "staleness"]) == MOST_LABELS


def test_curves_are_saved_now_and_then_and_the_next_master_continues_with_them(
    tmp_path: Path,
) -> None:
    path, clock = tmp_path / "series.json", ManualClock()
    collector = Collector(path, clock)
    collector.look(status(1.0))
    asyncio.run(collector.save_if_due())
    assert not path.exists()
    clock.advance(10.0)
    asyncio.run(collector.save_if_due())
    assert json.loads(path.read_text()) == collector.as_list()
    again = Collector(path, clock)
    again.look(status(60.0))
    (workers,) = [one for one in again.as_list() if one["name"] == "workers"]
    assert [
        at_s
        for at_s, value in zip(workers["at_s"], workers["values"], strict=True)
        if value is not None
    ] == [1.0, 60.0]


def test_counts_are_saved_with_a_new_checkpoint_whose_job_may_be_killed(tmp_path: Path) -> None:
    clock, newest = ManualClock(), tmp_path / "newest.json"
    collector = Collector(tmp_path / "series.json", clock, newest)
    saved = CheckpointStatus(version=7, path="x", bytes=1, at_s=12.0)
    looks = [status(10.0), status(11.0), status(12.0, checkpoints=(saved,))]
    trained = []
    for look in looks:
        clock.advance(look.at_s - clock.now_s())
        collector.look(look)
        asyncio.run(collector.save_if_due())
        trained.append(json.loads(newest.read_text())["status"]["records"]["trained"])
    assert trained == [100, 100, 120]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "{}",
        '[{"name": "loss"}]',
        '[{"name": "loss", "label": "", "unit": "", "at_s": [1], "records": [], "values": []}]',
    ],
)
def test_curves_that_cannot_be_read_are_started_over(tmp_path: Path, content: str) -> None:
    path = tmp_path / "series.json"
    path.write_text(content)
    assert Collector(path, ManualClock()).as_list() == []


def test_a_disk_that_refuses_the_curves_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector(tmp_path / "away" / "series.json", ManualClock())
    collector.look(status(1.0))
    collector.save()
    assert "cannot save the curves" in caplog.text


def test_a_master_that_continues_after_a_while_leaves_a_gap_in_the_curves(tmp_path: Path) -> None:
    first = Collector(tmp_path / "series.json", ManualClock())
    for second in range(3):
        first.look(status(float(second)))
    first.save()
    soon, late = (Collector(tmp_path / "series.json", ManualClock()) for _ in range(2))
    soon.look(status(5.0))
    late.look(status(3_600.0))
    late.look(status(3_601.0))
    assert values(soon, "workers") == [1.0] * 4
    assert values(late, "workers") == [1.0, 1.0, 1.0, None, 1.0, 1.0]


def test_the_status_is_written_down_now_and_then_for_a_master_that_is_killed(
    tmp_path: Path,
) -> None:
    directory, clock = JobDirectory(tmp_path), ManualClock()
    assert status_when_killed(directory, "killed") is None
    collector = Collector(directory.series, clock, directory.newest)
    rows = (
        process("worker-0", shard="3"),
        process("worker-1", "ended", message="x"),
        process("worker-2", "stopping", message="enough"),
    )
    counted = receipt(expected=900, trained=100)
    collector.look(
        status(10.0, processes=rows, receipt=counted, loss=math.nan, waiting=("for room",))
    )
    clock.advance(10.0)
    asyncio.run(collector.save_if_due())
    stopped = status_when_killed(directory, "ended at once", ExitCode.INTERRUPTED)
    assert stopped is not None and stopped.exit_code == 130
    found = status_when_killed(directory, "killed")
    assert found is not None and found.receipt is not None and found.exit_code == 1
    assert found.records.trained == 100
    assert found.receipt.why_left == "killed"
    assert found.receipt.counted == "at 10 s of the job, some seconds before its master was killed"
    assert (found.phase, found.waiting, found.records_per_s) == ("ended", (), 0.0)
    assert found.loss is None, "JSON has no NaN"
    assert [(row.state, row.message) for row in found.processes] == [
        ("ended", "killed with its master"),
        ("ended", "x"),
        ("ended", "killed with its master (enough)"),
    ]
    directory.newest.write_text('{"status": {"records": 1}}')
    assert status_when_killed(directory, "killed") is None


def test_a_job_that_is_over_or_ends_early_has_no_time_left() -> None:
    found = status(
        10.0,
        records=replace(NO_RECORDS, expected=1000, trained=400, left=600),
        phase="working",
        receipt=receipt(),
    )
    assert found.eta_s == 60.0
    assert replace(found, exit_code=130, phase="draining").eta_s is None
    early = receipt(why_left="training ended early: enough")
    assert replace(found, receipt=early).eta_s is None


def test_what_a_run_before_trained_is_known_from_the_status_it_wrote_down_or_from_its_receipt(
    tmp_path: Path,
) -> None:
    directory = JobDirectory(tmp_path)
    assert run_before(directory) == RunBefore({})
    counted = receipt(epoch(0, 64, 64, repeated=3), epoch(1, 64, 10))
    directory.receipt.write_text(json.dumps(counted.to_json()))
    assert run_before(directory) == RunBefore({0: (64, 3), 1: (10, 0)})
    newest = status(9.0, receipt=receipt(epoch(0, 64, 5, repeated=1)))
    directory.newest.write_text(json.dumps({"status": newest.to_json()}))
    assert run_before(directory) == RunBefore({0: (5, 1)}, killed=True)
    directory.metrics.write_text(json.dumps({"at_s": 8.0, "records": 99}) + "\n")
    assert run_before(directory).trained == 0, "it may be of a run before that one"
    directory.metrics.write_text(json.dumps({"at_s": 10.0, "records": 7}) + "\n")
    assert run_before(directory) == RunBefore({0: (5, 1)}, 7, killed=True)


def test_a_master_that_announced_nothing_for_long_was_heard_of_all_the_same(tmp_path: Path) -> None:
    """It was said to have been away since its last event: an hour of undisturbed training long."""
    directory = JobDirectory(tmp_path)
    assert last_seen_s(directory) == 0.0
    directory.metrics.write_text(json.dumps({"at_s": 3_600.0, "records": 7}) + "\n")
    assert last_seen_s(directory) == 3_600.0
    newest = status(3_602.5).to_json()
    directory.newest.write_text(json.dumps({"status": newest}))
    assert last_seen_s(directory) == 3_602.5
    odd = [json.dumps({"status": {**newest, "at_s": at_s}}) for at_s in (None, math.nan)]
    for broken in ("{", "[]", '{"status": {"at_s": 3602.5}}', *odd):
        directory.newest.write_text(broken)
        assert last_seen_s(directory) == 3_600.0


def test_nothing_moves_in_the_status_of_a_job_that_was_ended_at_once() -> None:
    rows = (
        process("worker-0", "stopping", shard="3", message="stopping the job: elasticdl stop"),
        process("worker-1", "ended", message="finished"),
    )
    found = cut_short(
        status(
            9.0,
            processes=rows,
            waiting=("x",),
            phase="draining",
            states={"worker": {"stopping": 2}},
        ),
        "stopped: elasticdl stop",
        130,
        "it went, too",
    )
    assert (found.phase, found.exit_code, found.message) == (
        "ended",
        130,
        "stopped: elasticdl stop",
    )
    assert (found.records_per_s, found.gauges, found.waiting) == (0.0, {}, ())
    assert (found.states, found.processes_left_out) == ({}, 0)
    assert [(row.state, row.message) for row in found.processes] == [
        ("ended", "it went, too (stopping the job: elasticdl stop)"),
        ("ended", "finished"),
    ]
