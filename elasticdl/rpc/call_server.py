"""Serves the calls to a master: see `call_frames`. Everything runs on one asyncio loop."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, NoReturn, TypeAlias, final

import grpc
from google.protobuf.message import DecodeError, Message

from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.call_frames import (
    CANCEL,
    GREETING,
    HELLO,
    METHODS,
    MORE,
    OK,
    REPLY,
    REQUEST,
    CallFailed,
    Frames,
    Method,
    notice_vanished_peers,
)
from elasticdl.rpc.channel import (
    MAX_MESSAGE_BYTES,
    CallDenied,
    Caller,
    Check,
    Proof,
    status_details,
)
from elasticdl.tls.acceptor import Handshake, accepting
from elasticdl.tokens import MOST_TERM, same

_LOG = logging.getLogger(__name__)
_HELLO_S: Final = 10.0
"""How long a connection may take to say who it is."""
_MOST_HELLO_BYTES: Final = 4096
_MOST_CALLS: Final = 64
"""Calls in progress on one connection; it is not read while there are more."""
_OWN_FILES: Final = 1024
"""Open files for other things than calls."""
_BACKLOG: Final = 1024
_CLOSE_S: Final = 1.0
_Handler: TypeAlias = Callable[[Any, "Call"], Any]
_BY_NUMBER: Final = {method.number: method for method in METHODS.values()}


@final
class Call:
    """What a handler knows of the call that it answers."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """Answer with a status, and why."""
        raise CallFailed(code, status_details(details))


@final
class CallServer:
    """Serves `service`: an object with a coroutine function for each method.

    A handler gets the message and its `Call`, and returns the answer; that of a stream is an async
    generator, which is closed when the connection ends or a caller cancels.
    """

    def __init__(
        self, service: object, proof: Proof, check: Check, context: ssl.SSLContext | None = None
    ) -> None:
        """`proof` is what a caller has to show, `check` says why a call of one that has shown it is
        refused. `context` of a TLS server; None: clear text.
        """
        self.proof, self.check = proof, check
        self._service, self._context = service, context
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = max(files - _OWN_FILES, files // 2, 64)
        self._connections: set[_Connection] = set()
        self._strangers: dict[_Connection | Handshake, None] = {}
        """Those who have not shown who they are, by age."""
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> int:
        """Listen and return the port; the system chooses it if `port` is 0.

        `reuse_port`: another process holds the port for this one. Raises OSError if it is taken.
        """
        accept = accepting(self._context, lambda: _Connection(self), self)
        self._server = await asyncio.get_running_loop().create_server(
            accept, host, port, backlog=_BACKLOG, reuse_port=reuse_port
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening; calls in progress get a second."""
        if self._server is not None:
            self._server.close()
        calls = [call for one in self._connections for call in one.calls()]
        if calls:
            await asyncio.wait(calls, timeout=_CLOSE_S)
        for connection in tuple(self._connections):
            connection.abort()
        await asyncio.gather(*calls, return_exceptions=True)
        while self._connections:  # the loop calls each one's connection_lost in its next turn
            await asyncio.sleep(0)

    def handler(self, method: Method) -> _Handler | None:
        """Return the handler of a method; None if this service has none."""
        return getattr(self._service, method.name, None)

    def enter(self, connection: _Connection | Handshake) -> None:
        """Take a new connection. Strangers have half of the places, and the oldest makes room."""
        if len(self._connections) >= self._most:
            connection.abort()
            return
        self._strangers[connection] = None
        if isinstance(connection, _Connection):
            self._connections.add(connection)
            asyncio.get_running_loop().call_later(_HELLO_S, self._expect_hello, connection)
        if len(self._strangers) > self._most // 2:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()

    def showed_proof(self, connection: _Connection) -> None:
        """Keep the connection for as long as its owner wants it."""
        self._strangers.pop(connection, None)

    def leave(self, connection: _Connection | Handshake) -> None:
        """Forget a connection that has ended."""
        self._strangers.pop(connection, None)
        if isinstance(connection, _Connection):
            self._connections.discard(connection)

    def _expect_hello(self, connection: _Connection) -> None:
        if connection in self._strangers:
            connection.abort()


@final
class _Connection(asyncio.Protocol):
    """One client, and its calls in progress."""

    def __init__(self, server: CallServer) -> None:
        self._server = server
        self._frames = Frames(REQUEST, _MOST_HELLO_BYTES)
        self._transport: asyncio.Transport | None = None
        self._caller: Caller | None = None
        """Who it is, once it has said so."""
        self._refusal = ""
        """Why nobody believes that."""
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._waits = False
        """Whether it is not read, because it has too many calls in progress."""
        self._writable: asyncio.Event | None = None
        """While the client does not read what it is sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        notice_vanished_peers(transport.get_extra_info("socket"))
        self._server.enter(self)
        transport.write(GREETING)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.leave(self)
        self.resume_writing()
        for call in self._calls.values():
            call.cancel()

    def abort(self) -> None:
        """Close without a farewell."""
        if self._transport is not None:
            self._transport.abort()

    def calls(self) -> list[asyncio.Task[None]]:
        """Return the calls in progress."""
        return list(self._calls.values())

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def data_received(self, data: bytes) -> None:
        try:
            for (number, method, term), message in self._frames.feed(data):
                self._received(number, method, term, message)
        except (ValueError, DecodeError):
            # No client of ours: there is nobody to tell.
            self.abort()

    def _received(self, number: int, method: int, term: int, message: bytes) -> None:
        if self._caller is None:
            self._hello(method, message)
        elif method == CANCEL:
            if (call := self._calls.pop(number, None)) is not None:
                call.cancel()
                self._read_on()
        elif self._refusal:
            self._answer(number, grpc.StatusCode.UNAUTHENTICATED, self._refusal)
        elif number in self._calls:
            raise ValueError(f"a second call has number {number}")
        else:
            self._call(number, method, term, message)

    def _hello(self, method: int, message: bytes) -> None:
        if method != HELLO:
            raise ValueError("the client does not say who it is")
        hello = pb.Hello.FromString(message)
        self._caller = Caller(hello.name, 0, hello.instance)
        if same(hello.proof, self._server.proof(self._caller)):
            self._server.showed_proof(self)
            self._frames.most_bytes = MAX_MESSAGE_BYTES
        else:
            # It remains a stranger, so it has to go soon.
            self._refusal = "the token is missing or wrong, or another process's"

    def _call(self, number: int, method_number: int, term: int, message: bytes) -> None:
        assert self._caller is not None
        if self._caller.term != term:
            if not 0 <= term <= MOST_TERM:
                why = f"the term is not a number from 0 to {MOST_TERM}"
                self._answer(number, grpc.StatusCode.INVALID_ARGUMENT, why)
                return
            self._caller = Caller(self._caller.name, term, self._caller.instance)
        method = _BY_NUMBER.get(method_number)
        handler = self._server.handler(method) if method is not None else None
        if method is None or handler is None:
            self._answer(number, grpc.StatusCode.UNIMPLEMENTED, f"no method {method_number}")
            return
        if reason := self._server.check(self._caller, method.name):
            code = reason.code if isinstance(reason, CallDenied) else CallDenied.code
            self._answer(number, code, str(reason))
            return
        try:
            request = method.request.FromString(message)
        except DecodeError as error:
            self._answer(number, grpc.StatusCode.INVALID_ARGUMENT, f"undecodable: {error}")
            return
        work = self._handle(number, method, handler, request, Call(self._caller))
        self._calls[number] = asyncio.get_running_loop().create_task(work)
        if len(self._calls) >= _MOST_CALLS and not self._waits and self._transport is not None:
            self._waits = True
            self._transport.pause_reading()

    async def _handle(
        self, number: int, method: Method, handler: _Handler, request: Message, call: Call
    ) -> None:
        """Answer one call, whatever happens in its handler."""
        try:
            if method.streams:
                await self._stream(number, handler(request, call))
            else:
                reply = await handler(request, call)
                self._write(number, OK, reply.SerializeToString())
        except CallFailed as failed:
            self._answer(number, failed.code(), failed.details())
        except asyncio.CancelledError:
            # By the client, or because what the handler waited for will not come.
            self._answer(number, grpc.StatusCode.CANCELLED, "the call was cancelled")
        except Exception as error:  # noqa: BLE001 - the top of a call: others go on
            _LOG.exception("%s of %s failed", method.name, self._caller and self._caller.name)
            self._answer(number, grpc.StatusCode.UNKNOWN, f"the master failed: {error!r}")
        finally:
            self._calls.pop(number, None)
            self._read_on()

    def _read_on(self) -> None:
        if self._waits and len(self._calls) < _MOST_CALLS and self._transport is not None:
            self._waits = False
            self._transport.resume_reading()

    async def _stream(self, number: int, messages: AsyncGenerator[Any]) -> None:
        async with aclosing(messages):
            async for message in messages:
                self._write(number, MORE, message.SerializeToString())
                if self._writable is not None:
                    await self._writable.wait()
        self._write(number, OK, b"")

    def _answer(self, number: int, code: grpc.StatusCode, details: str) -> None:
        self._write(number, code.value[0], status_details(details).encode())

    def _write(self, number: int, outcome: int, message: bytes) -> None:
        if self._transport is not None:
            self._transport.write(REPLY.pack(len(message), number, outcome) + message)
