"""Requests with anything changed: the page answers 4xx or hangs up, and serves the next one."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from tests.contract import status_stage
from tests.contract.status_stage import BEARER, TOKEN, Stage, browser, staged
from tests.fuzz.budget import fuzz_s, rounds

pytestmark = [pytest.mark.contract, pytest.mark.timeout(fuzz_s() + 120)]

PATHS = (
    "/", "/session", "/api/v1/status", "/api/v1/logs/worker-0?start=-1&limit=7", "/api/v1/shards",
    "/api/v1/logs/worker-0/search?q=x", "/api/v1/timeline", "/api/v1/scale", "/metrics", "/no",
    "/api/v1/series?since=0", "/static/page.js", "/api/v1/events?after=0",
)  # fmt: skip
ODD = (
    b"\xff", b"\0", b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b"%", b"%ff", b"%00", b"..", b"/",
    b"?", b"&", b"=", b"-1", b"0", b"99999999999999999999", b"1e309", b"nan", b"\xc3\x28", b"[",
    b"\xed\xa0\x80", b"x" * 9000, b"[::1", b"chunked", b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 5\r\n", b"Expect: 100-continue\r\n", b"Expect: \xff\r\n",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"Content-Encoding: gzip\r\n",
    b"Cookie: elasticdl=\xff; a=\xc3\r\n", b"Range: bytes=-1\r\n", b"Origin: null\r\n",
    b"Authorization: Bearer \xff\r\n", b"Last-Event-ID: -1\r\n", b"If-None-Match: \xff\r\n",
)  # fmt: skip


def request(choose: random.Random, host: str) -> bytes:
    """A request that makes sense, with some places changed."""
    method = choose.choice(["GET", "GET", "POST", "HEAD", "PUT", "OPTIONS"])
    body = choose.choice([b"", b'{"min_workers": 1, "max_workers": 2}', b"token=abc", b"[]", b"{"])
    head = [
        f"{method} {choose.choice(PATHS)} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if choose.random() < 0.7:
        head.append(f"Authorization: Bearer {TOKEN}")
    data = bytearray("\r\n".join(head).encode() + b"\r\n\r\n" + body)
    for _ in range(choose.randint(1, 3)):
        at = choose.randrange(len(data) + 1)
        if choose.random() < 0.5:
            ends = [i + 2 for i in range(len(data) - 1) if data[i : i + 2] == b"\r\n"] or [at]
            at = choose.choice(ends)
        data[at : at + choose.choice([0, 0, 0, 1, 3])] = choose.choice(ODD)
    return bytes(data)


async def answered(stage: Stage, data: bytes) -> bytes:
    """All that comes back within a moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    answer = b""
    try:
        with suppress(ConnectionError, TimeoutError):
            writer.write(data)
            await writer.drain()
            async with asyncio.timeout(0.05):
                while piece := await reader.read(1 << 16):
                    answer += piece
    finally:
        writer.transport.abort()
    return answer


async def test_a_request_is_answered_or_hung_up_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_stage, "LIMIT_S", fuzz_s() + 60)

    async def works(session: aiohttp.ClientSession) -> None:
        async with session.get("/api/v1/status") as answer:
            assert answer.status == 200

    async with staged(tmp_path) as stage:
        for choose in rounds("requests"):
            data = request(choose, stage.host)
            answer = await answered(stage, data)
            if not answer:
                continue
            protocol, status, _ = answer.split(b" ", 2)
            assert protocol.startswith(b"HTTP/"), (data, answer)
            assert int(status) < 500 or int(status) in (501, 505), (data, answer)
        async with browser(stage, headers=BEARER) as session:
            await works(session)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
