"""Forward a pod's port to this machine through the API server, like `kubectl port-forward`.

Every connection is a WebSocket of its own (`v4.channel.k8s.io`). Each message begins with its
channel, 0 for data and 1 for errors, and the first message on each only repeats the port. A client
reconnects when a connection breaks; `problem` says why the last one broke.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias, final

import aiohttp

from elasticdl.cluster.kubernetes.apiserver import ApiRefused, ApiServer, Socket
from elasticdl.errors import (
    ClusterRefused,
    ElasticDLError,
    TransientError,
)
from elasticdl.loopback import LOOPBACK, LoopbackListener
from elasticdl.tls import MASTER_NAME
from elasticdl.tls.contexts import client_context, refusal_of

PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_REFUSED = "connection refused"
_PIECE_BYTES = 64 << 10
PodOf: TypeAlias = Callable[[], Awaitable[str]]


@final
class NobodyListens(TransientError):
    """The pod is reachable, but its port is not open yet, or no longer."""


@final
class PortForward:
    """Listens on loopback until closed.

    Use it from the event loop of its ApiServer; connections may come from anywhere. All waits are
    bounded: the API server must be reached within ten seconds and answer pings, and a connection
    ends with either side.
    """

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        pod_of: PodOf,
        port: int,
        authority: str | None = None,
    ) -> None:
        """`pod_of` names the pod to reach; each connection calls it, to follow a replaced pod.

        `authority` (PEM) signs the master's certificate; None: it speaks clear text.
        """
        self._authority = authority
        self._api, self._pod_of, self._port = api, pod_of, port
        self._namespace = namespace
        self._listener = LoopbackListener(self._carry)
        self.problem = ""
        """Why the last connection failed or broke.

        '' if it succeeded, and ended in order if it ended.
        """

    async def open(self, greeting_s: float = 0.0) -> str:
        """Connect to the pod once, then listen; returns the address, `127.0.0.1:4711`.

        With `greeting_s` above 0, the pod must send something within that time, as a master
        does; with TLS it must complete the handshake.

        Raises ElasticDLError, OSError.
        """
        pod = await self._pod_of()
        try:
            async with self._api.socket(self._path(pod), self._query, PROTOCOL) as socket:
                if greeting_s:
                    await self._greeted(socket, pod, greeting_s)
        except ApiRefused as refused:
            raise self._not_connected(refused, pod) from refused
        return f"{LOOPBACK}:{await self._listener.open()}"

    async def close(self) -> None:
        """End all connections."""
        await self._listener.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pod = ""
        try:
            pod = await self._pod_of()
            async with self._api.socket(self._path(pod), self._query, PROTOCOL) as socket:
                self.problem = ""
                self.problem = self._problem(await _joined(reader, writer, socket), pod)
        except ApiRefused as refused:
            self.problem = self._not_connected(refused, pod).message
        except ElasticDLError as error:
            self.problem = error.message

    @property
    def _query(self) -> dict[str, str]:
        return {"ports": str(self._port)}

    def _path(self, pod: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods/{pod}/portforward"

    def _not_connected(self, refused: ApiRefused, pod: str) -> ElasticDLError:
        match refused.status.code:
            case 401 | 403:
                return ClusterRefused(
                    f"you may not connect to pods in namespace {self._namespace} (get and create"
                    " pods/portforward)",
                    hint=(
                        "ask the cluster's administrator; `kubectl port-forward` needs the same"
                        " rights"
                    ),
                )
            case 404:
                return TransientError(f"pod {pod} is gone")
            case code:
                return TransientError(f"the API server cannot connect to pod {pod}: HTTP {code}")

    async def _greeted(self, socket: Socket, pod: str, limit_s: float) -> None:
        handshake = _Handshake(self._authority) if self._authority is not None else None
        try:
            async with asyncio.timeout(limit_s):
                if handshake is not None:
                    # If it has hung up already, it has said why: that is read below.
                    with suppress(OSError):
                        await socket.send_bytes(bytes((_DATA,)) + handshake.answer(b""))
                async for channel, content in _messages(socket):
                    if channel == _DATA:
                        if handshake is None:
                            return
                        answer = handshake.answer(content)
                        if handshake.complete:
                            return
                        if answer:
                            with suppress(OSError):
                                await socket.send_bytes(bytes((_DATA,)) + answer)
                        continue
                    message = content.decode("utf-8", errors="replace")
                    raise (NobodyListens if _REFUSED in message else TransientError)(
                        self._problem(message, pod)
                    )
        except ssl.SSLError as error:
            raise TransientError(
                f"port {self._port} of pod {pod}: {refusal_of(error)}",
                hint="another process may be reached there, or a clock be wrong",
            ) from error
        except TimeoutError as error:
            raise TransientError(f"pod {pod} does not answer on port {self._port}") from error
        raise TransientError(f"the connection to pod {pod} broke")

    def _problem(self, message: str, pod: str) -> str:
        if _REFUSED in message:
            return f"nothing listens on port {self._port} of pod {pod}"
        return f"the connection to pod {pod} broke: {message}" if message else ""


@final
class _Handshake:
    """Finds out whether the master is at the other end, and trusted."""

    def __init__(self, authority: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._connection = client_context(authority).wrap_bio(
            self._incoming, self._outgoing, server_hostname=MASTER_NAME
        )
        self.complete = False

    def answer(self, received: bytes) -> bytes:
        """Take bytes of the peer, and return bytes for it. Raises ssl.SSLError."""
        self._incoming.write(received)
        try:
            self._connection.do_handshake()
            self.complete = True
        except ssl.SSLWantReadError:
            pass
        return self._outgoing.read()


async def _joined(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, socket: Socket
) -> str:
    """Carry bytes both ways until one side ends; returns the error of the other end, or ''."""
    outward, inward = (
        asyncio.ensure_future(_send(reader, socket)),
        asyncio.ensure_future(_receive(socket, writer)),
    )
    try:
        await asyncio.wait((outward, inward), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (outward, inward):
            task.cancel()
        ends = await asyncio.gather(outward, inward, return_exceptions=True)
    return next(
        (str(end) for end in ends if end and not isinstance(end, asyncio.CancelledError)), ""
    )


async def _send(reader: asyncio.StreamReader, socket: Socket) -> str:
    while piece := await reader.read(_PIECE_BYTES):
        await socket.send_bytes(bytes((_DATA,)) + piece)
    return ""


async def _receive(socket: Socket, writer: asyncio.StreamWriter) -> str:
    message = b""
    async for channel, content in _messages(socket):
        if channel == _DATA:
            writer.write(content)
            await writer.drain()
        elif channel == _ERROR:
            message += content
    broke = socket.exception()
    return message.decode("utf-8", errors="replace") or (
        "" if broke is None else f"{broke or type(broke).__name__}"
    )


async def _messages(socket: Socket) -> AsyncGenerator[tuple[int, bytes]]:
    """(channel, content), without the first message of each channel."""
    introduced: set[int] = set()
    async for message in socket:
        if message.type is aiohttp.WSMsgType.BINARY and message.data:
            channel = message.data[0]
            if channel in introduced:
                yield channel, message.data[1:]
            introduced.add(channel)
