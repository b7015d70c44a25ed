"""Logs of pods by offset: over real streams, of an API server that knows beginnings only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from elasticdl.cluster.base import NoSuchLog
from elasticdl.cluster.kubernetes import pod_log_windows
from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.pod_log_windows import LogWindows

pytestmark = [pytest.mark.contract, pytest.mark.timeout(60)]


def pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-of-{name}"}}


class Nodes:
    """What pods have printed.

    `more` is set when something is added; a pod that has `ended` ends its streams.
    """

    def __init__(self) -> None:
        self.printed: dict[str, bytes] = {}
        self.ended: set[str] = set()
        self.refuse: tuple[int, str] | None = None
        self.queries: list[dict[str, str]] = []
        self._more = asyncio.Condition()

    async def say(self, name: str, data: bytes) -> None:
        self.printed[name] = self.printed.get(name, b"") + data
        async with self._more:
            self._more.notify_all()

    async def end(self, name: str) -> None:
        self.ended.add(name)
        await self.say(name, b"")

    async def log(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        name = request.match_info["name"]
        if self.refuse or name not in self.printed:
            code, message = self.refuse or (404, "not found")
            return web.json_response({"message": message}, status=code)
        answer = web.StreamResponse()
        await answer.prepare(request)
        end = int(request.query.get("limitBytes", 1 << 60))
        at = 0
        while True:
            fresh = self.printed[name][at:end]
            await answer.write(fresh)
            at += len(fresh)
            if not request.query.get("follow") or name in self.ended:
                return answer
            async with self._more:
                if at == len(self.printed[name]) and name not in self.ended:
                    await self._more.wait()


@asynccontextmanager
async def serving(nodes: Nodes) -> AsyncIterator[LogWindows]:
    application = web.Application()
    application.router.add_get("/api/v1/namespaces/ns/pods/{name}/log", nodes.log)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    api = ApiServer(Configuration(host=f"http://{host}:{port}"), "ns")
    windows = LogWindows(api)
    try:
        async with asyncio.timeout(40):
            yield windows
    finally:
        await windows.close()
        await api.close()
        await runner.cleanup()


def played(scene: Callable[[Nodes, LogWindows], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        nodes = Nodes()
        async with serving(nodes) as windows:
            await scene(nodes, windows)

    asyncio.run(play())


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_log_windows, "WINDOW_BYTES", 1000)
    monkeypatch.setattr(pod_log_windows, "_QUIET_S", 0.1)
    monkeypatch.setattr(pod_log_windows, "_FIRST_S", 20.0)


@pytest.fixture
def heard_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that ends is not taken for a quiet one because the machine is busy."""
    monkeypatch.setattr(pod_log_windows, "_QUIET_S", 20.0)


def test_a_live_log_is_read_by_offset_and_looked_at_on_one_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_log_windows, "_FIRST_S", 3600.0)
    monkeypatch.setattr(
        pod_log_windows, "_CATCH_UP_S", 3600.0
    )  # Nobody waits for first bytes that are there.

    async def scene(nodes: Nodes, windows: LogWindows) -> None:
        await nodes.say("w", b"first\nsecond\n")
        part = await windows.read(pod("w"), -7, 100)
        assert (part.start, part.data, part.size_bytes) == (6, b"second\n", 13)
        await nodes.say("w", b"third\n")
        while (part := await windows.read(pod("w"), 13, 100)).data != b"third\n":
            await asyncio.sleep(0.01)
        assert (part.start, part.size_bytes) == (13, 19)
        assert (await windows.read(pod("w"), 0, 5)).data == b"first"
        assert (await windows.read(pod("w"), 99, 5)).start == 19
        assert len(nodes.queries) == 1

    played(scene)


@pytest.mark.usefixtures("heard_to_the_end")
def test_what_is_before_the_window_is_read_anew_up_to_there() -> None:
    async def scene(nodes: Nodes, windows: LogWindows) -> None:
        whole = b"".join(b"line %05d\n" % number for number in range(2000))
        await nodes.say("w", whole)
        await nodes.end("w")
        for start, limit in (
            (0, 22),
            (11_000, 50),
            (len(whole) - 1500, 3000),
            (len(whole) - 10, 10),
            (-11, 5),
        ):
            part = await windows.read(pod("w"), start, limit)
            begin = start if start >= 0 else len(whole) + start
            assert (part.start, part.data, part.size_bytes) == (
                begin,
                whole[begin : begin + limit],
                len(whole),
            )
        assert max(int(query.get("limitBytes", 0)) for query in nodes.queries) <= len(whole)

    played(scene)


@pytest.mark.usefixtures("heard_to_the_end")
def test_a_log_that_is_longer_than_anybody_reads_shows_its_newest_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_log_windows, "LONGEST_LOG_BYTES", 10_000)

    async def scene(nodes: Nodes, windows: LogWindows) -> None:
        await nodes.say("w", b"x" * 100_000)
        await nodes.end("w")
        assert len((await windows.read(pod("w"), -500, 500)).data) == 500
        with pytest.raises(NoSuchLog, match="only the newest part"):
            await windows.read(pod("w"), 50_000, 500)

    played(scene)


def test_only_so_many_logs_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_log_windows, "MOST_WINDOWS", 2)

    async def scene(nodes: Nodes, windows: LogWindows) -> None:
        for name in ("a", "b", "c", "d"):
            await nodes.say(name, name.encode())
            assert (await windows.read(pod(name), 0, 10)).data == name.encode()
        assert len(windows._windows) == 2
        assert (await windows.read(pod("a"), 0, 10)).data == b"a"

    played(scene)


def test_a_pod_that_is_gone_or_has_not_begun_has_no_log() -> None:
    async def scene(nodes: Nodes, windows: LogWindows) -> None:
        with pytest.raises(NoSuchLog, match="pod gone no longer has a log"):
            await windows.read(pod("gone"), 0, 10)
        nodes.refuse = (400, "is waiting to start: ContainerCreating")
        with pytest.raises(NoSuchLog, match="pod young has no log yet"):
            await windows.read(pod("young"), 0, 10)
        nodes.refuse = None
        await nodes.say("young", b"hello")
        assert (await windows.read(pod("young"), 0, 10)).data == b"hello"

    played(scene)
