"""Calls to a master, from an asyncio loop: see `call_frames`."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Final, final

import grpc
from google.protobuf.message import DecodeError, Message

from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.call_frames import (
    ATTACHED,
    CANCEL,
    GREETING,
    HELLO,
    MORE,
    OK,
    REPLY,
    REQUEST,
    TERM,
    TERM_NUMBER,
    Answer,
    CallFailed,
    Frames,
    Method,
    NotOurProtocol,
    notice_vanished_peers,
)
from elasticdl.rpc.channel import MAX_MESSAGE_BYTES, Credentials
from elasticdl.tls.contexts import client_context, refusal_of

_CONNECT_S: Final = 5.0
_CLOSE_S: Final = 1.0
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


@final
class CallClient:
    """One connection to a master, made again at the next call after it broke.

    Use it from one event loop. Every call raises CallFailed: UNAVAILABLE without a connection.
    """

    def __init__(
        self, address: str, credentials: Credentials, authority: str | None, name: str
    ) -> None:
        """`address` is host:port. `authority` (PEM) signs the certificate of the master, which is
        for `name`; None: clear text. Raises PermanentError if that is no certificate.
        """
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        hello = pb.Hello(
            proof=credentials.proof, name=credentials.name, instance=credentials.instance
        ).SerializeToString()
        self._hello = GREETING + REQUEST.pack(len(hello), 0, HELLO, 0) + hello
        self._context = client_context(authority) if authority is not None else None
        self._name = name if authority is not None else None
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def call(
        self, method: Method, request: Message, *, term: int, timeout_s: float
    ) -> Answer:
        """Return the answer of a method that does not stream."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def take(outcome: int, message: bytes | CallFailed) -> None:
            if answer.done():
                return
            if isinstance(message, CallFailed):
                answer.set_exception(message)
            else:
                answer.set_result(message)

        connection, number = None, 0
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connected()
                number = connection.begin(method, request, term, take)
                return _decoded(method, await answer)
        except TimeoutError:
            if connection is not None:
                connection.timed_out(number)
            late = f"no answer within {timeout_s:.3g} s"
            raise CallFailed(grpc.StatusCode.DEADLINE_EXCEEDED, late) from None
        finally:
            if connection is not None:
                connection.end(number)

    async def stream(
        self, method: Method, request: Message, *, term: int
    ) -> AsyncGenerator[Answer]:
        """Yield the answers of a method that streams, until the master ends it."""
        came: deque[bytes | CallFailed | None] = deque()
        wake = asyncio.Event()

        def take(outcome: int, message: bytes | CallFailed) -> None:
            came.append(message if outcome != OK else None)
            wake.set()

        connection = await self._connected()
        number = connection.begin(method, request, term, take)
        try:
            while True:
                while came:
                    message = came.popleft()
                    if message is None:
                        return
                    if isinstance(message, CallFailed):
                        raise message
                    yield _decoded(method, message)
                wake.clear()
                await wake.wait()
        finally:
            connection.end(number)

    async def close(self) -> None:
        """Close the connection: calls in progress fail, and so do later ones."""
        self._closed = True
        if self._connection is not None:
            self._connection.abort()
            loop = asyncio.get_running_loop()
            end_s = loop.time() + _CLOSE_S
            # The loop says so in its next turn.
            while not self._connection.lost and loop.time() < end_s:
                await asyncio.sleep(0)

    async def _connected(self) -> _Connection:
        if (connection := self._connection) is not None and connection.open:
            return connection
        async with self._connecting:
            if (connection := self._connection) is not None and connection.open:
                return connection
            if self._closed:
                raise CallFailed(
                    grpc.StatusCode.CANCELLED, "the connection was closed by this process"
                )
            self._connection = connection = await self._connect()
            return connection

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        connection: _Connection | None = None
        greeted = False
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._hello),
                    self._host,
                    self._port,
                    ssl=self._context,
                    server_hostname=self._name,
                )
                await connection.greeted()
        except TimeoutError:
            why = f"no connection within {_CONNECT_S:g} s"
        except OSError as error:
            number = error.errno or 0
            why = refusal_of(error) or (os.strerror(number) if number > 0 else str(error))
        except (RuntimeError, UnicodeError) as error:
            # No thread looks the name up, or it cannot be a host's.
            why = str(error)
        else:
            greeted = True
            return connection
        finally:
            if connection is not None and not greeted:
                # Also if its time ends, or its caller goes, just when the master says its term.
                connection.abort()
        raise CallFailed(grpc.StatusCode.UNAVAILABLE, why)


def _decoded(method: Method, message: bytes) -> Answer:
    try:
        return method.reply.FromString(message)
    except DecodeError as error:
        raise CallFailed(grpc.StatusCode.INTERNAL, f"undecodable answer: {error}") from None


@final
class _Connection(asyncio.Protocol):
    """A connection, and who waits for what on it."""

    def __init__(self, hello: bytes) -> None:
        self._hello = hello
        self._frames = Frames(REPLY)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, Callable[[int, bytes | CallFailed], None]] = {}
        self._number = 0
        self._sent: dict[int, int] = {}
        self._received = 0
        """Pieces of data that have come."""
        self._term = -1
        """The master's; below 0 it has not said it."""
        self._known = asyncio.Event()
        """Set when the master has said its term, or never will."""
        self._problem = grpc.StatusCode.UNAVAILABLE, "the connection broke"
        """What became of it, for those who wait."""

    @property
    def lost(self) -> bool:
        """Whether it is over."""
        return self._transport is None

    @property
    def open(self) -> bool:
        """Whether calls can be made."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_term(self) -> bool:
        """Whether the master has said its term."""
        return self._term >= 0

    async def greeted(self) -> None:
        """Wait for the master's term. Raises CallFailed if the connection ends before."""
        await self._known.wait()
        if not self.has_term:
            raise CallFailed(*self._problem)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        notice_vanished_peers(transport.get_extra_info("socket"))
        transport.write(self._hello)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._known.set()
        waiting, self._waiting = self._waiting, {}
        for take in waiting.values():
            take(self._problem[0].value[0], CallFailed(*self._problem))

    def data_received(self, data: bytes) -> None:
        self._received += 1
        try:
            for (number, outcome), message in self._frames.feed(data):
                self._answered(number, outcome, message)
        except NotOurProtocol:
            self._problem = (
                grpc.StatusCode.UNAVAILABLE,
                "what listens there is no master of this version of elasticdl",
            )
            self.abort()
        except ValueError as error:
            self._problem = grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
            self.abort()

    def _answered(self, number: int, outcome: int, message: bytes) -> None:
        if outcome == TERM and len(message) == TERM_NUMBER.size:
            (self._term,) = TERM_NUMBER.unpack(message)
            self._known.set()
            return
        if (take := self._waiting.get(number)) is None:
            return
        if outcome in (OK, MORE):
            take(outcome, message)
        else:
            code = _CODES.get(outcome, grpc.StatusCode.UNKNOWN)
            failed = CallFailed(code, message.decode("utf-8", "replace"))
            take(outcome, failed)
            if code is grpc.StatusCode.UNAUTHENTICATED:
                # The master answers one call and closes: the others have the same problem.
                self._problem = code, failed.details()
                self.abort()
        if outcome != MORE:
            self._waiting.pop(number, None)

    def begin(
        self,
        method: Method,
        request: Message,
        term: int,
        take: Callable[[int, bytes | CallFailed], None],
    ) -> int:
        """Send a call; return its number. `take` gets outcome and message of each answer.

        Raises CallFailed: ABORTED if the master has replaced the one that the caller knows. The
        master would answer the same, but thousands come at once.
        """
        if 0 < term < self._term and method.name in ATTACHED:
            raise CallFailed(
                grpc.StatusCode.ABORTED,
                f"the master of term {self._term} has replaced that of term {term}",
            )
        message = request.SerializeToString()
        if len(message) > MAX_MESSAGE_BYTES:
            raise CallFailed(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"a message of {len(message)} bytes is larger than max ({MAX_MESSAGE_BYTES})",
            )
        if not self.open:
            raise CallFailed(*self._problem)
        self._number = number = self._number % 0xFFFF_FFFF + 1
        self._waiting[number], self._sent[number] = take, self._received
        self._send(message, number, method.number, term)
        return number

    def end(self, number: int) -> None:
        """Nobody waits for an answer to this call any more."""
        self._sent.pop(number, None)
        if self._waiting.pop(number, None) is not None and self.open:
            self._send(b"", number, CANCEL, 0)

    def timed_out(self, number: int) -> None:
        """A call was not answered in time: if nothing else was either, try another connection."""
        if self._sent.get(number) == self._received:
            self.abort()

    def abort(self) -> None:
        """Close without a farewell."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self, message: bytes, number: int, method: int, term: int) -> None:
        assert self._transport is not None
        self._transport.write(REQUEST.pack(len(message), number, method, term) + message)
