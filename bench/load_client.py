"""A client of a master that speaks its protocol and computes nothing.

It attaches with its token, follows its orders, leases, works, reports, and attaches again to the
next master. It waits longer for a greeting than a worker of the product, which drops a connection
without one after 5 s.
"""

from __future__ import annotations

import random
import ssl
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import grpc

from bench.load_connections import Connection, Loop
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.call_frames import (
    GREETING,
    HELLO,
    METHODS,
    MORE,
    OK,
    REQUEST,
    TERM,
    TERM_NUMBER,
)
from elasticdl.rpc.retry import PASSING
from elasticdl.tokens import process_token, proof_to_master

CALL_S, POLL_S, GIVE_UP_S = 15.0, 20.0, 90.0
CONNECT_S = 30.0
"""Deadline for a connection, its TLS handshake, and the master's greeting."""
RETRY_S = 1.0
"""A client makes a failed call again within this time."""
_SOON_S = 0.05
FIRST_SHARE = 1.2
"""What is left of the first lease's time at most: clients that start together get out of step."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}
GAUGES = {"step_ms": 31.5, "pull_ms": 4.1, "push_ms": 6.2, "staleness_mean": 0.7, "rss_bytes": 9e8}


def finished(lease: Any) -> pb.Progress:
    """What a worker reports of a lease whose records it has all trained."""
    offset = lease.end - lease.begin
    return pb.Progress(
        task=lease.task,
        applied=pb.Applied(shard=lease.shard, attempt=lease.attempt, offset=offset),
        version=1,
        has_loss=True,
        loss=0.5,
        done=True,
    )


def received(lease: Any) -> pb.ReceivedLease:
    """What a worker tells the next master of the lease that it has."""
    return pb.ReceivedLease(
        task=lease.task, shard=lease.shard, attempt=lease.attempt, round=lease.round
    )


@dataclass(slots=True)
class Measured:
    """What the clients of this process saw since the window began."""

    leases_ms: list[float] = field(default_factory=list)
    reports: int = 0


class Process(Protocol):
    """What the clients of a process share."""

    loop: Loop
    measured: Measured
    address: tuple[str, int]
    token: str
    lease_s: float
    context: ssl.SSLContext | None

    def wait(self, client: Client) -> None:
        """Have a client connect again once the master listens."""


class Client:
    """A worker; a parameter server is one that reports, and leases nothing."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = ProcessName.parse(name)
        self._process, self._loop = process, process.loop
        token = process_token(process.token, name)
        hello = pb.Hello(proof=proof_to_master(token), name=name, instance=name).SerializeToString()
        self._hello = GREETING + REQUEST.pack(len(hello), 0, HELLO, 0) + hello
        self._random = random.Random(name)
        self._attach = pb.AttachRequest()
        self._connection: Connection | None = None
        self._numbers = 0
        self._calls: dict[int, tuple[str, float]] = {}
        """Calls in progress by number: the method, and when it was sent."""
        self._lease: Any = None
        self._report: pb.ReportRequest | None = None
        """A report without an answer."""
        self._wanted_s: float | None = None
        """Since when the client wants a lease."""
        self._revocation = self._reports = self._sequence = 0
        self._heartbeat_s, self._reported_s = 2.0, time.monotonic()
        self._away_s: float | None = None
        self._share = self._random.uniform(0.0, FIRST_SHARE)
        self.term = 0
        self._connect_by_s: float | None = None
        """Deadline of a connection without a greeting."""
        self._attached_now = False
        """Whether this connection is one of the master that it has attached to."""
        self.answered_s = time.monotonic()
        self.failure = ""

    def start(self, address: str = "") -> None:
        """Attach, and work. `address`: where a server serves a master."""
        self._attach.control_address = self._attach.bulk_address = address
        self.connect()
        self._loop.later(1.0, self._look)

    def connect(self) -> None:
        """Connect to the master; it tells its term first."""
        if self.failure:
            return
        self._calls.clear()
        self._attached_now = False
        self._connect_by_s = time.monotonic() + CONNECT_S
        process = self._process
        self._connection = Connection(
            self._loop, process.address, process.context, self._hello, self._received, self._lost
        )

    def _lost(self) -> None:
        now_s = time.monotonic()
        self._away_s = self._away_s or now_s
        if now_s - self._away_s > GIVE_UP_S:
            self.failure = "the master was away for too long"
            return
        self._process.wait(self)

    def _call(self, method: str, request: Any) -> None:
        if self._connection is None or not self._connection.open:
            return
        if method != "Attach" and not self._attached_now:
            return  # `_resume` makes it.
        self._numbers = number = self._numbers % 0xFFFF_FFFF + 1
        self._calls[number] = method, time.monotonic()
        message = request.SerializeToString()
        header = REQUEST.pack(len(message), number, METHODS[method].number, self.term)
        self._connection.send(header + message)

    def _received(self, number: int, outcome: int, message: bytes) -> None:
        if outcome == TERM:
            self._met(*TERM_NUMBER.unpack(message))
            return
        method, _ = self._calls[number]
        if outcome != MORE:
            del self._calls[number]
        if outcome not in (OK, MORE):
            self._refused(method, _CODES.get(outcome, grpc.StatusCode.UNKNOWN), message)
            return
        self.answered_s = time.monotonic()
        if outcome == OK and method == "Orders":
            self._call("Orders", pb.OrdersRequest())
            return
        self._answered[method](self, METHODS[method].reply.FromString(message))

    def _met(self, term: int) -> None:
        """Attach to a master, or continue with the one that is known."""
        self._away_s = self._connect_by_s = None
        if term != self.term:
            self._attach_to()
        else:
            self._attached_now = True
            self._resume()

    def _attach_to(self) -> None:
        request = self._attach
        request.again, request.revocation = self.term > 0, self._revocation
        del request.received[:]
        if (lease := self._lease) is not None and self.term:
            request.received.append(received(lease))
        self._call("Attach", request)

    def _attached(self, reply: Any) -> None:
        self.term, self._heartbeat_s = reply.term, reply.heartbeat_s
        self._attached_now = True
        self._resume()

    def _resume(self) -> None:
        """Make the calls again that have no answer."""
        self._call("Orders", pb.OrdersRequest())
        if self._report is not None:
            self._call("Report", self._report)
        elif self.name.role is Role.WORKER and self._lease is None:
            self._want_lease()

    def _refused(self, method: str, code: grpc.StatusCode, why: bytes) -> None:
        if code is grpc.StatusCode.ABORTED:
            self._attached_now = False
            self._attach_to()
        elif code in PASSING:
            delay_s = self._random.uniform(0.5, 1.0) * RETRY_S
            connection = self._connection

            def again() -> None:
                # A new connection has made all calls again.
                if connection is self._connection and connection is not None and connection.open:
                    self._again[method](self)

            self._loop.later(delay_s, again)
        else:
            self._end(f"{code.name}: {why.decode(errors='replace')}")

    def _report_again(self) -> None:
        if self._report is not None:
            self._call("Report", self._report)

    def _end(self, why: str) -> None:
        self.failure = why
        if self._connection is not None:
            self._connection.close()

    def _ordered(self, order: Any) -> None:
        match order.WhichOneof("order"):
            case "finish" | "drain":
                self._end("the master ended this client")
            case "revoke":
                self._revocation = max(self._revocation, order.revoke.revocation)

    def _want_lease(self) -> None:
        if self._wanted_s is None:
            self._wanted_s = time.monotonic()
            self._sequence += 1
        self._call("RequestLease", pb.LeaseRequest(wait_s=POLL_S, sequence=self._sequence))

    def _leased(self, reply: Any) -> None:
        """Work on the lease of an answer, or ask for one."""
        match reply.WhichOneof("answer"):
            case "lease":
                if self._wanted_s is not None:
                    waited_s = time.monotonic() - self._wanted_s
                    self._process.measured.leases_ms.append(1e3 * waited_s)
                self._wanted_s, self._lease = None, reply.lease
                self._loop.later(self._process.lease_s * self._share, self._worked)
                self._share = self._random.uniform(0.8, 1.2)
            case "finished":
                self._end("the job has no more records")
            case _:
                self._sequence += 1
                self._want_lease()

    def _worked(self) -> None:
        """Report a finished lease, and ask for the next one in the same call."""
        lease, self._lease = self._lease, None
        if lease.revocation < self._revocation:
            self._want_lease()
            return
        self._wanted_s = time.monotonic()
        self._sequence += 1
        self._lease = lease  # Until there is an answer: another master is told of it.
        self._begin_report(pb.ReportRequest(progress=[finished(lease)], gauges=GAUGES))

    def _begin_report(self, report: pb.ReportRequest) -> None:
        if self.failure:
            return
        if self._report is not None:
            # Only a heartbeat can be in progress: its answer comes first.
            self._loop.later(_SOON_S, lambda: self._begin_report(report))
            return
        self._reports += 1
        report.sequence = self._reports
        if report.progress:
            report.lease.sequence = self._sequence
        self._report = report
        self._call("Report", report)

    def _reported(self, reply: Any) -> None:
        report, self._report = self._report, None
        self._reported_s = time.monotonic()
        self._process.measured.reports += 1
        self._heartbeat_s = reply.heartbeat_s or self._heartbeat_s
        if report is not None and report.progress:
            self._lease = None
            self._leased(reply.lease)

    def _look(self) -> None:
        """Report if a heartbeat is due, and give up a connection that does not answer."""
        if self.failure:
            return
        now_s = time.monotonic()
        beat_s = self._reported_s + self._heartbeat_s - now_s
        if beat_s <= 0 and self._report is None and self.term:
            # A server's version grows with the pushes of its workers.
            version = int(now_s) if self.name.role is Role.PS else 0
            self._begin_report(pb.ReportRequest(version=version, gauges=GAUGES))
        limits_s = {"Orders": float("inf"), "RequestLease": POLL_S + CALL_S}
        late = any(now_s - at_s > limits_s.get(of, CALL_S) for of, at_s in self._calls.values())
        late |= self._connect_by_s is not None and now_s > self._connect_by_s
        if late and self._connection is not None and self._connection.open:
            self._connection.close()
            self._lost()
        self._loop.later(min(max(beat_s, 0.1), 1.0), self._look)

    _answered: ClassVar = {
        "Attach": _attached,
        "Orders": _ordered,
        "RequestLease": _leased,
        "Report": _reported,
    }
    _again: ClassVar = {
        "Attach": _attach_to,
        "Orders": lambda self: self._call("Orders", pb.OrdersRequest()),
        "RequestLease": _want_lease,
        "Report": _report_again,
    }
