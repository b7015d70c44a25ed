"""What the page's server answers: status, snapshot, shards, logs, actions."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from elasticdl.cluster.base import ProcessName
from elasticdl.history.event_log import EventLog
from elasticdl.job_status import JobStatus
from elasticdl.master.core.data.shard_list import ShardState
from tests.contract.status_stage import PS, Page, Stage, browser, paged, staged, worker
from tests.waiting import until_async

pytestmark = [pytest.mark.contract, pytest.mark.timeout(60)]


async def read(session: aiohttp.ClientSession, path: str, expected: int = 200) -> Any:
    async with session.get(path) as answer:
        assert answer.status == expected, await answer.text()
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        return await answer.json()


async def ask(
    session: aiohttp.ClientSession, verb: str, body: object, expected: int = 202
) -> dict[str, object]:
    async with session.post(f"/api/v1/{verb}", json=body) as answer:
        found = await answer.json()
        assert answer.status == expected, found
        return dict(found)


async def test_the_status_is_the_masters_with_what_a_head_of_a_page_needs(page: Page) -> None:
    stage, session = page
    found = await read(session, "/api/v1/status")
    assert (found["job"], found["strategy"], found["phase"]) == (
        "iris",
        "ParameterServerStrategy",
        "working",
    )
    assert (
        found["state"] == "waiting for workers"
        and found["eta_s"] is None
        and found["cluster_view_age_s"] is None
    )
    assert found["records"]["expected"] == 6400 and found["now"] >= found["started_at"] > 1.7e9
    await until_async("all processes run", lambda: len(stage.fake.live) >= 3)
    await stage.attach(PS, worker(0))

    async def running() -> dict[str, Any] | None:
        found = await read(session, "/api/v1/status")
        return found if found["state"] == "running" else None

    found = await until_async("the job runs", running)
    assert [row["state"] for row in found["processes"] if row["name"] == "worker-0"] == ["ready"]


async def test_what_is_no_number_is_null(page: Page) -> None:
    stage, session = page
    await until_async("all processes run", lambda: len(stage.fake.live) >= 3)
    await stage.attach(PS, worker(0))
    await stage.report(worker(0), await stage.lease(worker(0)), 8, loss=float("nan"))

    async def trained() -> bool:
        return (await read(session, "/api/v1/status"))["records"]["trained"] == 8

    await until_async("8 records are trained", trained)
    for path in ("status", "snapshot", "series", "timeline", "events"):
        async with session.get(f"/api/v1/{path}") as answer:
            json.loads(await answer.text(), parse_constant=pytest.fail)
    status = JobStatus.from_json(await read(session, "/api/v1/status"))
    assert status.loss is None and status.records.trained == 8


@pytest.mark.parametrize(
    "path", ["/", "/api/v1/snapshot", "/api/v1/snapshot?logs=1", "/api/v1/timeline"]
)
async def test_a_page_that_is_asked_for_early_reads_old_events_in_portions(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = EventLog(tmp_path / "events.jsonl", 1_000.0)
    for index in range(1_700):
        stamp = {"at": 1_000.0 + index, "at_s": float(index)}
        before.append(stamp, {"kind": "process", "text": "it goes on"})
    before.close()
    read_at_once, catch_up = list[int](), EventLog.catch_up

    def counted(log: EventLog, most: int | None = None) -> bool:
        unread = len(log._unread)
        left = catch_up(log, most)
        read_at_once.append(unread - len(log._unread))
        return left

    async with paged(tmp_path) as (_, session):
        monkeypatch.setattr(EventLog, "catch_up", counted)
        async with session.get(path) as answer:
            assert answer.status == 200
        assert sum(read_at_once) == 700 and max(read_at_once) == 200


async def test_the_page_has_the_snapshot_in_it_and_its_files_may_be_kept_for_ever(
    page: Page,
) -> None:
    _, session = page
    async with session.get("/") as answer:
        text = await answer.text()
        assert (
            answer.status == 200
            and answer.content_type == "text/html"
            and answer.headers["Cache-Control"] == "no-store"
        )
    assert "<h1>iris</h1>" in text, "without script"
    data = text.partition('id="snapshot"')[2].partition(">")[2].partition("</script>")[0]
    snapshot = await read(session, "/api/v1/snapshot")
    assert json.loads(data).keys() == snapshot.keys()
    assert json.loads(data)["stream_id"] == snapshot["stream_id"]
    names = [part.partition('"')[0] for part in text.split('"/static/')[1:]]
    assert len(names) >= 3
    for name in names:
        async with session.get(f"/static/{name}") as answer:
            assert (
                answer.status == 200
                and "immutable" in answer.headers["Cache-Control"]
                and await answer.read()
            )


async def test_a_snapshot_says_where_in_the_stream_it_stands(page: Page) -> None:
    _, session = page
    found = await read(session, "/api/v1/snapshot")
    assert (
        found["stream_id"] == "3.0" and found["outcome"] is None and found["job"]["name"] == "iris"
    )
    assert {"status", "events", "timeline", "series", "events_dropped"} <= set(found)


# shards


async def test_every_shard_is_listed_once_in_one_state(page: Page) -> None:
    stage, session = page
    await until_async("all processes run", lambda: len(stage.fake.live) >= 3)
    await stage.attach(PS, worker(0), worker(1))
    held, _ = [await stage.lease(worker(0)) for _ in range(2)]
    await stage.report(worker(0), held, 64, done=True)
    await stage.lease(worker(1))
    found = await read(session, "/api/v1/shards?limit=1000")
    assert found["total"] == len(found["shards"]) == 100
    assert {row["id"] for row in found["shards"]} == set(range(100))
    totals = {}
    for state in ShardState:
        part = await read(session, f"/api/v1/shards?state={state}&limit=1000")
        totals[str(state)] = part["total"]
        assert part["shards"] == [row for row in found["shards"] if row["state"] == state]
    assert totals == {"leased": 2, "settling": 0, "retried": 0, "parked": 0, "todo": 97, "done": 1}
    owners = {row["owner"] for row in found["shards"] if row["state"] == "leased"}
    assert owners == {"worker-0", "worker-1"}
    few = await read(session, "/api/v1/shards?offset=95&limit=3")
    assert [row["id"] for row in few["shards"]] == [row["id"] for row in found["shards"][95:98]]


@pytest.mark.parametrize(
    "query",
    [
        "state=gone",
        "offset=-1",
        "limit=0",
        "limit=1001",
        "limit=x",
        "offset=٣",
        "offset=" + "9" * 30,
    ],
)
async def test_a_wish_that_makes_no_sense_is_refused_in_words(page: Page, query: str) -> None:
    _, session = page
    found = await read(session, f"/api/v1/shards?{query}", expected=400)
    assert "expected" in found["error"]["message"]


# actions


async def test_a_worker_is_replaced_and_the_next_one_comes_at_once(page: Page) -> None:
    stage, session = page
    await until_async("all processes run", lambda: len(stage.fake.live) >= 3)
    await stage.attach(PS, worker(0), worker(1))
    before = {str(name) for name in stage.fake.live}
    said = await ask(session, "replace", {"process": "worker-0"})
    assert "worker-0" in str(said["said"])
    await until_async(
        "a new worker runs",
        lambda: any(str(name) not in before and name.role == "worker" for name in stage.fake.live),
    )
    await until_async("worker-0 has ended", lambda: worker(0) not in stage.fake.live)
    ended = {row.name: row.message for row in stage.core.status().processes if row.state == "ended"}
    assert "replaced on request" in ended["worker-0"]
    again = await ask(session, "replace", {"process": "worker-0"}, expected=409)
    assert "worker-0 is already ended" in str(again["error"])


async def test_what_cannot_be_replaced_is_refused_with_its_reason(page: Page) -> None:
    stage, session = page
    await until_async("all processes run", lambda: len(stage.fake.live) >= 3)
    for name, code, words in (
        ("ps-0", 409, "parameter server"),
        ("worker-77", 404, "not a process of this job"),
        ("master-0", 404, "not a process of this job"),
        ("../../etc/passwd", 404, "not a process of this job"),
        ("<script>", 404, "not a process of this job"),
    ):
        found = await ask(session, "replace", {"process": name}, expected=code)
        assert words in str(found["error"])
    assert len(stage.fake.live) >= 3


async def test_scale_stop_and_checkpoint_reach_the_job(page: Page) -> None:
    stage, session = page
    await ask(session, "scale", {"min": 1, "max": 3})
    assert (stage.core.status().scale.low, stage.core.status().scale.high) == (1, 3)
    await ask(session, "scale", {"servers": 2})
    assert any("to 2 parameter servers" in one for one in stage.core.status().waiting)
    for nonsense in ({"servers": 0}, {"servers": "2"}, {"servers": 2, "min": 1, "max": 1}):
        await ask(session, "scale", nonsense, expected=400)
    await ask(session, "checkpoint", {})
    await ask(session, "stop", {"reason": "enough\nfor  today"})
    assert stage.core.status().outcome == "stopped: enough for today"
    assert stage.running is not None

    def has_ended(name: ProcessName) -> bool:
        return name not in stage.fake.live

    for name in (ProcessName.parse("worker-0"), PS):
        await until_async(f"{name} has ended", partial(has_ended, name))
    await stage.running
    found = await ask(session, "scale", {"min": 1, "max": 2}, expected=409)
    assert "the job has ended" in str(found["error"])


async def test_what_is_asked_for_while_the_job_ends_is_refused_with_its_reason(page: Page) -> None:
    stage, session = page
    await until_async("all processes run", lambda: len(stage.fake.live) >= 3)
    await stage.attach(PS, worker(0), worker(1))
    # So that the job stays on its way to its end.
    stage.fake.ignore_sigterm(worker(0))
    await ask(session, "stop", {"reason": "enough"})
    for verb, body, words in (
        (
            "scale",
            {"min": 1, "max": 1},
            "cannot change the number of workers to 1:1: the job is being stopped",
        ),
        (
            "scale",
            {"servers": 2},
            "cannot change the number of parameter servers to 2: the job is being stopped",
        ),
        ("checkpoint", {}, "cannot take a checkpoint: the job is being stopped"),
        (
            "replace",
            {"process": "worker-0"},
            "cannot replace worker-0: worker-0 is already stopping",
        ),
    ):
        found = await ask(session, verb, body, expected=409)
        assert words in str(found["error"])
    assert (
        stage.core.status().scale.high == 4
        and stage.running is not None
        and not stage.running.done()
    )


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("scale", {"min": 0, "max": 2}),
        ("scale", {"min": 3, "max": 2}),
        ("scale", {"min": True, "max": 2}),
        ("scale", {"min": "1", "max": 2}),
        ("scale", {"min": 1, "max": 10**9}),
        ("scale", {"min": 1}),
        ("scale", [1, 2]),
        ("stop", {"reason": 7}),
        ("stop", {"because": "x"}),
        ("replace", {}),
        ("checkpoint", {"now": True}),
    ],
)
async def test_an_action_that_makes_no_sense_changes_nothing(
    page: Page, verb: str, body: object
) -> None:
    stage, session = page
    before = stage.core.status().scale.high, stage.core.status().outcome
    found = await ask(session, verb, body, expected=400)
    assert "expected" in str(found["error"])
    assert (stage.core.status().scale.high, stage.core.status().outcome) == before


async def test_an_error_in_the_page_is_answered_and_the_job_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with paged(tmp_path) as (stage, session):
        monkeypatch.setattr(stage.core, "shards", None)
        found = await read(session, "/api/v1/shards", expected=500)
        assert "the job is unaffected" in found["error"]["hint"]
        await read(session, "/api/v1/status")
        assert stage.running is not None and not stage.running.done()
    assert "GET /api/v1/shards failed" in caplog.text


async def test_prometheus_reads_the_numbers(page: Page) -> None:
    _, session = page
    async with session.get("/metrics") as answer:
        assert answer.status == 200 and answer.headers["Content-Type"].startswith(
            "text/plain; version=0.0.4"
        )
        assert 'elasticdl_records_expected{job="iris"} 6400.0' in await answer.text()


async def test_a_port_that_is_taken_is_reported(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    async with (
        staged(tmp_path / "a") as first,
        staged(tmp_path / "b") as second,
        browser(second),
    ):
        with pytest.raises(OSError, match="address already in use"):
            await Stage(tmp_path / "c", first.core._context.spec).server.start(
                "127.0.0.1", first.port
            )
