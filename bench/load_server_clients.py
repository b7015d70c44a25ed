"""Many workers' bulk connections in one process: `load_server` starts a few of these.

Each worker has two connections, as `ServerPool` has: one pulls, one pushes. A step pulls the rows
of a batch, computes, and pushes their gradients; computing is a pause here. What a reply holds is
received and dropped.
"""

from __future__ import annotations

import heapq
import hmac
import json
import os
import selectors
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from elasticdl.native import _native
from elasticdl.tokens import bulk_key, bulk_token

HEADER = struct.Struct("<IHBBQQ")
MAGIC, VERSION = _native.BULK_MAGIC, _native.BULK_VERSION
HELLO, PULL, PUSH, PROVE = 1, 3, 4, 6
PUSH_HEAD = struct.Struct("<qqqqqdQIIQ")
GREETINGS_AT_ONCE = 64
"""Of a process: workers do not start at one instant."""
READ_AT_ONCE = 1 << 20
CONNECT_LIMIT_S = 120.0
STRANDED_S = 20.0


@dataclass(frozen=True, slots=True)
class Share:
    """The workers of one process, and what they do."""

    address: str
    first: int
    count: int
    rows_per_step: int
    table_rows: int
    dim: int
    compute_s: float
    """Of each step; 0: the server is always asked for as much as it can do."""
    authority: str = ""
    """The certificate that the server's is verified by; '': clear text."""


@dataclass(slots=True)
class Worker:
    """What a worker has done. `steps` counts those of the measured seconds."""

    number: int
    greeted: int = 0
    sequence: int = 0
    version: int = 0
    pushed: bool = False
    steps: int = 0
    links: list[Link] = field(default_factory=list)


class Link:
    """One connection: sends a frame, receives its reply, calls back with the first bytes of it."""

    def __init__(self, load: Clients, worker: Worker, pushes: bool) -> None:
        self._load = load
        self.worker = worker
        self.pushes = pushes
        host, _, port = load.share.address.rpartition(":")
        plain = socket.socket()
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.connect_ex((host, int(port)))
        self.socket: socket.socket = plain
        self._out: list[memoryview] = []
        self._have = self._want = 0
        self._head = bytearray()
        self._done: Callable[[bytes], None] = self._challenged
        self._hello = b""
        self._connected = False
        load.selector.register(plain, selectors.EVENT_WRITE, self)

    def send(self, kind: int, parts: list[bytes], done: Callable[[bytes], None]) -> None:
        """Send a frame. `done` gets up to 4 KiB of the reply, its header first."""
        size = sum(map(len, parts))
        self._out = [
            memoryview(part) for part in (HEADER.pack(MAGIC, VERSION, kind, 0, 1, size), *parts)
        ]
        self._have, self._want = 0, HEADER.size
        self._head.clear()
        self._done = done
        self._flush()

    def ready(self) -> None:
        if not self._connected:
            self._connect()
        elif self._out:
            self._flush()
        else:
            self._receive()

    def close(self) -> None:
        if self.socket.fileno() < 0:
            return  # a call that was due found it closed
        self._load.selector.unregister(self.socket)
        self.socket.close()

    def _connect(self) -> None:
        if self._load.context is not None and not self._secured(self._load.context):
            return
        self._connected = True
        name = f"worker-{self.worker.number}".encode()
        front = struct.pack("<Q32sIIqQ", 1, os.urandom(32), len(name), int(self.pushes), 0, 0)
        self._hello = front + name
        self.send(HELLO, [self._hello], self._challenged)

    def _secured(self, context: ssl.SSLContext) -> bool:
        """Whether the TLS handshake is complete."""
        if not isinstance(self.socket, ssl.SSLSocket):
            self._load.selector.unregister(self.socket)
            self.socket = context.wrap_socket(
                self.socket, do_handshake_on_connect=False, server_hostname="ps-0"
            )
            self._load.selector.register(self.socket, selectors.EVENT_READ, self)
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _challenged(self, answer: bytes) -> None:
        name = f"worker-{self.worker.number}"
        token = bulk_token(bulk_key("bench", 0), name).encode()
        message = f"elasticdl bulk plane {VERSION}, client:".encode() + answer[24:56] + self._hello
        self.send(PROVE, [hmac.digest(token, message, "sha256")], self._greeted)

    def _greeted(self, answer: bytes) -> None:
        self._load.greeted(self)

    def _flush(self) -> None:
        while self._out:
            try:
                sent = self._write()
            except (BlockingIOError, ssl.SSLWantWriteError):
                break
            while self._out and sent >= len(self._out[0]):
                sent -= len(self._out.pop(0))
            if sent:
                self._out[0] = self._out[0][sent:]
        wanted = selectors.EVENT_WRITE if self._out else selectors.EVENT_READ
        if self._load.selector.get_key(self.socket).events != wanted:
            self._load.selector.modify(self.socket, wanted, self)

    def _write(self) -> int:
        if isinstance(self.socket, ssl.SSLSocket):
            return self.socket.send(b"".join(self._out))
        return self.socket.sendmsg(self._out)

    def _receive(self) -> None:
        """Keep what says something, drop the rows."""
        scratch = self._load.scratch
        while True:
            try:
                got = self.socket.recv_into(scratch, min(READ_AT_ONCE, self._want - self._have))
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            if got == 0:
                raise ConnectionError("the server closed the connection")
            if self._have < 4096:
                self._head += scratch[: min(got, 4096 - self._have)]
            self._have += got
            if self._want == HEADER.size and self._have >= HEADER.size:
                self._want += HEADER.unpack_from(self._head)[5]
            if self._have == self._want:
                return self._answered()

    def _answered(self) -> None:
        status = HEADER.unpack_from(self._head)[3]
        if status:
            raise ConnectionError(self._head[HEADER.size :].decode(errors="replace"))
        self._done(bytes(self._head))


class Clients:
    """All workers of this process, in one loop."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.selector = selectors.EpollSelector()
        self.scratch = memoryview(bytearray(READ_AT_ONCE))
        self.context = (
            ssl.create_default_context(cadata=share.authority) if share.authority else None
        )
        self.workers = [Worker(share.first + k) for k in range(share.count)]
        self.troubles: list[str] = []
        self._batches = self._random_batches()
        self._running = False
        self._greeting = 0  # connections
        self._due: list[tuple[float, int, Link, Callable[[], None]]] = []  # a heap

    def connect(self) -> None:
        """Greet the server with both connections of every worker; leave out who cannot."""
        waiting = iter(self.workers)
        deadline = time.monotonic() + CONNECT_LIMIT_S
        while time.monotonic() < deadline:
            while self._greeting < GREETINGS_AT_ONCE and (worker := next(waiting, None)):
                worker.links = [Link(self, worker, pushes) for pushes in (False, True)]
                self._greeting += 2
            if self._greeting == 0:
                return
            self._turn()

    def run(self, seconds: float, warm_up_s: float) -> list[int]:
        """Step for these seconds, after a warm-up; the steps of each worker."""
        self._running = True
        for worker in self.workers:
            if worker.greeted == 2:
                self._later(worker, 0, worker.number % 97 / 97, partial(self._pull, worker))
        self._turns(time.monotonic() + warm_up_s)
        for worker in self.workers:
            worker.steps = 0
        self._turns(time.monotonic() + seconds)
        self._running = False
        return [worker.steps for worker in self.workers]

    def stranded(self) -> int:
        """How many workers have made no step, though they were given time for one."""
        end = time.monotonic() + STRANDED_S
        while (missing := sum(not one.pushed for one in self.workers)) and time.monotonic() < end:
            self._turn()
        return missing

    def greeted(self, link: Link) -> None:
        link.worker.greeted += 1
        self._greeting -= 1

    def _turns(self, end: float) -> None:
        while time.monotonic() < end:
            self._turn()

    def _turn(self) -> None:
        left_s = self._due[0][0] - time.monotonic() if self._due else 1.0
        for key, _ in self.selector.select(min(max(left_s, 0.0), 0.05)):
            self._guarded(key.data, key.data.ready)
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, link, call = heapq.heappop(self._due)
            self._guarded(link, call)

    def _guarded(self, link: Link, call: Callable[[], object]) -> None:
        """A worker whose connection breaks is stranded."""
        try:
            call()
        except OSError as error:
            self.troubles.append(f"worker-{link.worker.number}: {error}")
            self._greeting -= not self._running
            link.close()

    def _pull(self, worker: Worker) -> None:
        ids = next(self._batches)
        head = struct.pack("<qIIQ", -1, 0, 1, self.share.rows_per_step)
        worker.links[0].send(PULL, [head, ids], partial(self._pulled, worker, ids))

    def _pulled(self, worker: Worker, ids: bytes, answer: bytes) -> None:
        (worker.version,) = struct.unpack_from("<q", answer, HEADER.size)
        if self.share.compute_s:
            self._later(worker, 1, 1.0, partial(self._push, worker, ids))
        else:
            self._push(worker, ids)

    def _later(self, worker: Worker, link: int, computed: float, call: Callable[[], None]) -> None:
        """Call after a part of the time that a step computes."""
        at = time.monotonic() + self.share.compute_s * computed
        heapq.heappush(self._due, (at, worker.number, worker.links[link], call))

    def _push(self, worker: Worker, ids: bytes) -> None:
        worker.sequence += 1
        head = PUSH_HEAD.pack(
            worker.sequence,
            *(worker.number, 0, worker.sequence, worker.version),
            *(0.01, 0, 1, 0, self.share.rows_per_step),
        )
        marks = bytes(8 * -(-self.share.rows_per_step // 64))  # no id repeats
        frame = [head, ids, marks, self._gradients]
        worker.links[1].send(PUSH, frame, lambda _: self._stepped(worker))

    def _stepped(self, worker: Worker) -> None:
        worker.steps += 1
        worker.pushed = True
        if self._running:
            self._pull(worker)

    def _random_batches(self) -> Iterator[bytes]:
        choose = np.random.default_rng(self.share.first)
        size = self.share.rows_per_step
        self._gradients = choose.normal(size=(size, self.share.dim)).astype(np.float32).tobytes()
        made = [
            choose.choice(self.share.table_rows, size, replace=False).astype(np.int64).tobytes()
            for _ in range(16)
        ]

        def endless() -> Iterator[bytes]:
            while True:
                yield from made

        return endless()


def main() -> None:
    """One line in: a Share. One line out when all have greeted. Then seconds in, two lines out."""
    clients = Clients(Share(**json.loads(sys.stdin.readline())))
    clients.connect()
    greeted = sum(worker.greeted == 2 for worker in clients.workers)
    print(json.dumps({"greeted": greeted}), flush=True)
    seconds, warm_up_s = json.loads(sys.stdin.readline())
    steps = clients.run(seconds, warm_up_s)
    print(json.dumps({"steps": steps}), flush=True)
    left = {"stranded": clients.stranded(), "troubles": clients.troubles[:5]}
    print(json.dumps(left), flush=True)


if __name__ == "__main__":
    main()
