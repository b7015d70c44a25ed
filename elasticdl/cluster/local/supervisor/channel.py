"""One end of the socket between a supervisor and its master: JSON objects, with descriptors."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import final

from elasticdl.cluster.local.supervisor.messages import Message

_LENGTH = struct.Struct(">I")
_READ_BYTES = 64 << 10
_MOST_DESCRIPTORS = 16


@final
@dataclass(frozen=True, slots=True)
class Received:
    """A message, and the descriptors that came with it: its receiver closes them."""

    message: Message
    descriptors: tuple[int, ...] = ()


@dataclass(slots=True)
class _Outgoing:
    data: memoryview
    descriptors: tuple[int, ...]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()


@final
@dataclass(slots=True)
class FrameParser:
    """Cuts a stream into messages: the length as four bytes, then JSON."""

    _buffer: bytearray = field(default_factory=bytearray)
    _descriptors: deque[int] = field(default_factory=deque)

    def feed(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Add what was read. The kernel keeps the order of descriptors and bytes."""
        self._buffer += data
        self._descriptors.extend(descriptors)

    def next(self) -> Received | None:
        """Return the next complete message; None if there is none."""
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        message = json.loads(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        number = message.pop("descriptors", 0)
        return Received(message, tuple(self._descriptors.popleft() for _ in range(number)))

    def close(self) -> None:
        """Close the descriptors of messages that did not come to their end."""
        while self._descriptors:
            os.close(self._descriptors.popleft())


def frame(message: Message, descriptors: int = 0) -> bytes:
    """Return the bytes of a message that carries this many descriptors.

    Any text, even undecodable bytes of paths, survives as JSON.
    """
    text = json.dumps({**message, "descriptors": descriptors} if descriptors else message).encode()
    return _LENGTH.pack(len(text)) + text


def read(sock: socket.socket, parser: FrameParser) -> bool:
    """Read once from a socket into a parser; return False at the end of the stream.

    Raises BlockingIOError, TimeoutError.
    """
    flags = socket.MSG_CMSG_CLOEXEC
    try:
        data, descriptors, _, _ = socket.recv_fds(sock, _READ_BYTES, _MOST_DESCRIPTORS, flags)
    except ConnectionResetError:  # The peer ended with unread messages.
        return False
    parser.feed(data, descriptors)
    return bool(data)


@final
class Channel:
    """The socket on an event loop.

    `send` never waits: a stopped peer must not hold up others. One task calls `receive`.
    """

    def __init__(self, sock: socket.socket, parser: FrameParser | None = None) -> None:
        """Take over a socket, and what was read from it."""
        sock.setblocking(False)
        self._socket = sock
        self._parser = parser or FrameParser()
        self._outgoing: deque[_Outgoing] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._closed = False

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message, with copies of these descriptors. Does nothing if the peer is gone."""
        if self._closed:
            return
        data = memoryview(frame(message, len(descriptors)))
        self._outgoing.append(_Outgoing(data, tuple(os.dup(fd) for fd in descriptors)))
        self._flush()

    async def receive(self) -> Received | None:
        """Return the next message; None when the peer has closed its end, or this is closed."""
        while (received := self._parser.next()) is None:
            if self._closed:
                return None
            try:
                if not read(self._socket, self._parser):
                    return None
            except BlockingIOError:
                await self._readable()
        return received

    def close(self) -> None:
        """Close this end; a waiting `receive` returns None."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._socket)
        loop.remove_reader(self._socket)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        self._drop()
        self._parser.close()
        self._socket.close()

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        waiting = self._waiting = loop.create_future()

        def ready() -> None:
            loop.remove_reader(self._socket)
            if not waiting.done():
                waiting.set_result(None)

        loop.add_reader(self._socket, ready)
        try:
            await waiting
        finally:
            if not self._closed:
                loop.remove_reader(self._socket)

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._outgoing:
            first = self._outgoing[0]
            try:
                # The descriptors travel with the first bytes.
                sent = (
                    socket.send_fds(self._socket, [first.data], first.descriptors)
                    if first.descriptors
                    else self._socket.send(first.data)
                )
            except BlockingIOError:
                loop.add_writer(self._socket, self._flush)
                return
            except OSError:  # The peer is gone; `receive` says so.
                self._drop()
                break
            first.close()
            first.data = first.data[sent:]
            if not first.data:
                self._outgoing.popleft()
        loop.remove_writer(self._socket)

    def _drop(self) -> None:
        while self._outgoing:
            with suppress(OSError):
                self._outgoing.popleft().close()
