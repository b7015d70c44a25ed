"""The page's stream: what changed, to browsers that read, to those that come back, and to those
that do not read.
"""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from elasticdl.errors import ExitCode
from elasticdl.history.job_event import JobEvent
from elasticdl.history.snapshot import StatusReading
from elasticdl.job_status import JobStatus
from elasticdl.master.core.commands import FinishJob
from elasticdl.master.status import change_feed, job_view
from elasticdl.master.status.collector import Sample
from elasticdl.master.status.limits import PageLimits
from tests.contract.status_stage import BEARER, PS, Page, browser, get, paged, staged, worker
from tests.waiting import until_async

pytestmark = [pytest.mark.contract, pytest.mark.timeout(60)]


# readers that do not read


async def test_a_browser_that_does_not_read_is_hung_up_on_and_costs_no_memory(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path, limits=PageLimits(stuck_s=0.5)) as stage:
        connection = socket.create_connection(("127.0.0.1", stage.port))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(get("/api/v1/stream", stage.host))
        live = stage.server._change_feed
        await until_async("somebody watches", lambda: live.watchers == 1)
        tracemalloc.start()
        try:
            sent = 0
            while live.watchers:
                # So many at a time that they are more than is kept, however seldom this gets
                # its turn.
                for _ in range(20):
                    live.feed.publish([("events", [{"at": sent, "text": "x" * 100_000}])])
                    sent += 100_000
                await asyncio.sleep(0.001)
            assert sent > 1 << 20
            assert tracemalloc.get_traced_memory()[0] < 24 << 20
        finally:
            tracemalloc.stop()
            connection.close()


async def test_no_more_than_so_many_windows_watch_one_job(tmp_path: Path) -> None:
    async with (
        staged(tmp_path) as stage,
        browser(stage, headers=BEARER, connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        most = PageLimits().most_streams
        opened = [await session.get("/api/v1/stream") for _ in range(most)]
        assert {answer.status for answer in opened} == {200}
        for _ in range(20):
            async with session.get("/api/v1/stream") as answer:
                assert answer.status == 503 and answer.headers["Retry-After"]
        async with session.get("/api/v1/status") as answer:
            assert answer.status == 200
        for answer in opened:
            answer.close()
        await until_async("nobody watches", lambda: stage.server._change_feed.watchers == 0)
        async with session.get("/api/v1/stream") as answer:
            assert answer.status == 200


# the stream


class Events:
    """Server-sent events as a browser reads them."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.id = ""

    async def next(self) -> tuple[str, Any]:
        name, data = "", ""
        async for line in self._answer.content:
            text = line.decode().rstrip("\n")
            if not text and data:
                return name, json.loads(data)
            key, _, value = text.partition(": ")
            match key:
                case "event":
                    name = value
                case "data":
                    data = value
                case "id":
                    self.id = value
        return "closed", None

    async def until(self, wanted: str) -> Any:
        while True:
            name, data = await self.next()
            if name == wanted:
                return data
            assert name != "closed"


async def test_the_stream_tells_what_changed_and_continues_after_a_break(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage, browser(stage, headers=BEARER) as session:
        async with session.get("/api/v1/snapshot") as answer:
            begin = (await answer.json())["stream_id"]
        await until_async("all processes run", lambda: len(stage.fake.live) >= 3)
        await stage.attach(PS, worker(0))
        async with session.get(f"/api/v1/stream?from={begin}") as answer:
            assert answer.content_type == "text/event-stream"
            events = Events(answer)
            status = await events.until("status")
            assert "processes" not in status and "gauges" not in status
            rows = await events.until("processes")
            assert {row["name"] for row in rows["rows"]} >= {"worker-0", "ps-0"}
            news = await events.until("events")
            assert [event["seq"] for event in news] == list(
                range(news[0]["seq"], news[0]["seq"] + len(news))
            )
            await events.until("samples")
            known = events.id
        await stage.attach(worker(1))
        async with session.get("/api/v1/stream", headers={"Last-Event-ID": known}) as answer:
            rows = await Events(answer).until("processes")
            assert [row["state"] for row in rows["rows"] if row["name"] == "worker-1"] == ["ready"]


@pytest.mark.parametrize(
    "known", ["2.5", "3.99", "x", "3.-1", "3.٣", "3." + "9" * 40, "..", "\r\nevent: x"]
)
async def test_a_browser_of_another_master_starts_over(page: Page, known: str) -> None:
    _, session = page
    async with session.get("/api/v1/stream", params={"from": known}) as answer:
        events = Events(answer)
        assert (await events.next())[0] == "reset"
        assert (await events.next())[0] == "status"
        assert (await events.until("processes"))["all"] is True


async def test_one_that_was_too_slow_starts_over(page: Page) -> None:
    stage, session = page
    async with session.get("/api/v1/stream") as answer:
        events = Events(answer)
        await events.until("processes")
        feed = stage.server._change_feed.feed
        for _ in range(200):
            feed.publish([("samples", [])])
        assert feed.after(0) is None
        await events.until("reset")
        await events.until("processes")


async def test_the_end_of_the_job_is_reported_and_ends_the_stream(page: Page) -> None:
    stage, session = page
    async with session.get("/api/v1/stream") as answer:
        events = Events(answer)
        await events.until("processes")
        closing = asyncio.ensure_future(
            stage.server.close(FinishJob(ExitCode.DONE, "all is done", "look at it"))
        )
        assert await events.until("ended") == {
            "exit_code": 0,
            "message": "all is done",
            "hint": "look at it",
        }
        assert (await events.next())[0] == "closed"
        await closing


async def test_the_last_that_is_told_is_how_the_job_stood_at_its_end(page: Page) -> None:
    stage, session = page
    await until_async("all processes run", lambda: len(stage.fake.live) >= 3)
    async with session.get("/api/v1/stream") as answer:
        events = Events(answer)
        await events.until("processes")
        stage.watched.reading()
        await stage.attach(PS, worker(0))
        await stage.server.close(FinishJob(ExitCode.DONE, "all is done"))
        rows = await events.until("processes")
        assert {row["name"]: row["state"] for row in rows["rows"]}["worker-0"] == "ready"
        await events.until("ended")


async def test_half_a_pair_and_control_characters_do_not_break_the_stream(page: Page) -> None:
    stage, session = page
    async with session.get("/api/v1/stream") as answer:
        events = Events(answer)
        await events.until("processes")
        text = "a\r\n\r\nevent: ended\ndata: {}\n\n\ud800\u2028\x00"
        stage.server._change_feed.feed.publish(
            [("events", [JobEvent(1, 1.0, 1.0, "job", text).as_dict()])]
        )
        found = await events.until("events")
        assert found[0]["text"].startswith("a\r\n\r\nevent: ended")


async def test_curves_and_stream_use_one_reading_however_long_others_run_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_feed, "LOOK_EVERY_S", 0.01)
    # A reading is too old as soon as it is made.
    monkeypatch.setattr(job_view, "FRESH_S", 0.0)
    read: list[JobStatus] = []
    sampled: list[JobStatus] = []

    async with paged(tmp_path) as (stage, _):
        reading, look = stage.watched.reading, stage.collector.look

        def noted() -> StatusReading:
            found = reading()
            read.append(found.status)
            return found

        def seen(status: JobStatus) -> list[Sample]:
            sampled.append(status)
            return look(status)

        stage.server._change_feed.join()
        monkeypatch.setattr(stage.watched, "reading", noted)
        monkeypatch.setattr(stage.collector, "look", seen)
        await until_async("three samples are taken", lambda: len(sampled) >= 3)
        assert len(read) - len(sampled) in (0, 1)
        assert all(one is other for one, other in zip(read, sampled, strict=False))
