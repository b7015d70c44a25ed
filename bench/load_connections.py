"""Thousands of connections to a master in one epoll loop, without tasks."""

from __future__ import annotations

import heapq
import itertools
import select
import socket
import ssl
import time
from collections.abc import Callable

from elasticdl.rpc.call_frames import REPLY, Frames
from elasticdl.tls import MASTER_NAME

READ_BYTES = 65536


class Loop:
    """Sockets and times of all clients of this process."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ready: dict[int, Callable[[int], None]] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def watch(self, file: int, ready: Callable[[int], None], events: int) -> None:
        """Call `ready` with what has happened to a file."""
        self._ready[file] = ready
        self._epoll.register(file, events)

    def change(self, file: int, events: int) -> None:
        self._epoll.modify(file, events)

    def forget(self, file: int) -> None:
        del self._ready[file]
        self._epoll.unregister(file)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._order), call))

    def run(self) -> None:
        """Run until an exception."""
        while True:
            left_s = self._due[0][0] - time.monotonic() if self._due else 1.0
            for file, events in self._epoll.poll(max(0.0, left_s), 1024):
                if (ready := self._ready.get(file)) is not None:
                    ready(events)
            now_s = time.monotonic()
            while self._due and self._due[0][0] <= now_s:
                heapq.heappop(self._due)[2]()


class Connection:
    """One connection of a client, with or without TLS. `received` gets the frames.

    It has no deadlines: its client looks how long the greeting and answers take, and closes it.
    """

    def __init__(
        self,
        loop: Loop,
        address: tuple[str, int],
        context: ssl.SSLContext | None,
        hello: bytes,
        received: Callable[[int, int, bytes], None],
        lost: Callable[[], None],
    ) -> None:
        self._loop, self._received, self._lost = loop, received, lost
        self._frames = Frames(REPLY)
        self._unsent = bytearray(hello)
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._context, self._secured = context, context is None
        self.open = True
        self._socket.connect_ex(address)
        self._file = self._socket.fileno()
        self._writing = True
        loop.watch(self._file, self._ready, select.EPOLLIN | select.EPOLLOUT)

    def send(self, data: bytes) -> None:
        """Send now, or as soon as the peer takes it."""
        if self._unsent or not self._secured:
            self._unsent += data
            return
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            sent = 0
        except OSError:
            return  # Reading tells.
        if sent < len(data):
            self._unsent += data[sent:]
            self._write_when_possible(True)

    def close(self) -> None:
        if self.open:
            self.open = False
            self._loop.forget(self._file)
            self._socket.close()

    def _ready(self, events: int) -> None:
        try:
            if self._secured or self._handshake():
                if events & select.EPOLLOUT:
                    self._flush()
                if events & ~select.EPOLLOUT:
                    self._read()
        except (OSError, ValueError):
            self.close()
            self._lost()

    def _handshake(self) -> bool:
        if not isinstance(self._socket, ssl.SSLSocket):
            assert self._context is not None
            self._socket.getpeername()  # Raises if the connection was refused.
            self._socket = self._context.wrap_socket(
                self._socket, server_hostname=MASTER_NAME, do_handshake_on_connect=False
            )
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            self._write_when_possible(False)
            return False
        except ssl.SSLWantWriteError:
            self._write_when_possible(True)
            return False
        self._secured = True
        self._write_when_possible(True)
        return True

    def _flush(self) -> None:
        if self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            del self._unsent[:sent]
        self._write_when_possible(bool(self._unsent))

    def _write_when_possible(self, writing: bool) -> None:
        if writing != self._writing:
            self._writing = writing
            self._loop.change(self._file, select.EPOLLIN | (select.EPOLLOUT if writing else 0))

    def _read(self) -> None:
        while self.open:
            try:
                data = self._socket.recv(READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if not data:
                raise ConnectionResetError
            for (number, outcome), message in self._frames.feed(data):
                if self.open:
                    self._received(number, outcome, message)
            if self._writing is False and len(data) < READ_BYTES and not self._buffered():
                return

    def _buffered(self) -> bool:
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
