"""The connections that calls to a master travel on: who is heard, and what breaks them."""

from __future__ import annotations

import asyncio
import math
import random
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.master.gateway.order_streams import OrderStreams
from elasticdl.rpc import call_server
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.call_client import CallClient, _Connection
from elasticdl.rpc.call_frames import (
    CANCEL,
    GREETING,
    HELLO,
    METHODS,
    REPLY,
    REQUEST,
    TERM,
    CallFailed,
    Frames,
    NotOurProtocol,
)
from elasticdl.rpc.call_server import Call, CallServer
from elasticdl.rpc.call_thread import ThreadedCalls
from elasticdl.rpc.channel import MAX_MESSAGE_BYTES, Caller, Credentials
from elasticdl.rpc.conversation import Drain
from tests.present import present
from tests.served_calls import ServedCalls
from tests.waiting import until_async

pytestmark = pytest.mark.contract

TOKEN = "token"
LIMIT_S = 20.0


class Service:
    """Answers some calls, and remembers whose."""

    def __init__(self) -> None:
        self.acted: list[str] = []
        self.cancelled = asyncio.Event()
        self.go_on = asyncio.Event()
        self.sent = 0

    async def Status(self, request: Any, call: Call) -> Any:
        self.acted.append(f"{call.caller.name} {call.caller.instance} {call.caller.term}")
        return pb.StatusReply(status="fine")

    async def RequestLease(self, request: Any, call: Call) -> Any:
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return pb.LeaseReply(wait_reason=str(request.sequence))

    async def Stop(self, request: Any, call: Call) -> Any:
        raise KeyError(request.reason)

    async def Checkpoint(self, request: Any, call: Call) -> Any:
        self.acted.append("a checkpoint")
        return pb.Done()

    async def Scale(self, request: Any, call: Call) -> Any:
        call.abort(grpc.StatusCode.OUT_OF_RANGE, "too late")

    async def Orders(self, request: Any, call: Call) -> AsyncGenerator[Any]:
        try:
            while True:
                yield pb.Order(drain="x" * 65_536)
                self.sent += 1
                await asyncio.sleep(0)
        finally:
            self.cancelled.set()


class Undecodable:
    def SerializeToString(self) -> bytes:
        return b"\xff\xff\xff"


def check(caller: Caller, method: str) -> str:
    return "not now" if method == "Checkpoint" else ""


@asynccontextmanager
async def served(term: int = 3) -> AsyncIterator[tuple[Service, CallServer, str]]:
    service = Service()
    server = CallServer(lambda caller: TOKEN + caller.name, term=term)
    server.serve(service, check)
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    try:
        yield service, server, address
    finally:
        await server.close()


@asynccontextmanager
async def client(address: str, proof: str = TOKEN + "w", name: str = "w") -> AsyncIterator[Any]:
    made = CallClient(address, Credentials(proof, name, "one"), None, "")
    try:
        yield made
    finally:
        await made.close()


async def status(one: CallClient, term: int = 3) -> Any:
    return await one.call(METHODS["Status"], pb.StatusRequest(), term=term, timeout_s=LIMIT_S)


def has_term(one: CallClient) -> bool:
    return one._connection is not None and one._connection.has_term


async def failure(work: Coroutine[Any, Any, Any]) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        await work
    return caught.value


async def test_a_call_says_who_makes_it() -> None:
    async with served() as (service, _, address), client(address) as one:
        assert (await status(one)).status == "fine"
        await status(one, 4)
        assert service.acted == ["w one 3", "w one 4"]


@pytest.mark.parametrize(
    ("proof", "name"), [("", "w"), (TOKEN, "w"), (TOKEN + "w", "v"), (TOKEN + "w", "")]
)
async def test_who_does_not_prove_its_name_is_refused(proof: str, name: str) -> None:
    async with served() as (service, _, address), client(address, proof, name) as one:
        failed = await failure(status(one))
        assert failed.code() is grpc.StatusCode.UNAUTHENTICATED and "token" in failed.details()
        stream = one.stream(METHODS["Orders"], pb.OrdersRequest(), term=3)
        assert (await failure(anext(stream))).code() is grpc.StatusCode.UNAUTHENTICATED
        assert not service.acted


def test_a_call_that_cannot_be_answered_has_a_status_and_others_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        async with served() as (_, _, address), client(address) as one:

            async def code(name: str, request: Any, term: int = 3) -> str:
                call = one.call(METHODS[name], request, term=term, timeout_s=LIMIT_S)
                return (await failure(call)).code().name

            assert await code("Scale", pb.ScaleRequest()) == "OUT_OF_RANGE"
            assert await code("Stop", pb.StopRequest(reason="a bug")) == "UNKNOWN"
            assert await code("Who", pb.WhoRequest()) == "UNIMPLEMENTED"
            assert await code("Status", pb.StatusRequest(), -1) == "INVALID_ARGUMENT"
            assert await code("Checkpoint", pb.CheckpointRequest()) == "FAILED_PRECONDITION"
            assert await code("Status", Undecodable()) == "INVALID_ARGUMENT"
            assert (await status(one)).status == "fine"

    asyncio.run(story())
    assert [record for record in caplog.records if record.exc_info], "the bug is in the log"


async def test_who_hangs_up_or_waits_no_more_ends_its_calls() -> None:
    request = pb.LeaseRequest(sequence=1)
    async with served() as (service, _, address):
        async with client(address) as one:
            lease = one.call(METHODS["RequestLease"], request, term=3, timeout_s=0.2)
            assert (await failure(lease)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await asyncio.wait_for(service.cancelled.wait(), LIMIT_S)
            service.cancelled.clear()
            lease = one.call(METHODS["RequestLease"], request, term=3, timeout_s=LIMIT_S)
            waiting = asyncio.ensure_future(lease)
            await status(one)
        await asyncio.wait_for(service.cancelled.wait(), LIMIT_S)
        assert (await failure(waiting)).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_connection_with_many_calls_is_read_again_when_some_are_answered() -> None:
    async with served() as (service, _, address), client(address) as one:

        async def lease(number: int) -> str:
            request = pb.LeaseRequest(sequence=number)
            reply = await one.call(METHODS["RequestLease"], request, term=3, timeout_s=LIMIT_S)
            return str(reply.wait_reason)

        leases = [asyncio.ensure_future(lease(number)) for number in range(300)]
        await asyncio.sleep(0.1)
        service.go_on.set()
        assert await asyncio.gather(*leases) == [str(number) for number in range(300)]


async def test_orders_wait_for_a_client_that_does_not_read() -> None:
    async with served() as (service, _, address):
        hello = pb.Hello(proof=TOKEN + "w", name="w").SerializeToString()
        said = GREETING + REQUEST.pack(len(hello), 0, HELLO, 0) + hello
        order = REQUEST.pack(0, 1, METHODS["Orders"].number, 3)
        async with connected(address, said + order):
            before = -1
            while service.sent != before:
                before = service.sent
                await asyncio.sleep(0.2)
            assert 0 < before < 1000
        await asyncio.wait_for(service.cancelled.wait(), LIMIT_S)


class Wire(asyncio.Transport):
    """Takes `most` writes, and drops what follows, as asyncio does after a write that failed."""

    def __init__(self, connection: socket.socket, most: float = math.inf) -> None:
        super().__init__({"socket": connection})
        self.written: list[bytes] = []
        self.reads = True
        self._most = most

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return len(self.written) > self._most

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


async def test_orders_stay_queued_while_the_connection_drops_them() -> None:
    orders = OrderStreams(0)
    name = ProcessName(Role.WORKER, 0)

    class Ordering:
        async def Orders(self, request: Any, call: Call) -> AsyncGenerator[Any]:
            async with aclosing(orders.stream(name)) as stream:
                async for order in stream:
                    yield pb.Order(drain=repr(order))

    with socket.socket() as unused:
        wire = Wire(unused, 2)
        orders.put(name, Drain("one", 30.0))
        orders.put(name, Drain("two", 30.0))
        server = CallServer(lambda caller: TOKEN)
        server.serve(Ordering(), check)
        connection = call_server._Connection(server)
        connection.connection_made(wire)
        hello = pb.Hello(proof=TOKEN, name="w").SerializeToString()
        connection.data_received(GREETING + REQUEST.pack(len(hello), 0, HELLO, 0) + hello)
        connection.data_received(REQUEST.pack(0, 1, METHODS["Orders"].number, 3))
        await asyncio.gather(*connection.calls())
        # The greeting, the servers, and one order, which the connection dropped.
        assert len(wire.written) == 3
        next_stream = orders.stream(name)
        came = [await anext(next_stream) for _ in range(3)]
        assert came[1:] == [Drain("one", 30.0), Drain("two", 30.0)]


async def test_a_client_that_reads_no_answers_is_not_read() -> None:
    with socket.socket() as unused:
        wire = Wire(unused)
        server = CallServer(lambda caller: TOKEN)
        server.serve(Service(), check)
        connection = call_server._Connection(server)
        connection.connection_made(wire)
        hello = pb.Hello(proof=TOKEN, name="w").SerializeToString()
        connection.data_received(GREETING + REQUEST.pack(len(hello), 0, HELLO, 0) + hello)
        connection.pause_writing()
        assert not wire.reads
        call = METHODS["Who"].number
        # What had come before the pause.
        connection.data_received(b"".join(REQUEST.pack(0, one, call, 3) for one in range(9)))
        assert len(wire.written) <= 2
        connection.resume_writing()
        for _ in range(3):
            await asyncio.sleep(0)
        assert wire.reads and len(wire.written) == 10


async def test_who_knows_an_earlier_master_only_learns_that_before_it_calls() -> None:
    async with served(term=4) as (service, _, address), client(address) as one:
        lease = pb.LeaseRequest(sequence=1)
        for _ in range(2):
            call = one.call(METHODS["RequestLease"], lease, term=3, timeout_s=LIMIT_S)
            assert (await failure(call)).code() is grpc.StatusCode.ABORTED
        stream = one.stream(METHODS["Orders"], pb.OrdersRequest(), term=3)
        assert (await failure(anext(stream))).code() is grpc.StatusCode.ABORTED
        assert service.sent == 0
        # Whoever has not attached, and what needs no attaching, is answered as ever.
        await status(one)
        service.go_on.set()
        for term in (0, 4, 5):
            await one.call(METHODS["RequestLease"], lease, term=term, timeout_s=LIMIT_S)


async def test_a_wrong_proof_is_answered_once() -> None:
    async with served() as (_, _, address):
        hello = pb.Hello(proof="wrong", name="w").SerializeToString()
        said = GREETING + REQUEST.pack(len(hello), 0, HELLO, 0) + hello
        call = REQUEST.pack(0, 1, METHODS["Status"].number, 3)
        async with connected(address, said + 3 * call) as (reader, _):
            answers = list(Frames(REPLY).feed(await asyncio.wait_for(reader.read(), 5.0)))
        assert [fields for fields, _ in answers] == [(0, TERM), (1, 16)]


async def test_an_answer_that_is_too_large_fails_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_server, "MAX_MESSAGE_BYTES", 10_000)
    async with served() as (service, _, address), client(address) as one:
        lease = one.call(
            METHODS["RequestLease"], pb.LeaseRequest(sequence=1), term=3, timeout_s=LIMIT_S
        )
        waiting = asyncio.ensure_future(lease)
        stream = one.stream(METHODS["Orders"], pb.OrdersRequest(), term=3)
        failed = await failure(anext(stream))
        assert failed.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        service.go_on.set()
        assert (await waiting).wait_reason == "1"


async def test_a_call_may_be_cancelled_before_it_begins() -> None:
    async with served() as (_, _, address):
        hello = pb.Hello(proof=TOKEN + "w", name="w").SerializeToString()
        said = GREETING + REQUEST.pack(len(hello), 0, HELLO, 0) + hello
        for number in range(1, 200):
            said += REQUEST.pack(0, number, METHODS["RequestLease"].number, 3)
            said += REQUEST.pack(0, number, CANCEL, 0)
        said += REQUEST.pack(0, 200, METHODS["Status"].number, 3)
        async with connected(address, said) as (reader, _):
            frames, numbers = Frames(REPLY), set[int]()
            while 200 not in numbers:
                data = await asyncio.wait_for(reader.read(4096), LIMIT_S)
                numbers |= {fields[0] for fields, _ in frames.feed(data)}


class Garbled:
    """Answers with bytes that are no message."""

    class Reply:
        ByteSize = staticmethod(lambda: 3)
        SerializeToString = staticmethod(lambda: b"\xff\xff\xff")

    async def Status(self, request: Any, call: Call) -> Any:
        return self.Reply

    async def Orders(self, request: Any, call: Call) -> AsyncGenerator[Any]:
        yield self.Reply


def test_an_answer_that_cannot_be_decoded_fails_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    master = ServedCalls(Garbled(), lambda caller: TOKEN)
    calls = ThreadedCalls(master.address, Credentials(TOKEN, "w", "one"), None, "")
    try:
        for _ in range(2):
            with pytest.raises(CallFailed, match="undecodable"):
                calls.call("Status", pb.StatusRequest(), term=3, timeout_s=LIMIT_S)
            with pytest.raises(CallFailed, match="undecodable"):
                list(calls.stream("Orders", pb.OrdersRequest(), term=3))

        async def broken(*_: Any, **__: Any) -> AsyncGenerator[Any]:
            raise KeyError("a bug")
            yield

        monkeypatch.setattr(calls._client, "stream", broken)
        with pytest.raises(CallFailed, match="a bug"):
            list(calls.stream("Orders", pb.OrdersRequest(), term=3))
    finally:
        calls.close()
        master.close()


def test_a_thread_that_cannot_start_fails_the_call_and_not_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    master = ServedCalls(Service(), lambda caller: TOKEN)
    calls = ThreadedCalls(master.address, Credentials(TOKEN, "w", "one"), None, "")
    try:
        with monkeypatch.context() as patch:
            patch.setattr("threading.Thread.start", refused)
            with pytest.raises(CallFailed, match="new thread"):
                calls.call("Status", pb.StatusRequest(), term=3, timeout_s=LIMIT_S)
        assert calls.call("Status", pb.StatusRequest(), term=3, timeout_s=LIMIT_S).status == "fine"
    finally:
        calls.close()
        master.close()


async def test_all_addresses_are_those_of_both_versions_of_ip() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    server = CallServer(lambda caller: TOKEN)
    server.serve(Service(), check)
    port = await server.start("::", 0)
    try:
        for address in (f"127.0.0.1:{port}", f"[::1]:{port}"):
            async with client(address, TOKEN) as one:
                assert (await status(one)).status == "fine"
    finally:
        await server.close()


async def test_who_proves_itself_gets_a_place_that_strangers_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))
    async with served() as (_, _, address), AsyncExitStack() as known:
        for _ in range(63):
            await status(await known.enter_async_context(client(address)))
        await known.enter_async_context(connected(address))
        # Every place is taken, one of them by a stranger.
        await status(await known.enter_async_context(client(address)))
        async with client(address) as one:
            assert (await failure(status(one))).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_master_that_ends_takes_no_more_calls_and_waits_for_no_stranger() -> None:
    async with (
        served() as (service, server, address),
        client(address) as one,
        connected(address) as (stranger, _),
    ):
        lease = one.call(
            METHODS["RequestLease"], pb.LeaseRequest(sequence=1), term=3, timeout_s=LIMIT_S
        )
        waiting = asyncio.ensure_future(lease)
        await status(one)
        ending = asyncio.ensure_future(server.close())
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(stranger.read(), LIMIT_S) == server.greeting
        assert (await failure(status(one))).code() is grpc.StatusCode.UNAVAILABLE
        assert not service.acted[1:], "what came too late"
        await asyncio.wait_for(ending, LIMIT_S)
        await failure(waiting)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(address: str, sent: bytes = b"") -> AsyncIterator[Streams]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    "sent",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        GREETING + REQUEST.pack(0, 1, METHODS["Status"].number, 3),
        GREETING + REQUEST.pack(MAX_MESSAGE_BYTES + 1, 0, HELLO, 0),
        GREETING + REQUEST.pack(5000, 0, HELLO, 0),
        GREETING + REQUEST.pack(3, 0, HELLO, 0) + b"\xff\xff\xff",
        b"",
    ],
)
async def test_a_stranger_is_hung_up_on(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    if not sent:
        monkeypatch.setattr(call_server, "_HELLO_S", 0.3)
    async with served() as (_, server, address):
        async with connected(address, sent) as (reader, _):
            with suppress(ConnectionResetError):
                # All others are known at once, long before the time for a greeting is over.
                limit_s = call_server._HELLO_S / 2 if sent else LIMIT_S
                assert await asyncio.wait_for(reader.read(), limit_s) == server.greeting
        async with client(address) as one:
            await status(one)


async def test_strangers_make_room_for_each_other_and_for_who_proves_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (128, 128))
    async with served() as (_, server, address), AsyncExitStack() as silent:
        first, _ = await silent.enter_async_context(connected(address))
        for _ in range(40):
            await silent.enter_async_context(connected(address))
        async with client(address) as one:
            await status(one)
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(first.read(), LIMIT_S) == server.greeting


async def test_a_connection_on_which_nothing_comes_is_replaced() -> None:
    """As when the machine of a master is stopped: its kernel still answers."""
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = f"127.0.0.1:{stopped.getsockname()[1]}"
        async with client(address) as one:
            for _ in range(2):
                call = one.call(METHODS["Status"], pb.StatusRequest(), term=3, timeout_s=0.2)
                assert (await failure(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        stopped.settimeout(LIMIT_S)
        for _ in range(2):
            stopped.accept()[0].close()


@pytest.mark.parametrize("end", ["its time is over", "its caller goes"])
async def test_a_connection_that_nobody_waits_for_just_when_it_is_made_is_closed(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, callers = list[asyncio.Timeout](), list[asyncio.Future[Any]]()
    limited, received = asyncio.timeout, _Connection.data_received

    def timeout(limit_s: float) -> asyncio.Timeout:
        limits.append(limited(limit_s))
        return limits[-1]

    def receive(connection: _Connection, data: bytes) -> None:
        # Both in the turn of the loop in which the term comes.
        if end == "its caller goes":
            callers[0].cancel()
        else:
            limits[-1].reschedule(0.0)
        received(connection, data)
        assert connection.has_term

    monkeypatch.setattr("elasticdl.rpc.call_client.asyncio.timeout", timeout)
    monkeypatch.setattr(_Connection, "data_received", receive)
    async with served() as (service, server, address), client(address) as one:
        callers.append(asyncio.ensure_future(status(one)))
        with pytest.raises((CallFailed, asyncio.CancelledError)):
            await callers[0]
        await until_async("it is closed", lambda: not server._connections)
        assert not service.acted


@pytest.mark.parametrize("header", [REQUEST, REPLY])
def test_frames_may_arrive_in_any_pieces(header: Any) -> None:
    choose = random.Random(7)
    messages = [choose.randbytes(choose.choice([0, 1, 30, 5000])) for _ in range(50)]
    rest = (5, 3) if header is REQUEST else (5,)
    stream = GREETING + b"".join(
        header.pack(len(message), 1, *rest) + message for message in messages
    )
    for most in (1, 7, 300, 100_000):
        frames, came, position = Frames(header), [], 0
        while position < len(stream):
            piece = stream[position : position + choose.randint(1, most)]
            came += list(frames.feed(piece))
            position += len(piece)
        assert came == [((1, *rest), message) for message in messages]


@pytest.mark.parametrize("begin", [b"x", b"elasticdl master calls 1\n", b"HTTP/1.1 400 Bad Re"])
def test_another_protocol_is_known_by_its_first_bytes(begin: bytes) -> None:
    with pytest.raises(NotOurProtocol):
        list(Frames(REPLY).feed(begin))


async def test_callers_connect_before_a_master_takes_calls_and_are_answered_then() -> None:
    server = CallServer(lambda caller: TOKEN + caller.name, term=3)
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    try:
        async with client(address) as one, client(address, TOKEN, "v") as stranger:
            calls = [asyncio.ensure_future(status(one)) for _ in range(3)]
            refused = await failure(status(stranger))
            assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
            await until_async("the calls", lambda: waiting_calls(server) == 3)
            assert not any(each.done() for each in calls)
            service = Service()
            server.serve(service, check)
            async with asyncio.timeout(LIMIT_S):
                assert [(await call).status for call in calls] == ["fine"] * 3
            assert service.acted == ["w one 3"] * 3
    finally:
        await server.close()


def waiting_calls(server: CallServer) -> int:
    known = [
        connection
        for connection in server._connections
        if isinstance(connection, call_server._Connection)
    ]
    return sum(len(one.calls()) for one in known)


@pytest.mark.parametrize("end", ["it is cancelled", "its connection breaks"])
async def test_a_call_that_its_caller_gave_up_before_a_master_takes_calls_has_no_effect(
    end: str,
) -> None:
    server, service = CallServer(lambda caller: TOKEN + caller.name, term=3), Service()
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    try:
        async with client(address) as one, client(address) as other:
            call = asyncio.ensure_future(failure(status(one)))
            await until_async("the call", lambda: waiting_calls(server) == 1)
            if end == "it is cancelled":
                call.cancel()
            else:
                await one.close()
            await until_async("it is cancelled", lambda: waiting_calls(server) == 0)
            server.serve(service, check)
            assert (await status(other)).status == "fine"
            assert service.acted == ["w one 3"], "of the other"
            await asyncio.gather(call, return_exceptions=True)
    finally:
        await server.close()


async def test_a_master_that_ends_before_it_takes_calls_says_so_to_those_that_wait() -> None:
    server = CallServer(lambda caller: TOKEN + caller.name, term=3)
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with client(address) as one:
        call = asyncio.ensure_future(failure(status(one)))
        await until_async("the call", lambda: waiting_calls(server) == 1)
        await server.close()
        assert (await call).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_master_notices_a_caller_that_vanished() -> None:
    """Connections inherit what the listening socket was told."""
    async with served() as (_, server, address), client(address) as one:
        await status(one)
        (connection,) = server._connections
        assert isinstance(connection, call_server._Connection)
        accepted = present(connection._transport).get_extra_info("socket")
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        seconds = [accepted.getsockopt(socket.IPPROTO_TCP, option) for option in options]
        assert seconds == [10, 1, 5]
        limit_ms = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert limit_ms == 15_000
