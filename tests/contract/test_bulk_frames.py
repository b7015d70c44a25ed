"""Bytes that no client of ours sends: refused in words or by closing the connection, and the server
goes on.
"""

from __future__ import annotations

import random
import resource
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import numpy as np
import pytest

from elasticdl.ps.gauges import rss_bytes
from tests.contract.ps_stage import LIMIT_S, TOKEN, Stage, as_ids, counting_spec, update

pytestmark = pytest.mark.contract

HEADER = struct.Struct("<IHBBQQ")
MAGIC = 0x314C4445
HELLO, INITIALISE, PULL, PUSH, ROWS = 1, 2, 3, 4, 5
OK, USER, TRANSIENT, REFUSED, EMPTY = 0, 1, 2, 3, 4


class Raw:
    """A connection that says what it is told."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=LIMIT_S)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, kind: int, payload: bytes, size: int | None = None) -> tuple[int, bytes]:
        """Status and payload of the answer."""
        self.send(
            HEADER.pack(MAGIC, 1, kind, 0, 9, len(payload) if size is None else size) + payload
        )
        magic, version, answered, status, request, length = HEADER.unpack(self.receive(HEADER.size))
        assert (magic, version, answered, request) == (MAGIC, 1, kind, 9)
        return status, self.receive(length)

    def answers_within(self, limit_s: float) -> bool:
        """Whether there is something to receive."""
        return bool(select.select([self._socket], [], [], limit_s)[0])

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError(data)
            data += piece
        return data

    def closed(self) -> bool:
        with suppress(ConnectionError):
            return self._socket.recv(1) == b""
        return True

    def greet(self, token: str = TOKEN, pushes: int = 1) -> tuple[int, bytes]:
        return self.ask(
            HELLO,
            struct.pack("<QIIII", 77, len(token), 8, pushes, 0) + token.encode() + b"worker-5",
        )


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(1)
    made.pool().initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    yield made
    made.close()


def works(stage: Stage) -> bool:
    pool = stage.pool("worker-9")
    pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    pool.push(update(1, (0,), np.ones(6, np.float32), [1]), timeout_s=LIMIT_S)
    return pool.pull([as_ids([1])], timeout_s=LIMIT_S).versions == (stage.servers[0].version,)


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 64,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\0\0\0\0\0\0",
    ],
)
def test_another_protocol_is_hung_up_on(stage: Stage, first: bytes) -> None:
    with Raw(stage.addresses[0]) as raw:
        raw.send(first)
        assert raw.closed()
    assert stage.servers[0].statistics()["bad_frames"] == 1


def test_nothing_is_answered_before_a_hello_with_the_token(stage: Stage) -> None:
    with Raw(stage.addresses[0]) as raw:
        raw.send(HEADER.pack(MAGIC, 1, PULL, 0, 9, 16) + struct.pack("<qII", -1, 1, 0))
        assert raw.closed()
    with Raw(stage.addresses[0]) as raw:
        assert raw.greet("wrong")[0] == REFUSED
        assert raw.closed()
    with Raw(stage.addresses[0]) as raw:
        raw.send(HEADER.pack(MAGIC, 1, HELLO, 0, 9, 1 << 20))
        assert raw.closed()


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        (PULL, b"", "ends 16 bytes before"),
        (PULL, struct.pack("<qII", -1, 0, 2) + bytes(16), "ids of 2 tables; the parameters have 1"),
        (PULL, struct.pack("<qII", -1, 0, 2**32 - 1), "ids of 4294967295 tables"),
        (PULL, struct.pack("<qIIQ", -1, 0, 1, 2**61), "before what its counts say"),
        (PULL, struct.pack("<qIIQ", -1, 0, 1, 3) + bytes(23), "ends 1 bytes before"),
        (PULL, struct.pack("<qIIQ", -1, 0, 1, 1) + bytes(9), "1 bytes more than its counts say"),
        (
            PUSH,
            struct.pack("<qqqqqdQIIQ", 1, 0, 0, 0, 0, 0.1, 5, 1, 0, 0) + bytes(20),
            "5 dense values for a slice of 6",
        ),
        (PUSH, struct.pack("<qqqqqdQIIQ", 0, 0, 0, 0, 0, 0.1, 0, 1, 0, 0), "push number 0"),
        (PUSH, struct.pack("<qqqqqdQIIQ", 1, 0, 0, 0, 0, 0.1, 2**63, 1, 0, 0), "dense values"),
        (ROWS, struct.pack("<qIIQQ", -1, 7, 0, 0, 10), "there is no table 7"),
        (INITIALISE, struct.pack("<qQQ", 0, 2**63, 0), "makes no sense"),
        (INITIALISE, struct.pack("<qQQ", 0, 8, 0) + b"\xff" * 8, "before what its counts say"),
    ],
)
def test_counts_that_do_not_fit_are_the_senders_error(
    stage: Stage, kind: int, payload: bytes, words: str
) -> None:
    with Raw(stage.addresses[0]) as raw:
        assert raw.greet()[0] == OK
        status, message = raw.ask(kind, payload)
        assert status == USER and words in message.decode()
        assert raw.ask(PULL, struct.pack("<qIIQ", -1, 0, 1, 0))[0] == OK, (
            "the connection is still good"
        )
    assert stage.servers[0].version == 0


def test_a_connection_that_said_it_does_not_push_may_not(stage: Stage) -> None:
    with Raw(stage.addresses[0]) as raw:
        assert raw.greet(pushes=0)[0] == OK
        status, message = raw.ask(PUSH, struct.pack("<qqqqqdQIIQ", 1, 0, 0, 0, 0, 0.1, 0, 1, 0, 0))
        assert status == USER and b"does not push" in message


@pytest.mark.parametrize("size", [(1 << 30) + 1, 2**63, 2**64 - 1])
def test_a_frame_that_says_it_is_huge_is_refused_unread(stage: Stage, size: int) -> None:
    with Raw(stage.addresses[0]) as raw:
        assert raw.greet()[0] == OK
        status, message = raw.ask(PULL, b"", size)
        assert status == USER and b"1 GiB" in message
        assert raw.closed()


def test_frames_that_promise_much_and_send_little_take_no_memory_and_stop_nobody(
    stage: Stage,
) -> None:
    before = rss_bytes()
    with ExitStack() as stack:
        # A thread of the server has to see each before it counts, so one more may still find a
        # place, and takes it.
        for raw in (stack.enter_context(Raw(stage.addresses[0])) for _ in range(20)):
            assert raw.greet()[0] == OK
            raw.send(HEADER.pack(MAGIC, 1, PULL, 0, 9, 1 << 29) + bytes(1000))
            if raw.answers_within(0.2):
                break
        header = HEADER.unpack(raw.receive(HEADER.size))
        assert header[3] == TRANSIENT and b"too many large frames" in raw.receive(header[5])
        assert works(stage)
        assert rss_bytes() - before < 50 << 20


def test_a_model_of_absurd_size_is_refused() -> None:
    stage = Stage(1)
    try:
        with Raw(stage.addresses[0]) as raw:
            raw.greet()
            spec = struct.pack("<IIII10dQQQd", 1, 0, 0, 0, *[0.5] * 10, 2**50, 0, 0, 0.0)
            status, message = raw.ask(INITIALISE, struct.pack("<qQQ", 0, len(spec), 0) + spec)
            assert status == USER and b"more than 2^28" in message
        assert not stage.servers[0].has_state
    finally:
        stage.close()


@pytest.mark.parametrize("seed", range(8))
def test_fuzzed_frames_neither_crash_nor_fill_the_server(stage: Stage, seed: int) -> None:
    choose = random.Random(seed)
    before = rss_bytes()
    for _ in range(150):
        with Raw(stage.addresses[0]) as raw, suppress(EOFError, ConnectionError, TimeoutError):
            raw.greet()
            for _ in range(choose.randrange(1, 4)):
                payload = bytearray(
                    struct.pack("<qqqqqdQIIQ", 1, 0, 0, 0, 0, 0.1, 6, 1, 0, 2) + bytes(16 + 24 + 16)
                )
                for _ in range(choose.randrange(12)):
                    payload[choose.randrange(len(payload))] = choose.randrange(256)
                cut = choose.randrange(len(payload) + 1)
                raw.ask(
                    choose.choice([HELLO, INITIALISE, PULL, PUSH, ROWS, 6, 255]),
                    bytes(payload[:cut]),
                )
    assert works(stage)
    assert rss_bytes() - before < 50 << 20


def test_too_many_connections_are_turned_away_and_room_is_made_again(stage: Stage) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with ExitStack() as stack:
            for _ in range(1100):
                last = stack.enter_context(Raw(stage.addresses[0]))
            assert last.closed()
            assert stage.servers[0].statistics()["connections"] == 1024
        assert works(stage)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
