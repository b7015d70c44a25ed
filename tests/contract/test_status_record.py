"""The record over the page's port: as `why` and `report` of a job on a cluster read it, and as
Prometheus scrapes it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from elasticdl.cli.jobs.master_http import get_json
from elasticdl.cluster.base import ExitStatus
from elasticdl.errors import PermanentError, TransientError
from elasticdl.history.diagnosis_text import entry_text
from elasticdl.history.snapshot import record_in, series_in
from elasticdl.page import render_report
from tests.contract.status_stage import (
    BEARER,
    PS,
    TOKEN,
    Page,
    Stage,
    browser,
    paged,
    staged,
    worker,
)
from tests.waiting import until_async

pytestmark = [pytest.mark.contract, pytest.mark.timeout(60)]


async def with_a_kill(stage: Stage) -> int:
    """Two workers train, one of them is killed, another replaces it.

    The shard that it was at.
    """
    await until_async("all processes run", lambda: len(stage.fake.live) >= 3)
    await stage.attach(PS, worker(0), worker(1))
    shard = await stage.lease(worker(0))
    await stage.report(worker(0), shard, 32, loss=0.5)
    stage.fake.exit(worker(0), ExitStatus(signal=9))
    await until_async(
        "a worker's end is told with who replaces it",
        lambda: (
            stage.watched.reading().status.ends.get("worker") and exits(stage)[0]["replaced_by"]
        ),
    )
    return shard


def exits(stage: Stage) -> list[dict[str, Any]]:
    return [
        entry for entry in stage.chronicle.story.as_dict()["entries"] if entry["what"] == "exit"
    ]


async def test_the_page_gives_the_same_story_as_the_directory_and_a_report_is_made_from_it(
    page: Page, tmp_path: Path
) -> None:
    stage, _ = page
    shard = await with_a_kill(stage)
    url = f"{stage.url}/#token={TOKEN}"
    found = await asyncio.to_thread(get_json, url, "/api/v1/snapshot")
    (loss,) = [entry for entry in found["story"]["entries"] if entry["what"] == "exit"]
    killed = f"worker-0 killed by signal 9 (SIGKILL), on shard {shard}; 32 records done"
    assert entry_text(loss) == f"{killed}; {loss['replaced_by']} replaces it"
    written = record_in(tmp_path)
    assert [event.as_dict() for event in written.events][: len(found["events"])] == found["events"]
    assert [entry["text"] for entry in written.story["entries"]] == [
        entry["text"] for entry in found["story"]["entries"]
    ]
    assert found["logs"] == []
    for name in (worker(1), worker(0)):
        (tmp_path / "logs").mkdir(exist_ok=True)
        (tmp_path / f"logs/{name}.log").write_text(f"the last words of {name} <b>")
    whole = await asyncio.to_thread(get_json, url, "/api/v1/snapshot?logs=1")
    assert [log["process"] for log in whole["logs"]] == ["worker-0", "worker-1"], (
        "the one that was killed comes first"
    )
    report = render_report(whole)
    assert (
        "killed by signal 9 (SIGKILL)" in report
        and "the last words of worker-0 \\u003cb>" in report
    )


async def test_a_page_without_the_token_and_one_that_is_gone_are_reported_in_words(
    tmp_path: Path,
) -> None:
    addresses = []

    async with staged(tmp_path) as stage:
        addresses.append(stage.url)
        with pytest.raises(PermanentError, match="token is missing or wrong"):
            await asyncio.to_thread(get_json, f"{stage.url}/#token=no", "/api/v1/snapshot")
    with pytest.raises(TransientError, match="cannot reach the master's page"):
        get_json(f"{addresses[0]}/#token={TOKEN}", "/api/v1/snapshot")


async def test_a_scrape_is_read_by_the_parser_of_prometheus_and_agrees_with_the_status(
    page: Page,
) -> None:
    stage, session = page
    await with_a_kill(stage)
    while True:
        before = stage.watched.reading()
        async with session.get("/metrics") as answer:
            assert (
                answer.status == 200
                and answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            )
            text = await answer.text()
        if stage.watched.reading() is before:
            break
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (trained,) = families["elasticdl_records_trained"].samples
    assert (trained.value, trained.labels) == (before.status.records.trained, {"job": "iris"})
    ends = {
        tuple(sorted(sample.labels.items())): sample.value
        for sample in families["elasticdl_process_ends"].samples
    }
    assert ends == {(("cause", "infrastructure"), ("job", "iris"), ("role", "worker")): 1.0}
    async with browser(stage) as nobody, nobody.get("/metrics") as answer:
        assert answer.status == 401


async def test_curves_are_sampled_and_what_a_master_leaves_is_what_it_had(tmp_path: Path) -> None:
    curves = []

    async with paged(tmp_path) as (stage, session):
        await with_a_kill(stage)
        looks = stage.collector.looks
        await until_async("it looked twice", lambda: stage.collector.looks >= looks + 2)
        async with session.get("/api/v1/series", headers=BEARER) as answer:
            curves.extend(await answer.json())
    names = {curve["name"] for curve in curves}
    assert {"loss", "workers", "records_per_s", "updates_per_s"} <= names
    (loss,) = [curve for curve in curves if curve["name"] == "loss"]
    assert (loss["values"], loss["records"]) == ([0.5], [32])
    saved = {(one["name"], one["label"]): one for one in series_in(tmp_path)}
    assert {(curve["name"], curve["label"]) for curve in curves} <= set(saved)
    json.dumps(list(saved.values()), allow_nan=False)


def test_without_saved_curves_loss_and_metrics_come_from_metrics_jsonl(tmp_path: Path) -> None:
    rows = [
        {
            "at": 1.0,
            "at_s": 1.0,
            "kind": "training",
            "version": 1,
            "records": 16,
            "values": {"loss": float("nan")},
        },
        {
            "at": 3.0,
            "at_s": 3.0,
            "kind": "training",
            "version": 2,
            "records": 32,
            "values": {"loss": 0.25, "workers": 2},
        },
        {
            "at": 4.0,
            "at_s": 4.0,
            "kind": "evaluation",
            "version": 2,
            "records": 32,
            "values": {"auc": 0.75},
        },
        {
            "at": 5.0,
            "at_s": 5.0,
            "kind": "history",
            "records": 32,
            "values": {},
            "details": {"dropped": 3},
        },
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {
        (one["name"], one["label"]): (one["at_s"], one["records"], one["values"])
        for one in series_in(tmp_path)
    }
    assert found == {
        ("loss", ""): ([1.0, 3.0], [16, 32], [None, 0.25]),
        ("metric", "auc"): ([4.0], [32], [0.75]),
    }
