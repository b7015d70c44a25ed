"""A process's side of the conversation with its master.

It survives an unreachable master for as long as `away_s`. To a master that has taken the job over
it attaches again by itself, and reports which leases it has.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, final

import grpc
from google.protobuf.message import Message

from elasticdl.cluster.base import ProcessName
from elasticdl.errors import MasterReplaced, PermanentError, TransientError
from elasticdl.job import JobSpec
from elasticdl.job_status import JobStatus
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc import messages
from elasticdl.rpc.call_frames import Answer
from elasticdl.rpc.call_thread import ThreadedCalls
from elasticdl.rpc.channel import Credentials
from elasticdl.rpc.conversation import Attached, LeaseAnswer, Order, Report, Revoke, Settled
from elasticdl.rpc.retry import delay_s, mapped, retrying
from elasticdl.shard import Applied, Lease, ReceivedLease, Source
from elasticdl.tls import MASTER_NAME
from elasticdl.tokens import proof_to_master

_LONG_POLL_SLACK_S = 10.0
_CALL_S = 15.0
ATTACH_AGAIN_S: Final = 8.0
"""A process is heard in time if one of these calls is lost: this is less than
`gateway.heartbeats.SILENCE_S`. The last of 10,000 has its answer after 3 to 5 s."""
_RECEIVED_KEPT = 1024
"""Newest leases to tell another master of: more than a worker can have at a time."""


@final
class MasterClient:
    """Thread-safe: leases, reports and orders each have their own thread in a worker.

    Every call raises Refused if this process was replaced or its token is wrong (leave with exit
    code FENCED), TransientError if the master was unreachable for `away_s`, and UserError if the
    master rejects a message as invalid.
    """

    def __init__(
        self,
        address: str,
        token: str,
        name: str,
        *,
        away_s: float,
        authority: str | None = None,
    ) -> None:
        """`address` of the master, host:port; `token` of the process `name`, such as `worker-3`.

        People use the job's token and any other name. Calls are retried for `away_s` while the
        master is unreachable. `authority` (PEM) signs the master's
        certificate; None: clear text.
        """
        self._address = address
        self._credentials = Credentials(proof_to_master(token), name)
        self._away_s = away_s
        self._term = 0
        self._closed = threading.Event()
        self._calls = ThreadedCalls(address, self._credentials, authority, MASTER_NAME)
        self._report_lock = threading.Lock()
        self._reports = 0
        self._lease_lock = threading.Lock()
        self._leases = 0
        self._attach_lock = threading.Lock()
        """Guards the term, and what another master is told of this process."""
        self._attached: pb.AttachRequest | None = None
        self._received: deque[ReceivedLease] = deque(maxlen=_RECEIVED_KEPT)
        self._revocation = 0
        self._unsettled: set[int] = set()
        """Pushes of synchronous steps whose outcome is not known."""

    def who(self) -> ProcessName:
        """Who this process is: a server that the platform started in the place of another one.

        `name` is then that one's. Blocks while the master does not know that it has ended.
        """
        reply = self._call("Who", pb.WhoRequest(), "question who it is")
        return ProcessName.parse(reply.name)

    def attach(
        self,
        control_address: str = "",
        bulk_address: str = "",
        restored_version: int | None = None,
        *,
        starting: bool = False,
        public_key: bytes = b"",
        memory: int = 0,
        kept: bool = False,
        loaded: str = "",
        not_loaded: str = "",
    ) -> Attached:
        """Attach this process. Reports are due from now on.

        A server attaches twice: without addresses, to learn `Attached.restore_from`, and again when
        it can serve, with both addresses and the version it restored (None: it has no state yet).
        Only then does the master announce it. `starting`: a worker that first builds a model; its
        reports say when it is ready for work. `public_key` (DER) of a server that wants a
        certificate. `memory` is the number of a server's kept memory, 0 for none; `kept`: it was
        taken on from the process before. A server that stands by attaches again with the directory
        of each checkpoint that it has `loaded`, or that was gone before (`not_loaded`).
        """
        request = pb.AttachRequest(
            control_address=control_address,
            bulk_address=bulk_address,
            has_state=restored_version is not None,
            restored_version=restored_version or 0,
            starting=starting,
            public_key=public_key,
            memory=memory,
            kept=kept,
            loaded=loaded,
            not_loaded=not_loaded,
        )
        reply = self._call("Attach", request, "attach")
        with self._attach_lock:
            self._term, self._attached = reply.term, request
        return _attached(reply)

    def request_lease(self, wait_s: float) -> LeaseAnswer:
        """Ask for one more lease; blocks for up to `wait_s` while there is none.

        One caller at a time (others queue). A retry gets a lost answer again, so no lease is lost.
        """
        return self._next(pb.LeaseRequest(), wait_s)

    def request_item(self, number: int, wait_s: float, *, at_mark: bool = False) -> LeaseAnswer:
        """Request the ring's item of that number (from 1); blocks for up to `wait_s`.

        0: a worker outside the ring requests the ring's current item, to read it ahead. `at_mark`:
        the ring waits before that item, so the answer may also be a lease for this worker alone.
        """
        return self._next(pb.LeaseRequest(ring_number=number, at_mark=at_mark), wait_s)

    def _next(self, request: pb.LeaseRequest, wait_s: float) -> LeaseAnswer:
        with self._lease_lock:
            request.wait_s, request.sequence = wait_s, self._leases + 1
            while True:
                reply, term = self._call_of_term(
                    "RequestLease", request, "lease", attempt_s=wait_s + _LONG_POLL_SLACK_S
                )
                try:
                    answer = messages.lease_answer_from_wire(reply)
                except ValueError as error:
                    raise PermanentError(f"{self._what('lease')}: {error}") from error
                if self._take(answer, term):
                    # After the answer: a retry repeats the number, and the master its answer.
                    self._leases += 1
                    return answer

    def _take(self, answer: LeaseAnswer, term: int) -> bool:
        """Note a lease. False if another master was told meanwhile that it did not arrive."""
        with self._attach_lock:
            if self._term != term:
                return False
            if isinstance(answer, Lease):
                self._received.append(ReceivedLease.of(answer))
                self._revocation = max(self._revocation, answer.revocation)
            return True

    def take_turn(self, number: int, epoch: int, revocation: int, wait_s: float) -> tuple[int, str]:
        """Ask for turn `number` (from 1) to compute a gradient of a synchronous step.

        Blocks for up to `wait_s`. Returns its step, or 0 and why there is no turn yet. A repeated
        number gets the same turn.
        """
        request = pb.TurnRequest(wait_s=wait_s, number=number, epoch=epoch, revocation=revocation)
        reply = self._call("TakeTurn", request, "turn", attempt_s=wait_s + _LONG_POLL_SLACK_S)
        return reply.step, reply.wait_reason

    def end_turn(
        self, number: int, sequence: int, examples: float, applied: Applied, *, last: bool
    ) -> bool:
        """End a turn: every server has push `sequence`, or it is given up (0).

        `number` 0: only the lease ends. Returns whether the gradient is part of its step.
        """
        if sequence:
            with self._attach_lock:
                self._unsettled.add(sequence)
        request = pb.EndTurnRequest(
            number=number,
            sequence=sequence,
            examples=examples,
            applied=messages.applied_to_wire(applied),
            last=last,
        )
        reply = self._call("EndTurn", request, "end of a turn")
        if not reply.accepted:
            with self._attach_lock:
                self._unsettled.discard(sequence)
        return bool(reply.accepted)

    def report(self, report: Report) -> float | None:
        """Report progress, and that this process lives; due every `Attached.heartbeat_s`.

        Counted exactly once. Returns after how many seconds the next one is due; None: as before.
        """
        reply, _ = self._report(report, None)
        return reply.heartbeat_s or None

    def report_and_request(self, report: Report) -> tuple[float | None, LeaseAnswer | None]:
        """Report, and ask for one more lease in the same call; see `report`.

        The answer does not wait for work: `Wait` if there is no lease now. None: another master
        was told meanwhile that the answer did not arrive, so ask it again.
        """
        with self._lease_lock:
            reply, term = self._report(report, pb.LeaseRequest(sequence=self._leases + 1))
            try:
                answer = messages.lease_answer_from_wire(reply.lease)
            except ValueError as error:
                raise PermanentError(f"{self._what('report')}: {error}") from error
            taken = self._take(answer, term)
            self._leases += taken
            return reply.heartbeat_s or None, answer if taken else None

    def _report(self, report: Report, lease: pb.LeaseRequest | None) -> tuple[pb.ReportReply, int]:
        """Return the reply, and the term of the master that it is from."""
        with self._report_lock:
            request = messages.report_to_wire(report, self._reports + 1)
            if lease is not None:
                request.lease.CopyFrom(lease)
            answered = self._call_of_term("Report", request, "report", attempt_s=_CALL_S)
            # After the answer: the master counts a repeated number once.
            self._reports += 1
            return answered

    def orders(self) -> Iterator[Order]:
        """The master's orders, as they come; ends when this client is closed.

        The first order after (re)connecting is always `Servers`.
        """
        attempt, away_since_s = 0, time.monotonic()
        while not self._closed.is_set():
            term = self._term
            try:
                for message in self._calls.stream("Orders", pb.OrdersRequest(), term=term):
                    attempt = 0
                    order = messages.order_from_wire(message)
                    self._note(order)
                    yield order
                    away_since_s = time.monotonic()
            except (grpc.RpcError, ValueError) as error:
                if self._closed.is_set():
                    return
                self._survive(error, time.monotonic() - away_since_s if attempt else 0.0, term)
            away_since_s = away_since_s if attempt else time.monotonic()
            attempt += 1
            self._closed.wait(delay_s(attempt))

    def _note(self, order: Order) -> None:
        """Keep what another master would have to know."""
        with self._attach_lock:
            match order:
                case Revoke():
                    self._revocation = max(self._revocation, order.revocation)
                case Settled():
                    self._unsettled = {
                        sequence for sequence in self._unsettled if sequence > order.through
                    }
                case _:
                    pass

    def status(self) -> JobStatus:
        """The job's status.

        Raises PermanentError if the master has an older version, whose status lacks fields.
        """
        reply = self._call("Status", pb.StatusRequest(), "status")
        try:
            return JobStatus.from_json(json.loads(reply.status))
        except ValueError as error:
            raise PermanentError(f"{self._what('status')}: {error}") from error

    def stop(self, reason: str) -> None:
        """Request the end of the job: workers drain, a checkpoint is taken."""
        self._call("Stop", pb.StopRequest(reason=reason), "stop")

    def scale(self, min_workers: int, max_workers: int) -> str:
        """Change the number of workers; return what stays as it is, in words, or ''."""
        request = pb.ScaleRequest(min_workers=min_workers, max_workers=max_workers)
        return str(self._call("Scale", request, "scale").stays)

    def scale_servers(self, number: int) -> None:
        """Change the number of parameter servers."""
        self._call("Scale", pb.ScaleRequest(servers=number), "scale")

    def checkpoint(self) -> None:
        """Request a checkpoint now."""
        self._call("Checkpoint", pb.CheckpointRequest(), "checkpoint")

    def close(self) -> None:
        """Close the connection. Calls in progress raise TransientError; `orders` ends."""
        self._closed.set()
        self._calls.close()

    def _what(self, call: str) -> str:
        return f"{call} of {self._credentials.name} at master {self._address}"

    def _call(
        self, method: str, request: Message, what: str, *, attempt_s: float = _CALL_S
    ) -> Answer:
        reply, _ = self._call_of_term(method, request, what, attempt_s=attempt_s)
        return reply

    def _call_of_term(
        self, method: str, request: Message, what: str, *, attempt_s: float
    ) -> tuple[Answer, int]:
        """Return the reply, and the term of the master that it is from."""

        def attempt(timeout_s: float) -> tuple[Answer, int]:
            term = self._term
            try:
                return self._calls.call(method, request, term=term, timeout_s=timeout_s), term
            except grpc.RpcError as error:
                if isinstance(mapped(error, what), MasterReplaced):
                    self._attach_again(term, timeout_s)
                raise

        return retrying(
            attempt, self._away_s, self._what(what), attempt_s=attempt_s, closed=self._closed
        )

    def _attach_again(self, term: int, timeout_s: float) -> None:
        """Attach to the master that has replaced the one of `term`, unless that was done before.

        Raises grpc.RpcError.
        """
        with self._attach_lock:
            if self._term != term or self._attached is None:
                return
            request = pb.AttachRequest()
            request.CopyFrom(self._attached)
            request.again, request.revocation = True, self._revocation
            request.received.extend(map(messages.received_to_wire, self._received))
            request.unsettled.extend(sorted(self._unsettled))
            limit_s = min(timeout_s, ATTACH_AGAIN_S)
            reply = self._calls.call("Attach", request, term=term, timeout_s=limit_s)
            self._term = reply.term

    def _survive(self, error: grpc.RpcError | ValueError, away_s: float, term: int) -> None:
        """Raise an error that a new stream cannot fix, or that has lasted too long."""
        if isinstance(error, ValueError):
            raise PermanentError(f"{self._what('orders')}: {error}") from error
        problem = mapped(error, self._what("orders"))
        if isinstance(problem, MasterReplaced):
            # Whatever fails here fails the next stream, too.
            with suppress(grpc.RpcError):
                self._attach_again(term, ATTACH_AGAIN_S)
        if not isinstance(problem, TransientError) or away_s > self._away_s:
            raise problem from error


def _attached(reply: pb.AttachReply) -> Attached:
    return Attached(
        term=reply.term,
        heartbeat_s=reply.heartbeat_s,
        spec=JobSpec.model_validate_json(reply.job),
        servers=tuple(reply.servers),
        restore_from=reply.restore_from,
        sources=tuple(
            Source(source.name, source.records, source.fingerprint) for source in reply.sources
        ),
        run=reply.run,
        bulk_tokens=tuple(reply.bulk_tokens),
        certificate=reply.certificate,
        first_server=reply.first_server,
        place=reply.place,
        places=reply.places,
        stands_by=reply.stands_by,
        rolls_back=reply.rolls_back,
    )
