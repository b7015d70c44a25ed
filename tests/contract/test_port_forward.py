"""The way to a pod through an API server: over a real WebSocket to a server that speaks the
protocol, or breaks it as it is told.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.port_forward import PROTOCOL, NobodyListens, PortForward
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError, TransientError
from elasticdl.tls.authority import Authority
from elasticdl.tls.contexts import server_context
from tests.contract.api_client import connected

pytestmark = [pytest.mark.contract, pytest.mark.timeout(60)]
PORT = 50001
Pod = Callable[[web.WebSocketResponse], Awaitable[None]]


class Pods:
    """`behave` is what the pod's side of a connection does; `refuse` an HTTP code for who wants
    one.
    """

    def __init__(self, behave: Pod, refuse: int = 0) -> None:
        self.behave, self.refuse = behave, refuse
        self.asked: list[tuple[str, str]] = []

    async def forward(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.match_info["pod"], request.query["ports"]))
        if self.refuse:
            return web.json_response({"message": "no"}, status=self.refuse)
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        for channel in (0, 1):
            await socket.send_bytes(bytes((channel,)) + struct.pack("<H", PORT))
        await self.behave(socket)
        return socket


async def echo(socket: web.WebSocketResponse) -> None:
    async for message in socket:
        if message.type is aiohttp.WSMsgType.BINARY and message.data[0] == 0:
            await socket.send_bytes(b"\0" + message.data[1:].upper())


async def nobody_listens(socket: web.WebSocketResponse) -> None:
    await socket.send_bytes(
        b"\1error forwarding port 50001: dial tcp4 127.0.0.1:50001: connect: connection refused"
    )
    await socket.close()


async def breaks_off(socket: web.WebSocketResponse) -> None:
    async for message in socket:
        if message.type is aiohttp.WSMsgType.BINARY:
            assert socket._req is not None and socket._req.transport is not None
            socket._req.transport.abort()
            return


@asynccontextmanager
async def tunnel(pods: Pods, names: list[str] | None = None) -> AsyncIterator[PortForward]:
    path = "/api/v1/namespaces/ns/pods/{pod}/portforward"
    async with connected(web.get(path, pods.forward)) as api:
        waiting = list(names or ["master"])

        async def pod_of() -> str:
            return waiting.pop(0) if len(waiting) > 1 else waiting[0]

        made = PortForward(api, "ns", pod_of, PORT)
        try:
            yield made
        finally:
            await made.close()


async def opened(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def said(address: str, words: bytes) -> bytes:
    """What comes back of `words`, all of it; b'' if the connection ends instead."""
    reader, writer = await opened(address)
    try:
        writer.write(words)
        found = b""
        while len(found) < len(words) and (piece := await reader.read(1 << 16)):
            found += piece
        return found
    except ConnectionError:
        return b""
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_bytes_travel_both_ways_and_several_connections_do_not_mix() -> None:
    pods = Pods(echo)
    async with tunnel(pods) as made:
        address = await made.open()
        assert address.startswith("127.0.0.1:")
        words = [bytes((97 + number,)) * 300_000 for number in range(5)]
        assert await asyncio.gather(*(said(address, word) for word in words)) == [
            word.upper() for word in words
        ]
        assert made.problem == ""
    assert set(pods.asked) == {("master", str(PORT))}


async def test_a_pod_that_was_replaced_is_followed_by_the_next_connection() -> None:
    pods = Pods(echo)
    async with tunnel(pods, ["first", "first", "second"]) as made:
        address = await made.open()
        assert await said(address, b"a") == b"A"
        assert await said(address, b"b") == b"B"
    assert [pod for pod, _ in pods.asked] == ["first", "first", "second"]


@pytest.mark.parametrize(
    ("code", "kind", "words", "exit_code"),
    [
        (
            403,
            PermanentError,
            r"you may not connect to pods in namespace ns \(get and create pods/portforward\)",
            ExitCode.CLUSTER_REFUSED,
        ),
        (404, TransientError, "pod master is gone", ExitCode.JOB_FAILED),
        (503, TransientError, "the API server answered 503", ExitCode.JOB_FAILED),
    ],
)
async def test_a_way_that_is_barred_is_reported_at_once_and_in_words(
    code: int, kind: type[ElasticDLError], words: str, exit_code: ExitCode
) -> None:
    async with tunnel(Pods(echo, refuse=code)) as made:
        with pytest.raises(kind, match=words) as caught:
            await made.open()
        assert caught.value.exit_code is exit_code


@pytest.mark.parametrize(
    ("behave", "words"),
    [(nobody_listens, "nothing listens on port 50001 of pod master"), (breaks_off, "")],
    ids=["nobody listens", "the API server breaks off"],
)
async def test_a_connection_that_breaks_ends_on_our_side_too_and_the_next_one_may_work(
    behave: Pod, words: str
) -> None:
    pods = Pods(behave)
    async with tunnel(pods) as made:
        address = await made.open()
        assert await said(address, b"a") == b""
        assert words in made.problem
        pods.behave = echo
        assert await said(address, b"a") == b"A"
        assert made.problem == ""


async def greets(socket: web.WebSocketResponse) -> None:
    await socket.send_bytes(b"\0hello")
    await echo(socket)


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (echo, "pod master does not answer on port 50001"),
        (nobody_listens, "nothing listens on port 50001 of pod master"),
        (greets, ""),
    ],
    ids=["silent", "nobody", "greets"],
)
async def test_whether_somebody_listens_is_learned_before_anybody_connects(
    behave: Pod, words: str
) -> None:
    async with tunnel(Pods(behave)) as made:
        if not words:
            assert await made.open(greeting_s=10.0)
            return
        with pytest.raises(TransientError, match=words):
            await made.open(greeting_s=0.2)


async def test_an_api_server_that_goes_away_is_reported_and_nothing_is_left_open() -> None:
    pods = Pods(echo)
    async with tunnel(pods) as made:
        address = await made.open()
        assert await said(address, b"a") == b"A"
        pods.refuse = 502
        assert await said(address, b"a") == b""
        assert "the API server answered 502" in made.problem
        reader, writer = await opened(address)
        await made.close()
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await opened(address)


async def test_a_port_with_tls_that_nobody_listens_on_is_named_however_the_api_server_hangs_up(
    tmp_path: Path,
) -> None:
    """It says why, and closes, in one go: our first message meets a closed connection."""
    authority = Authority.new("api")
    key = authority.certified_key(["127.0.0.1"])
    (tmp_path / "ca.crt").write_text(authority.certificate)
    frames = [bytes((channel,)) + struct.pack("<H", PORT) for channel in (0, 1)]
    frames.append(b"\1dial tcp4 127.0.0.1:50001: connect: connection refused")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        [nonce] = re.findall(r"(?i)sec-websocket-key: (.+)\r", head)
        digest = hashlib.sha1(f"{nonce}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %s\r\nSec-WebSocket-Protocol: %s\r\n\r\n%s\x88\x02\x03\xe8"
            % (
                base64.b64encode(digest),
                PROTOCOL.encode(),
                b"".join(b"\x82" + bytes((len(frame),)) + frame for frame in frames),
            )
        )
        writer.close()

    context = server_context(key.certificate, key.key)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    configuration = Configuration(host=f"https://127.0.0.1:{port}")
    configuration.ssl_ca_cert = str(tmp_path / "ca.crt")
    api = ApiServer(configuration, "ns")

    async def pod_of() -> str:
        return "master"

    forward = PortForward(api, "ns", pod_of, PORT, Authority.new("job").certificate)
    for _ in range(10):
        with pytest.raises(NobodyListens, match="nothing listens on port 50001 of pod master"):
            await forward.open(5.0)
    await api.close()
    server.close()
