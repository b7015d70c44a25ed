"""Bytes that no client of ours sends: refused in words or by closing the connection, and the server
goes on.
"""

from __future__ import annotations

import hmac
import os
import random
import re
import resource
import select
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress

import numpy as np
import pytest

from elasticdl.errors import TransientError
from elasticdl.ps.gauges import rss_bytes
from elasticdl.rpc.ps_client import ServerPool
from tests.contract.ps_stage import LIMIT_S, TOKEN, Stage, as_ids, counting_spec, shown, update
from tests.waiting import until

pytestmark = pytest.mark.contract

HEADER = struct.Struct("<IHBBQQ")
MAGIC, VERSION = 0x314C4445, 6
HELLO, INITIALISE, PULL, PUSH, ROWS, PROVE, PACKED_PULL, PACKED_PUSH = range(1, 9)
OK, USER, TRANSIENT, REFUSED, EMPTY = 0, 1, 2, 3, 4


def proof(side: str, token: str, nonce: bytes, hello: bytes) -> bytes:
    """As rpc/native/greeting.h has it, by Python's own implementation."""
    message = f"elasticdl bulk plane 6, {side}:".encode() + nonce + hello
    return hmac.digest(token.encode(), message, "sha256")


def peak_bytes() -> int:
    """The most memory that this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


class Raw:
    """A connection that says what it is told."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=LIMIT_S)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, kind: int, payload: bytes, size: int | None = None) -> tuple[int, bytes]:
        """Status and payload of the answer."""
        self.send_frame(kind, payload, size)
        return self.answer(kind)

    def send_frame(self, kind: int, payload: bytes, size: int | None = None) -> None:
        length = len(payload) if size is None else size
        self.send(HEADER.pack(MAGIC, VERSION, kind, 0, 9, length) + payload)

    def answer(self, kind: int | None = None) -> tuple[int, bytes]:
        """Status and payload of the next answer."""
        magic, version, answered, status, request, length = HEADER.unpack(self.receive(HEADER.size))
        assert (magic, version, request) == (MAGIC, VERSION, 9) and kind in (None, answered)
        return status, self.receive(length)

    def answers_within(self, limit_s: float) -> bool:
        """Whether there is something to receive."""
        poll = select.poll()  # `select` refuses descriptors from 1,024 on.
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(1000 * limit_s))

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

    def greet(
        self, token: str = TOKEN, pushes: int = 1, name: bytes = b"worker-5", holder: str = ""
    ) -> tuple[int, bytes]:
        """Greet as clients do; stops where the server refuses.

        With the token of `holder`, another name than the one that it says.
        """
        shows = shown(1, holder or name.decode(errors="replace"), token)[0]
        hello = struct.pack("<Q32sIIqQ", 77, os.urandom(32), len(name), pushes, 0, 0) + name
        status, answer = self.ask(HELLO, hello)
        if status != OK:
            return status, answer
        nonce, proved = answer[:32], answer[32:]
        assert (proved == proof("server", shows, nonce, hello)) == (token == TOKEN and not holder)
        return self.ask(PROVE, proof("client", shows, nonce, hello))


def encoded_spec(
    trainable: int = 6,
    additive: int = 0,
    rule: int = 0,
    tables: Sequence[tuple[int, bytes]] = (),
    json: bytes = b"{}",
    scalar: int = 0,
) -> bytes:
    """A spec as clients send it; each table has a dimension and a name."""
    front = struct.pack(
        "<IIII10dQQQIId",
        *(rule, 0, 1, len(tables), *[0.5] * 10),
        *(trainable, additive, len(json), scalar, 0, 0.0),
    )
    rows = [
        struct.pack("<QIIffQII", 0, dim, 0, 0.0, 0.0, len(name), 0, 0) + name
        for dim, name in tables
    ]
    return front + b"".join(rows) + json


def initialise(spec: bytes, dense: int = 0, version: int = 0) -> bytes:
    """An initialise frame's payload with `dense` zeros."""
    return (
        struct.pack("<qQQ", version, len(spec), dense)
        + spec
        + bytes(-len(spec) % 8)
        + bytes(4 * dense)
    )


def packed_pull(precision: int = 0) -> bytes:
    """The head of a packed pull of one table."""
    return struct.pack("<qIIII", -1, 0, 1, precision, 0)


def packed_push(dense: int = 0, spans: int = 0, precision: int = 0) -> bytes:
    """The head of a packed push to one table."""
    return struct.pack("<qqqqqdQIIII", 1, 0, 0, 0, 0, 0.1, dense, 1, spans, precision, 0)


def pushed(ids: int = 0, **head: int) -> bytes:
    """Head and counts of a plain push of one table."""
    values = {"sequence": 1, "shard": 0, "attempt": 0, "offset": 0, "dense": 0, "spans": 0, **head}
    sequence, shard, attempt, offset, dense, spans = values.values()
    front = struct.pack("<qqqqqdQII", sequence, shard, attempt, offset, 0, 0.1, dense, 1, spans)
    return front + struct.pack("<Q", ids)


def coded_zeros(count: int) -> bytes:
    """That many zeros in bfloat16, in a byte each: the code of their only exponent has no bits."""
    return struct.pack("<BBBB4I", 1, 0, 0, 0, 0, 0, 0, 0) + bytes(count)


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


def test_a_worker_of_another_version_is_told_so(stage: Stage) -> None:
    with Raw(stage.addresses[0]) as raw:
        raw.send(HEADER.pack(MAGIC, VERSION - 1, HELLO, 0, 9, 64) + bytes(64))
        status, message = raw.answer(HELLO)
        assert status == USER and b"the worker version 5: all processes of a job must" in message
        assert raw.closed()
    assert stage.servers[0].statistics()["bad_frames"] == 1


def test_a_worker_says_that_a_server_has_another_version() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, ExitStack() as stack:
        other.settimeout(LIMIT_S)

        def answer() -> None:
            peer = stack.enter_context(other.accept()[0])
            number = HEADER.unpack(peer.recv(4096)[: HEADER.size])[4]
            peer.sendall(HEADER.pack(MAGIC, VERSION + 1, HELLO, USER, number, 0))

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        pool = ServerPool([address], "worker-0", shown(1, "worker-0"))
        stack.callback(pool.close)
        with pytest.raises(TransientError, match=r"it speaks version 7 .* this worker version 6"):
            pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=1.0)
        thread.join(LIMIT_S)


def test_nothing_is_answered_before_a_hello_with_the_token(stage: Stage) -> None:
    with Raw(stage.addresses[0]) as raw:
        raw.send(HEADER.pack(MAGIC, VERSION, PULL, 0, 9, 16) + struct.pack("<qII", -1, 1, 0))
        assert raw.closed()
    with Raw(stage.addresses[0]) as raw:
        assert raw.greet("wrong")[0] == REFUSED
        assert raw.closed()
    with Raw(stage.addresses[0]) as raw:
        raw.send(HEADER.pack(MAGIC, VERSION, HELLO, 0, 9, 1 << 20))
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
        (PUSH, pushed(dense=5) + bytes(20), "5 dense values for a slice of 6"),
        (PUSH, pushed(sequence=0), "push number 0"),
        (PUSH, pushed(dense=2**63), "dense values"),
        # One id, which is marked, with its gradient and half of its squares.
        (PUSH, pushed(ids=1) + struct.pack("<qQ", 7, 1) + bytes(12), "ends 4 bytes before"),
        (PUSH, pushed(ids=1) + struct.pack("<qQ", 7, 2) + bytes(16), "8 bytes more"),
        (PUSH, pushed(spans=1) + struct.pack("<QQ", 0, 1), "squares of dense weights 0 to 1 of 0"),
        (PUSH, pushed(dense=6, spans=1) + struct.pack("<QQ", 2, 7) + bytes(44), "2 to 7 of 6"),
        (PUSH, pushed(dense=6, spans=1) + struct.pack("<QQ", 2, 2) + bytes(24), "2 to 2 of 6"),
        (
            PUSH,
            pushed(dense=6, spans=2) + struct.pack("<QQQQ", 2, 4, 3, 5) + bytes(40),
            "3 to 5 of 6",
        ),
        (PUSH, pushed(dense=6, spans=2**32 - 1) + bytes(99), "before what its counts say"),
        (PUSH, pushed(dense=6, spans=1) + struct.pack("<QQ", 1, 3) + bytes(28), "ends 4 bytes"),
        # Every fence and every cut would have to name it to the master.
        (PUSH, pushed(shard=-1), "shard -1"),
        (PUSH, pushed(attempt=-1), "attempt -1"),
        (PUSH, pushed(offset=-1), "offset -1"),
        (ROWS, struct.pack("<qIIQQ", -1, 7, 0, 0, 10), "there is no table 7"),
        (PACKED_PULL, struct.pack("<qIIII", -1, 0, 2, 0, 0), "ids of 2 tables"),
        (PACKED_PULL, packed_pull() + struct.pack("<I", 1), "table 0 has the ids of table 1"),
        (PACKED_PULL, packed_pull() + struct.pack("<IQq", 0, 2**61, 0), "fewer ids than it says"),
        (PACKED_PULL, packed_pull() + struct.pack("<IQq", 0, 2, 0) + b"\xff", "fewer ids|ends"),
        (PACKED_PULL, packed_pull() + struct.pack("<IQqB", 0, 2, 2**63 - 1, 1), "beyond 64 bits"),
        (PACKED_PULL, packed_pull(precision=2) + struct.pack("<IQ", 0, 0), "precision 2"),
        (PACKED_PULL, packed_pull() + struct.pack("<IQB", 0, 0, 1), "1 bytes more"),
        (PACKED_PUSH, packed_push(dense=5) + struct.pack("<IQ", 0, 0), "5 dense values"),
        (PACKED_PUSH, packed_push() + struct.pack("<IQq", 0, 1, 7), "ends 8 bytes before"),
        (PACKED_PUSH, packed_push() + struct.pack("<IQqQ", 0, 1, 7, 0), "fewer gradients than"),
        (PACKED_PUSH, packed_push() + struct.pack("<IQqQB", 0, 1, 7, 0, 1) + bytes(8), "method 1"),
        (
            PACKED_PUSH,
            packed_push() + struct.pack("<IQqQB", 0, 1, 7, 0, 0) + bytes(7),
            "1 bytes before",
        ),
        (
            PACKED_PUSH,
            packed_push() + struct.pack("<IQqQB", 0, 1, 7, 0, 0) + bytes(10),
            "1 bytes more",
        ),
        (
            PACKED_PUSH,
            packed_push() + struct.pack("<IQqQB", 0, 1, 7, 1, 0) + bytes(2),
            "fewer gradients than",
        ),
        (
            PACKED_PUSH,
            packed_push(spans=1) + struct.pack("<IQQQ", 0, 0, 0, 1),
            "squares of dense weights 0 to 1 of 0",
        ),
        (
            PACKED_PUSH,
            packed_push(dense=6, spans=1) + struct.pack("<IQQQ", 0, 0, 0, 6) + bytes(11),
            "fewer gradients than",
        ),
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
        assert status == USER and re.search(words, message.decode())
        assert raw.ask(PULL, struct.pack("<qIIQ", -1, 0, 1, 0))[0] == OK, (
            "the connection is still good"
        )
    assert stage.servers[0].version == 0


def test_a_connection_that_said_it_does_not_push_may_not(stage: Stage) -> None:
    with Raw(stage.addresses[0]) as raw:
        assert raw.greet(pushes=0)[0] == OK
        status, message = raw.ask(PUSH, pushed())
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
        promising = [stack.enter_context(Raw(stage.addresses[0])) for _ in range(9)]
        for raw in promising:
            assert raw.greet()[0] == OK
            raw.send(HEADER.pack(MAGIC, VERSION, PULL, 0, 9, 1 << 29) + bytes(1000))
        assert works(stage)
        assert rss_bytes() - before < 50 << 20


def test_a_large_frame_waits_for_its_place_and_is_not_refused(stage: Stage) -> None:
    with ExitStack() as stack:
        promising = [stack.enter_context(Raw(stage.addresses[0])) for _ in range(8)]
        for raw in promising:
            assert raw.greet()[0] == OK
            raw.send(HEADER.pack(MAGIC, VERSION, PULL, 0, 9, 1 << 29))
        # The server has seen all of them when it has answered this.
        assert works(stage)
        waiting = stack.enter_context(Raw(stage.addresses[0]))
        assert waiting.greet()[0] == OK
        size = (16 << 20) + 8
        sending = threading.Thread(
            target=waiting.send, args=(HEADER.pack(MAGIC, VERSION, PULL, 0, 9, size) + bytes(size),)
        )
        sending.start()
        assert not waiting.answers_within(0.3)
        promising[3].close()
        sending.join(LIMIT_S)
        status = HEADER.unpack(waiting.receive(HEADER.size))[3]
        assert status == USER, "it was read, and makes no sense"


def test_packed_pushes_that_wait_take_the_memory_of_what_was_sent() -> None:
    """A few bytes of a packed push may be many of a plain one."""
    stage = Stage(1)
    count, senders = 2_000_000, 16
    spec = counting_spec(dim=1)
    head = struct.pack("<qqqqqdQIIII", 1, 0, 0, 0, 0, 0.1, 0, 1, 0, 1, 0)
    ids = struct.pack("<IQq", 0, count, 0) + b"\x01" * (count - 1)
    payload = head + ids + bytes(8 * ((count + 63) // 64)) + coded_zeros(count) + b"\0"
    try:
        stage.pool().initialise(spec, np.zeros(6, np.float32), timeout_s=LIMIT_S)
        assert stage.servers[0].gate(LIMIT_S) == {}
        with ExitStack() as stack:
            raws = [stack.enter_context(Raw(stage.addresses[0])) for _ in range(senders)]
            for number, raw in enumerate(raws):
                assert raw.greet(name=f"worker-{number}".encode())[0] == OK
            before = rss_bytes()
            for raw in raws:
                raw.send_frame(PACKED_PUSH, payload)
            assert not any(raw.answers_within(0.2) for raw in raws), "the gate keeps them out"

            def is_packed() -> bool:
                # 16 x 4 MB, and what the allocator keeps. Unpacked they are 16 x 28 MB.
                return rss_bytes() - before < 360 << 20

            until("all are packed again", is_packed)
            for number, raw in enumerate(raws):
                stage.servers[0].fence(f"worker-{number}")
                assert raw.answer(PACKED_PUSH)[0] == REFUSED
        stage.servers[0].ungate()
        assert stage.servers[0].version == 0
    finally:
        stage.close()


def test_a_model_of_absurd_size_is_refused() -> None:
    with closing(Stage(1)) as stage:
        with Raw(stage.addresses[0]) as raw:
            raw.greet()
            status, message = raw.ask(INITIALISE, initialise(encoded_spec(2**50)))
            assert status == USER and b"more than 268435456 dense weights" in message
        assert not stage.servers[0].has_state


def test_a_model_without_its_values_is_refused_before_it_takes_memory() -> None:
    with closing(Stage(1)) as stage, Raw(stage.addresses[0]) as raw:
        raw.greet()
        before = peak_bytes()
        adam = 1
        status, message = raw.ask(INITIALISE, initialise(encoded_spec(2**28, rule=adam)))
        assert status == USER and b"0 dense values for a slice of 268435456" in message
        assert peak_bytes() - before < 50 << 20


def test_a_request_for_rows_takes_memory_for_those_that_exist() -> None:
    with closing(Stage(1)) as stage, Raw(stage.addresses[0]) as raw:
        raw.greet()
        spec = encoded_spec(tables=[(1 << 16, b"wide")])
        assert raw.ask(INITIALISE, initialise(spec, 6))[0] == OK
        before = peak_bytes()
        rows = struct.pack("<qIIQQ", -1, 0, 0, 0, 2**64 - 1)
        assert raw.ask(ROWS, rows) == (OK, struct.pack("<QQ", 0, 0))
        assert peak_bytes() - before < 50 << 20


@pytest.mark.parametrize(
    "name", [b"", b"worker-\xff", b"worker-1\0", b"worker 1", "wörker-1".encode(), b"w" * 300]
)
def test_a_name_that_no_process_has_is_refused_at_the_greeting(stage: Stage, name: bytes) -> None:
    with Raw(stage.addresses[0]) as raw:
        status, message = raw.greet(name=name)
        assert status == USER and b"name" in message
        assert raw.closed()
    assert stage.servers[0].gate(LIMIT_S) == {}
    stage.servers[0].ungate()
    stage.cut(1)


def test_a_spec_that_is_no_text_is_refused() -> None:
    with closing(Stage(1)) as stage:
        with Raw(stage.addresses[0]) as raw:
            raw.greet()
            for spec in (encoded_spec(json=b"\xff"), encoded_spec(tables=[(2, b"t\xc3")])):
                status, message = raw.ask(INITIALISE, initialise(spec, 6))
                assert status == USER and b"UTF-8" in message
        assert not stage.servers[0].has_state


def test_a_version_that_leaves_no_room_to_count_is_refused() -> None:
    with closing(Stage(1)) as stage, Raw(stage.addresses[0]) as raw:
        raw.greet()
        status, message = raw.ask(INITIALISE, initialise(encoded_spec(), 6, 2**63 - 1))
        assert status == USER and b"version" in message


def fuzzed(choose: random.Random) -> tuple[int, bytes]:
    """A frame of any kind: a plain push, or a packed pull or push, with some of it changed."""
    dense = 6
    plain = pushed(ids=2, dense=dense, spans=1) + bytes(16) + struct.pack("<QQQ", 3, 1, 4)
    plain += bytes(24 + 12 + 16 + 16)
    count = choose.choice([1, 200, 400])
    ids = struct.pack("<IQq", 0, count, -5) + bytes(choose.randrange(128) for _ in range(count - 1))
    pull = struct.pack("<qIIII", -1, choose.randrange(2), 1, choose.randrange(3), 0) + ids
    few = b"\0" + bytes(2 * dense) + b"\0"  # two slices, one of them empty
    gradients = coded_zeros(2 * count) if count >= 200 else b"\0" + bytes(4 * count)
    marks = struct.pack("<Q", 1) + bytes(8 * ((count + 63) // 64 - 1)) + struct.pack("<QQ", 2, 5)
    squares = b"\0" + bytes(2 * 3), b"\0" + bytes(2 * 2)
    push = packed_push(dense, spans=1, precision=1)
    kinds = [HELLO, INITIALISE, PULL, PUSH, ROWS, PROVE, 7, 8, 9, 255]
    kind, whole = choose.choice(
        [
            (choose.choice(kinds), plain),
            (PACKED_PULL, pull),
            (PACKED_PUSH, push + ids + marks + few + squares[0] + gradients + squares[1]),
        ]
    )
    payload = bytearray(whole)
    for _ in range(choose.randrange(12)):
        payload[choose.randrange(len(payload))] = choose.randrange(256)
    return kind, bytes(payload[: choose.choice([choose.randrange(len(payload) + 1), None])])


@pytest.mark.parametrize("seed", range(8))
def test_fuzzed_frames_neither_crash_nor_fill_the_server(stage: Stage, seed: int) -> None:
    choose = random.Random(seed)
    before = rss_bytes()
    for _ in range(150):
        with Raw(stage.addresses[0]) as raw, suppress(EOFError, ConnectionError, TimeoutError):
            raw.greet()
            for _ in range(choose.randrange(1, 4)):
                kind, payload = fuzzed(choose)
                raw.ask(kind, payload)
    assert works(stage)
    assert rss_bytes() - before < 50 << 20


def test_a_proof_of_another_connection_is_worth_nothing(stage: Stage) -> None:
    hello = struct.pack("<Q32sIIqQ", 77, bytes(32), 8, 1, 0, 0) + b"worker-5"
    with Raw(stage.addresses[0]) as first, Raw(stage.addresses[0]) as second:
        nonce = first.ask(HELLO, hello)[1][:32]
        good = proof("client", shown(1, "worker-5")[0], nonce, hello)
        second.ask(HELLO, hello)
        assert second.ask(PROVE, good) == (REFUSED, b"the token is wrong, or another process's")
        assert first.ask(PROVE, good)[0] == OK


def test_a_servers_own_proof_opens_nothing(stage: Stage) -> None:
    with Raw(stage.addresses[0]) as raw:
        hello = struct.pack("<Q32sIIqQ", 77, bytes(32), 8, 1, 0, 0) + b"worker-5"
        answer = raw.ask(HELLO, hello)[1]
        assert raw.ask(PROVE, answer[32:])[0] == REFUSED


def test_who_took_a_servers_port_learns_no_token_and_ends_no_worker() -> None:
    stage = Stage(1)
    heard = bytearray()
    taken = socket.create_server(("127.0.0.1", 0))

    def listen() -> None:
        answers = [OK, USER, REFUSED, 5]
        with suppress(OSError):
            while True:
                peer, _ = taken.accept()
                with peer:
                    asked = peer.recv(4096)
                    heard.extend(asked)
                    number = HEADER.unpack(asked[: HEADER.size])[4]
                    status = answers.pop(0) if answers else OK
                    peer.sendall(
                        HEADER.pack(MAGIC, VERSION, HELLO, status, number, 64) + b"\xff" * 64
                    )
                    heard.extend(peer.recv(4096))

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        pool = stage.pool(addresses=[f"127.0.0.1:{taken.getsockname()[1]}"])
        zeros = np.zeros(6, np.float32)
        with pytest.raises(TransientError, match="so it is not ps-0 of this job"):
            pool.initialise(counting_spec(), zeros, timeout_s=1.5)
        pool.move(stage.addresses)
        pool.initialise(counting_spec(), zeros, timeout_s=LIMIT_S)
    finally:
        taken.shutdown(socket.SHUT_RDWR)
        taken.close()
        thread.join(LIMIT_S)
        stage.close()
    assert b"worker-0" in heard and shown(1, "worker-0")[0].encode() not in heard


def test_strangers_make_room_for_others_the_oldest_first(stage: Stage) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with ExitStack() as stack:
            member = stack.enter_context(Raw(stage.addresses[0]))
            assert member.greet()[0] == OK
            strangers = [stack.enter_context(Raw(stage.addresses[0])) for _ in range(700)]
            assert strangers[0].closed()
            assert works(stage)
            assert member.ask(PULL, struct.pack("<qIIQ", -1, 0, 1, 0))[0] == OK
            assert not strangers[-1].answers_within(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_members_find_a_place(stage: Stage) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    try:
        with ExitStack() as stack:
            for number in range(1100):
                member = stack.enter_context(Raw(stage.addresses[0]))
                assert member.greet(pushes=0)[0] == OK, number
            assert stage.servers[0].statistics()["connections"] >= 1100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
