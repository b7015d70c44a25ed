"""The copy of a list, kept against an API server that misbehaves."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from elasticdl.clock import Clock, ManualClock, SystemClock
from elasticdl.cluster.kubernetes.reflector import Reflector, Sink, Timing
from tests.contract.api_server import (
    PODS,
    Server,
    at_once,
    change,
    item,
    sends,
    serving,
    silent,
    status,
)

pytestmark = pytest.mark.contract
LIMIT_S = 20.0
QUICK = Timing(silence_s=60, relist_s=60, first_back_off_s=0.02, last_back_off_s=0.1)
SOON_SILENT = Timing(silence_s=0.3, relist_s=60, first_back_off_s=0.02, last_back_off_s=0.1)
"""Where silence is wanted only: a machine that is busy is silent for that long."""


class Heard:
    """What a sink was told, as `+uid@version`, `-uid`, and `whole`."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._news = asyncio.Event()
        self.sink = Sink(
            lambda pod: self._say("+" + _name(pod)),
            lambda pod: self._say("-" + pod["metadata"]["uid"]),
            lambda: self._say("whole"),
        )

    def _say(self, word: str) -> None:
        self.words.append(word)
        self._news.set()

    async def until(self, word: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while word not in self.words:
                self._news.clear()
                await self._news.wait()


def _name(pod: dict[str, Any]) -> str:
    return f"{pod['metadata']['uid']}@{pod['metadata']['resourceVersion']}"


@asynccontextmanager
async def reflecting(
    server: Server, timing: Timing = QUICK, clock: Clock | None = None
) -> AsyncIterator[tuple[Heard, Reflector]]:
    async with serving(server) as api:
        heard = Heard()
        reflector = Reflector(api, PODS, "job=x", heard.sink, clock or SystemClock(), timing)
        running = asyncio.ensure_future(reflector.run())
        try:
            yield heard, reflector
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def heard_until(
    server: Server, *words: str, timing: Timing = QUICK, clock: Clock | None = None
) -> list[str]:
    async def scenario() -> list[str]:
        async with reflecting(server, timing, clock) as (heard, _):
            for word in words:
                await heard.until(word)
            return heard.words

    return asyncio.run(scenario())


def test_a_list_and_its_changes_are_reported_and_bookmarks_move_the_start_of_a_watch() -> None:
    server = Server()
    server.lists = [[item("a", 1)]]
    server.watches = [
        sends(
            change("ADDED", item("b", 101)),
            change("DELETED", item("a", 102)),
            change("BOOKMARK", {"metadata": {"resourceVersion": "150"}}),
            then=at_once,
        ),
        sends(change("MODIFIED", item("b", 151))),
    ]
    assert heard_until(server, "+b@151") == ["+a@1", "whole", "+b@101", "-a", "+b@151"]
    assert [query["resourceVersion"] for query in server.watch_queries] == ["100", "150"]
    assert {query["allowWatchBookmarks"] for query in server.watch_queries} == {"true"}
    assert all(int(query["timeoutSeconds"]) > 0 for query in server.watch_queries)
    assert server.list_count == 1


@pytest.mark.parametrize(
    "form",
    [status(410, "Expired"), sends(change("ERROR", status(410, "Expired")))],
    ids=["as an answer", "within the stream"],
)
def test_a_watch_that_is_too_old_is_followed_by_a_list_that_tells_what_was_missed(
    form: object,
) -> None:
    server = Server()
    server.lists = [[item("a", 1), item("b", 2)], [item("b", 9), item("c", 3)]]
    server.watches = [form, silent]
    assert heard_until(server, "+c@3") == ["+a@1", "+b@2", "whole", "-a", "+b@9", "+c@3", "whole"]


def test_an_object_made_again_under_an_old_name_is_another_one() -> None:
    server = Server()
    server.lists = [[item("old", 1, name="worker-0")], [item("new", 5, name="worker-0")]]
    server.watches = [status(410), silent]
    assert heard_until(server, "+new@5")[2:] == ["-old", "+new@5", "whole"]


def test_a_server_that_falls_silent_is_listed_again() -> None:
    server = Server()
    server.lists = [[], [item("a", 1)]]
    assert heard_until(server, "+a@1", timing=SOON_SILENT) == ["whole", "+a@1", "whole"]


def test_a_server_that_sends_bookmarks_is_not_silent_and_is_listed_again_when_due() -> None:
    clock, silence_s = ManualClock(), 1.0

    async def bookmarks(answer: web.StreamResponse) -> None:
        """For longer than the silence that is allowed, then until the list that is due."""
        end_s, version = time.monotonic() + 1.2 * silence_s, 200
        while True:
            version += 1
            await sends(
                change("BOOKMARK", {"metadata": {"resourceVersion": str(version)}}), then=at_once
            )(answer)
            await asyncio.sleep(0.02)
            if time.monotonic() > end_s:
                clock.advance(301.0)
                end_s = math.inf

    server = Server()
    server.lists = [[], [item("a", 1)]]
    server.watches = [bookmarks, silent]
    assert heard_until(server, "+a@1", timing=Timing(silence_s, 300.0, 0.02, 0.1), clock=clock) == [
        "whole",
        "+a@1",
        "whole",
    ]
    assert server.list_count == 2 and clock.now_s() == 301.0, "not before it was due"


@pytest.mark.parametrize(
    "nonsense",
    [sends(b"not json\n"), sends(b'{"type": "ADDED"}\n'), sends(b"[]\n"),
     sends({"type": "ADDED", "object": {"metadata": {}}}),
     sends(change("ERROR", status(500, "InternalError"))), status(403, "Forbidden"), status(503),
     at_once],
)  # fmt: skip
def test_nonsense_and_refusals_end_in_another_list(nonsense: object) -> None:
    server = Server()
    server.lists = [[], [item("a", 1)]]
    server.watches = [nonsense, silent]
    # By a clock that stands, what ends at once does so on a busy machine, too.
    assert "+a@1" in heard_until(server, "+a@1", clock=ManualClock())


@pytest.mark.parametrize(
    "nonsense",
    [{"items": None, "metadata": {}}, {"kind": "PodList"}, status(500), status(403), status(429)],
)
def test_a_list_that_makes_no_sense_or_is_refused_is_asked_for_again(
    nonsense: dict[str, Any],
) -> None:
    server = Server()
    server.lists = [nonsense, [item("a", 1)]]
    assert heard_until(server, "whole") == ["+a@1", "whole"]


def test_half_lines_are_put_together() -> None:
    async def halves(answer: web.StreamResponse) -> None:
        for part in (
            b'{"type": "ADDED", "object": {"metadata": {"uid":',
            b' "a", "resourceVersion": "7"}}}\n\n',
        ):
            await answer.write(part)
            await asyncio.sleep(0.05)

    server = Server()
    server.watches = [halves, silent]
    assert heard_until(server, "+a@7") == ["whole", "+a@7"]


def test_a_list_that_was_asked_for_before_an_object_was_made_does_not_end_it() -> None:
    async def scenario() -> list[str]:
        server = Server()
        server.lists = [[], [], []]
        server.watches = [silent]
        async with reflecting(server, SOON_SILENT) as (heard, reflector):
            await heard.until("whole")
            reflector.add(item("mine", 3))
            reflector.add(item("mine", 3))
            # Made while no list was under way: the next one must know it, and does not.
            await heard.until("-mine")
            return heard.words

    words = asyncio.run(scenario())
    assert words.count("+mine@3") == 1 and words.count("-mine") == 1


def test_a_server_that_is_away_costs_next_to_nothing_and_the_view_grows_old() -> None:
    async def scenario() -> tuple[float, float]:
        async with serving(Server()) as api:
            pass  # Nobody listens on its port any more.
        heard = Heard()
        reflector = Reflector(
            api,
            PODS,
            "job=x",
            heard.sink,
            SystemClock(),
            Timing(first_back_off_s=0.1, last_back_off_s=0.5),
        )
        running = asyncio.ensure_future(reflector.run())
        began_s = time.process_time()
        await asyncio.sleep(1)
        used_s = time.process_time() - began_s
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await api.close()
        return used_s, reflector.age_s

    share, age_s = asyncio.run(scenario())
    assert share < 0.2, "a loop without a pause takes whatever it gets"
    assert age_s >= 1


def test_a_watch_that_ends_at_once_again_and_again_is_not_asked_for_in_a_hot_loop() -> None:
    async def scenario() -> int:
        server = Server()
        server.watches = [at_once]
        async with reflecting(server, Timing(first_back_off_s=0.2, last_back_off_s=0.5)) as (
            heard,
            _,
        ):
            await heard.until("whole")
            await asyncio.sleep(1)
        return len(server.watch_queries)

    assert asyncio.run(scenario()) <= 10
