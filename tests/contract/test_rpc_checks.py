"""The check of every gRPC call: what parameter servers and copies of the journal stand behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.channel import Caller, Credentials, SyncChecks, channel_options, server_options
from elasticdl.rpc.elasticdl_pb2_grpc import (
    ParameterServerServicer,
    ParameterServerStub,
    add_ParameterServerServicer_to_server,
)
from tests.present import present

pytestmark = pytest.mark.contract

TOKEN = "token"


def check(caller: Caller, method: str) -> str:
    if caller.term < 3:
        return f"term {caller.term} is over"
    return "only the master may fence" if method == "Fence" and caller.name != "master" else ""


class SyncService(ParameterServerServicer):
    """Remembers what it did."""

    def __init__(self) -> None:
        self.acted: list[str] = []

    def Fence(self, request: Any, context: Any) -> Any:
        self.acted.append(request.worker)
        return pb.FenceReply(sequence=5)


@pytest.fixture
def served() -> Iterator[tuple[str, SyncService]]:
    service = SyncService()
    server = grpc.server(
        futures.ThreadPoolExecutor(2),
        interceptors=[SyncChecks(lambda caller: TOKEN, check)],
        options=server_options(),
    )
    add_ParameterServerServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", service
    server.stop(None).wait(10)


def fence(address: str, metadata: tuple[tuple[str, str], ...]) -> Any:
    with grpc.insecure_channel(address, options=channel_options()) as channel:
        return ParameterServerStub(channel).Fence(
            pb.FenceRequest(worker="worker-1"), timeout=10, metadata=metadata
        )


def test_who_has_the_token_and_passes_the_check_is_served(served: tuple[str, SyncService]) -> None:
    address, service = served
    assert fence(address, Credentials(TOKEN, "master").metadata(3)).sequence == 5
    assert service.acted == ["worker-1"]


@pytest.mark.parametrize(
    ("metadata", "code", "words"),
    [
        ((), "UNAUTHENTICATED", "token"),
        ((("authorization", TOKEN),), "UNAUTHENTICATED", "token"),
        (Credentials("Token", "master").metadata(3), "UNAUTHENTICATED", "token"),
        (
            (*Credentials(TOKEN, "master").metadata(3), ("authorization", "Bearer x")),
            "UNAUTHENTICATED",
            "token",
        ),
        (Credentials(TOKEN, "master").metadata(2), "FAILED_PRECONDITION", "term 2 is over"),
        (Credentials(TOKEN, "worker-1").metadata(3), "FAILED_PRECONDITION", "only the master"),
        (
            (("authorization", f"Bearer {TOKEN}"), ("x-elasticdl-term", "many")),
            "INVALID_ARGUMENT",
            "not a number",
        ),
    ],
)
def test_whoever_does_not_is_refused_and_nothing_is_acted_on(
    served: tuple[str, SyncService], metadata: tuple[tuple[str, str], ...], code: str, words: str
) -> None:
    address, service = served
    with pytest.raises(grpc.RpcError) as caught:
        fence(address, metadata)
    assert caught.value.code().name == code
    assert words in present(caught.value.details())
    assert service.acted == []


def test_a_stranger_is_refused_before_its_message_is_read(served: tuple[str, SyncService]) -> None:
    never = threading.Event()

    def message_that_never_comes() -> Iterator[bytes]:
        never.wait(30)
        yield b""

    with grpc.insecure_channel(served[0], options=channel_options()) as channel:
        call = channel.stream_unary("/elasticdl.ParameterServer/Fence", None, None)
        try:
            with pytest.raises(grpc.RpcError) as caught:
                call(message_that_never_comes(), timeout=10)
        finally:
            never.set()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_undecodable_messages_fill_no_log(
    served: tuple[str, SyncService], caplog: pytest.LogCaptureFixture
) -> None:
    metadata = Credentials(TOKEN, "master").metadata(3)
    with grpc.insecure_channel(served[0], options=channel_options()) as channel:
        call = channel.unary_unary("/elasticdl.ParameterServer/Fence", None, None)
        for _ in range(50):
            with pytest.raises(grpc.RpcError):
                call(b"\xff\xff\xff", timeout=10, metadata=metadata)
    logged = [record for record in caplog.records if record.name.startswith("grpc")]
    assert len(logged) <= 1 and not any(record.exc_info for record in logged)
    assert fence(served[0], metadata).sequence == 5


def test_a_connection_that_says_nothing_is_closed(served: tuple[str, SyncService]) -> None:
    host, _, port = served[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as silent:
        while silent.recv(4096):  # the server's own settings come first
            pass
    assert fence(served[0], Credentials(TOKEN, "master").metadata(3)).sequence == 5


def test_a_client_waits_for_a_server_that_is_slow_to_accept() -> None:
    """Thousands of clients that hang up early and come again keep a master from accepting any."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        busy.settimeout(30)
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        with grpc.insecure_channel(address, options=channel_options()) as channel:
            channel.subscribe(lambda _: None, try_to_connect=True)
            connection, _ = busy.accept()
            with connection:
                connection.settimeout(1.0)
                with pytest.raises(TimeoutError):
                    while connection.recv(4096):  # its preface and settings come first
                        pass
                    pytest.fail("the client has hung up")


def test_a_method_that_is_not_there_is_refused_like_any_other_without_the_token(
    served: tuple[str, SyncService],
) -> None:
    with grpc.insecure_channel(served[0], options=channel_options()) as channel:
        absent = channel.unary_unary("/elasticdl.ParameterServer/Absent", None, None)
        with pytest.raises(grpc.RpcError) as caught:
            absent(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as caught:
            absent(b"", timeout=10, metadata=Credentials(TOKEN, "master").metadata(3))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_parameter_server_leaves_half_of_its_open_files_to_the_bulk_plane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (4096, 4096))
    most = "grpc.max_allowed_incoming_connections"
    assert dict(server_options())[most] == 2048
