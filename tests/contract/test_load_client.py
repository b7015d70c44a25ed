"""A client of the load benchmark waits with deadlines, and stops when it has failed."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

import pytest

from bench import load_client
from bench.load_client import Client, Measured
from bench.load_connections import Loop
from elasticdl.rpc import elasticdl_pb2 as pb

pytestmark = [pytest.mark.contract, pytest.mark.timeout(60)]


class ConnectsAgain(Exception):
    """The client gave its connection up."""


class NotedLoop(Loop):
    """Keeps what is due later."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[Callable[[], None]] = []

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.due.append(call)
        super().later(delay_s, call)


class OneClient:
    """What a client needs of its process. Its first loss of a connection ends the loop."""

    def __init__(self, address: tuple[str, int], loop: Loop) -> None:
        self.loop, self.measured = loop, Measured()
        self.address, self.token, self.lease_s = address, "token", 1.0
        self.context: ssl.SSLContext | None = None

    def wait(self, client: Client) -> None:
        raise ConnectsAgain


def test_a_client_gives_up_a_connection_that_is_not_greeted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_client, "CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = OneClient(silent.getsockname(), Loop())
        Client("worker-0", process).start()
        with pytest.raises(ConnectsAgain):
            process.loop.run()


def test_a_client_that_has_failed_plans_no_further_report() -> None:
    loop = NotedLoop()
    client = Client("worker-0", OneClient(("127.0.0.1", 9), loop))
    client._begin_report(pb.ReportRequest())
    client._begin_report(pb.ReportRequest())
    (again,) = loop.due  # The second report waits for the answer to the first one.
    client._end("the job has no more records")
    loop.due.clear()
    again()
    assert not loop.due
