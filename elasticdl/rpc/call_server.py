"""Serves the calls to a master: see `call_frames`. Everything runs on one asyncio loop."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, closing
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
    TERM,
    TERM_NUMBER,
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
from elasticdl.tls.acceptor import Handshake, accepting, listen
from elasticdl.tokens import MOST_TERM, same

_LOG = logging.getLogger(__name__)
_HELLO_S: Final = 10.0
"""How long a connection may take to say who it is."""
_MOST_HELLO_BYTES: Final = 4096
_MOST_NAME: Final = 256
"""Characters of a name: it is in errors and logs."""
_MOST_CALLS: Final = 64
"""Calls in progress on one connection. It is not read while there are as many."""
_OWN_FILES: Final = 1024
"""Open files for other things than calls."""
_BACKLOG: Final = 4096
"""Connections that wait to be accepted, if the system allows so many. Where a new master overflows,
the kernel drops what thousands of clients say, and they repeat it seconds later."""
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
    """Lets callers connect and show who they are. Their calls wait for `serve`."""

    def __init__(
        self, proof: Proof, context: ssl.SSLContext | None = None, *, term: int = 0
    ) -> None:
        """`proof` is what a caller has to show. `context` of a TLS server; None: clear text.
        `term` is the master's.
        """
        self.proof = proof
        self.greeting = GREETING + REPLY.pack(TERM_NUMBER.size, 0, TERM) + TERM_NUMBER.pack(term)
        self._context = context
        self._service: object | None = None
        self._check: Check | None = None
        self._decided = asyncio.Event()
        """Whether it serves, or never will."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = max(files - _OWN_FILES, files // 2, 64)
        self._connections: set[_Connection | Handshake] = set()
        self._strangers: dict[_Connection | Handshake, None] = {}
        """Those who have not shown who they are, by age."""
        self._server: asyncio.Server | None = None
        self._closing = False

    @property
    def port(self) -> int | None:
        """Where it listens; None before `start`."""
        return None if self._server is None else int(self._server.sockets[0].getsockname()[1])

    def serve(self, service: object, check: Check) -> None:
        """Answer calls from now on, also those that wait.

        `service` has a coroutine function for each method. It gets the message and its `Call`, and
        returns the answer; that of a stream is an async generator, which is closed when the
        connection ends or a caller cancels. `check` says why a call is refused.
        """
        self._service, self._check = service, check
        self._decided.set()

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> int:
        """Listen and return the port; the system chooses it if `port` is 0.

        `reuse_port`: another process holds the port for this one. Raises OSError if it is taken.
        """
        accept = accepting(self._context, lambda: _Connection(self), self)
        self._server = await listen(accept, host, port, backlog=_BACKLOG, reuse_port=reuse_port)
        for listening in self._server.sockets:
            # Accepted connections inherit the options: thousands come at once.
            notice_vanished_peers(listening)
        assert self.port is not None
        return self.port

    async def close(self) -> None:
        """Stop listening; calls in progress get a second, and another one to end when cancelled."""
        self._closing = True
        self._decided.set()
        if self._server is not None:
            self._server.close()
        for stranger in tuple(self._strangers):
            stranger.abort()
        known = [peer for peer in self._connections if isinstance(peer, _Connection)]
        calls = [call for peer in known for call in peer.calls()]
        if calls:
            await asyncio.wait(calls, timeout=_CLOSE_S)
        for connection in tuple(self._connections):
            connection.abort()
        if calls:
            await asyncio.wait(calls, timeout=_CLOSE_S)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _CLOSE_S
        # The loop calls each one's connection_lost in its next turn.
        while self._connections and loop.time() < end_s:
            await asyncio.sleep(0)

    async def admitted(self, number: int, caller: Caller) -> tuple[Method, _Handler]:
        """Return the method of that number and its handler, once this server serves.

        Raises CallFailed if the caller may not call it, or there is none.
        """
        await self._decided.wait()
        if self._closing or self._check is None:
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, "the master ends")
        method = _BY_NUMBER.get(number)
        handler = getattr(self._service, method.name, None) if method is not None else None
        if method is None or handler is None:
            raise CallFailed(grpc.StatusCode.UNIMPLEMENTED, f"no method {number}")
        if reason := self._check(caller, method.name):
            code = reason.code if isinstance(reason, CallDenied) else CallDenied.code
            raise CallFailed(code, str(reason))
        return method, handler

    def enter(self, connection: _Connection | Handshake) -> None:
        """Take a new connection. Strangers have half of the places.

        When those or all places are taken, the oldest stranger makes room. A new connection is
        refused only if there is none.
        """
        full = len(self._connections) >= self._most
        if self._closing or (full and not self._strangers):
            connection.abort()
            return
        if full or len(self._strangers) >= self._most // 2:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()
        self._connections.add(connection)
        self._strangers[connection] = None
        if isinstance(connection, _Connection):
            asyncio.get_running_loop().call_later(_HELLO_S, self._expect_hello, connection)

    def showed_proof(self, connection: _Connection) -> None:
        """Keep the connection for as long as its owner wants it."""
        self._strangers.pop(connection, None)

    def leave(self, connection: _Connection | Handshake) -> None:
        """Forget a connection that has ended."""
        self._strangers.pop(connection, None)
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
        self._left = False
        """Whether nothing more is taken from it."""
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._waits = False
        """Whether it is not read: see `_has_room`."""
        self._writable: asyncio.Event | None = None
        """While the client does not read what it is sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.enter(self)
        transport.write(self._server.greeting)

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
        self._pause_reading()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None
            self._read_on()

    def data_received(self, data: bytes) -> None:
        try:
            with closing(self._frames.feed(data)) as frames:
                for (number, method, term), message in frames:
                    self._received(number, method, term, message)
                    if not self._has_room():
                        self._pause_reading()
                        break
        except (ValueError, DecodeError):
            # No client of ours: there is nobody to tell.
            self.abort()

    def _received(self, number: int, method: int, term: int, message: bytes) -> None:
        if self._caller is None:
            self._hello(method, message)
        elif method == CANCEL:
            if (call := self._calls.get(number)) is not None:
                call.cancel()
        elif self._refusal:
            self._answer(number, grpc.StatusCode.UNAUTHENTICATED, self._refusal)
            self._hang_up()
        elif number in self._calls:
            raise ValueError(f"a second call has number {number}")
        else:
            self._call(number, method, term, message)

    def _hello(self, method: int, message: bytes) -> None:
        if method != HELLO:
            raise ValueError("the client does not say who it is")
        hello = pb.Hello.FromString(message)
        if max(len(hello.name), len(hello.instance)) > _MOST_NAME:
            raise ValueError(f"a name has {_MOST_NAME} characters at most")
        self._caller = Caller(hello.name, 0, hello.instance)
        if same(hello.proof, self._server.proof(self._caller)):
            self._server.showed_proof(self)
            self._frames.most_bytes = MAX_MESSAGE_BYTES
        else:
            # It remains a stranger, and learns this from the answer to its first call.
            self._refusal = "the token is missing or wrong, or another process's"

    def _hang_up(self) -> None:
        """Close when all answers are sent."""
        self._left = True
        if self._transport is not None:
            self._transport.close()

    def _call(self, number: int, method_number: int, term: int, message: bytes) -> None:
        assert self._caller is not None
        if self._caller.term != term:
            if not 0 <= term <= MOST_TERM:
                why = f"the term is not a number from 0 to {MOST_TERM}"
                self._answer(number, grpc.StatusCode.INVALID_ARGUMENT, why)
                return
            self._caller = Caller(self._caller.name, term, self._caller.instance)
        work = self._handle(number, method_number, message, Call(self._caller))
        self._calls[number] = task = asyncio.get_running_loop().create_task(work)
        # Not at the end of `work`, which never begins if a caller cancels at once.
        task.add_done_callback(lambda _: self._ended(number))

    def _ended(self, number: int) -> None:
        del self._calls[number]
        self._read_on()

    async def _handle(self, number: int, method_number: int, message: bytes, call: Call) -> None:
        """Answer one call, whatever happens in its handler."""
        try:
            method, handler = await self._server.admitted(method_number, call.caller)
            request = _decoded(method, message)
            if method.streams:
                await self._stream(number, handler(request, call))
            else:
                reply = await handler(request, call)
                self._write(number, OK, _packed(reply))
        except CallFailed as failed:
            self._answer(number, failed.code(), failed.details())
        except asyncio.CancelledError:
            # By the client, or because what the handler waited for will not come.
            self._answer(number, grpc.StatusCode.CANCELLED, "the call was cancelled")
        except Exception as error:  # noqa: BLE001 - the top of a call: others go on
            _LOG.exception("a call of %s (method %d) failed", call.caller.name, method_number)
            self._answer(number, grpc.StatusCode.UNKNOWN, f"the master failed: {error!r}")

    def _has_room(self) -> bool:
        """Whether the next frame can be taken."""
        if self._left or self._transport is None or self._transport.is_closing():
            return False
        return self._writable is None and len(self._calls) < _MOST_CALLS

    def _pause_reading(self) -> None:
        if not self._waits and self._transport is not None:
            self._waits = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Read again, if there is room for a call now."""
        if self._waits and self._has_room():
            # Not here: `data_received` may be at work.
            asyncio.get_running_loop().call_soon(self._take_rest)

    def _take_rest(self) -> None:
        """Take the frames that have come before the pause, and more if there is room then."""
        if self._waits and self._transport is not None and self._has_room():
            self._waits = False
            self._transport.resume_reading()
            self.data_received(b"")

    async def _stream(self, number: int, messages: AsyncGenerator[Any]) -> None:
        async with aclosing(messages):
            async for message in messages:
                self._write(number, MORE, _packed(message))
                if self._writable is not None:
                    await self._writable.wait()
                if self._transport is None or self._transport.is_closing():
                    # Perhaps it dropped the message, which counts as sent once `messages`
                    # continues.
                    return
        self._write(number, OK, b"")

    def _answer(self, number: int, code: grpc.StatusCode, details: str) -> None:
        self._write(number, code.value[0], status_details(details).encode())

    def _write(self, number: int, outcome: int, message: bytes) -> None:
        if self._transport is not None:
            self._transport.write(REPLY.pack(len(message), number, outcome) + message)


def _decoded(method: Method, message: bytes) -> Message:
    """Parse a request. Raises CallFailed."""
    try:
        request: Message = method.request.FromString(message)
        return request
    except DecodeError as error:
        raise CallFailed(grpc.StatusCode.INVALID_ARGUMENT, f"undecodable: {error}") from error


def _packed(answer: Message) -> bytes:
    """Serialize an answer. Raises CallFailed if it is too large: a client reads no such frame."""
    data = answer.SerializeToString()
    if len(data) > MAX_MESSAGE_BYTES:
        raise CallFailed(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"an answer of {len(data)} bytes is larger than max ({MAX_MESSAGE_BYTES})",
        )
    return data
