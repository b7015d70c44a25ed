"""The calls of processes and people to the master: access checks, and messages to values and back.

It makes no decisions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn, Protocol, final

import grpc

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.errors import Refused, TransientError
from elasticdl.flag_values import MAX_SERVERS, MAX_WORKERS
from elasticdl.master.core.events import (
    CheckpointRequested,
    ProcessAttached,
    ScaleRequested,
    ScaleServersRequested,
    StopRequested,
)
from elasticdl.master.core.ps.roll_back import RollBack
from elasticdl.master.core.ps.server_map import ServerMap
from elasticdl.master.core.ps.steps import Contribution
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.gateway.process_gateway import ProcessGateway, Returning
from elasticdl.master.gateway.step_turns import StepTurns
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc import messages
from elasticdl.rpc.call_frames import ATTACHED
from elasticdl.rpc.call_server import Call
from elasticdl.rpc.channel import AttachAgain, CallDenied, Caller, Superseded
from elasticdl.rpc.conversation import Servers
from elasticdl.rpc.wire_counts import count_of
from elasticdl.shard import ShardId, Source
from elasticdl.tokens import bulk_key, bulk_token, process_token, proof_to_master, run_name

if TYPE_CHECKING:
    from elasticdl.tls.authority import Authority

_LONGEST_POLL_S = 60.0
_MOST_EXAMPLES = 1 << 53
"""Servers weigh gradients with examples, so sums of them must stay exact and finite."""
_MAY: Mapping[Role | None, frozenset[str]] = {
    None: frozenset({"Status", "Stop", "Scale", "Checkpoint"}),
    Role.WORKER: frozenset({"Attach", "RequestLease", "TakeTurn", "EndTurn", "Report", "Orders"}),
    # A server that leaves asks for a checkpoint, and waits for it.
    Role.PS: frozenset({"Who", "Attach", "Report", "Orders", "Status", "Checkpoint"}),
    Role.MASTER: frozenset(),
}
"""The calls of each role; None stands for the job's owner."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """What processes learn when they attach.

    `token` is the job's, from which theirs are derived. `restore_from` changes with each
    checkpoint. `job` is complete after the preflight, and so are `sources`, which are for workers.
    """

    token: str = field(repr=False)
    term: int
    job: Callable[[], str]
    restore_from: Callable[[], str]
    sources: Callable[[], Sequence[Source]] = tuple
    authority: Authority | None = None
    workers_serve: Callable[[], bool] = lambda: False
    """Whether workers have copies of the journal, and a server for them."""

    def certificate(self, name: ProcessName, public_key: bytes) -> str:
        """Certify the key of a process that serves others. Raises ValueError if it is not due."""
        if not public_key:
            return ""
        if self.authority is None:
            raise ValueError(f"{name} requested a certificate, but the job does not use TLS")
        if name.role is Role.WORKER and not self.workers_serve():
            raise ValueError(
                f"{name} requested a certificate, but this job's workers accept no connections"
            )
        # The name outlives an incarnation: workers know servers by their index.
        return self.authority.certify(public_key, [f"{name.role}-{name.index}"])


class _InvalidMessage(Exception):
    """An invalid message: INVALID_ARGUMENT."""


@contextmanager
def _valid() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise _InvalidMessage(str(error)) from error


@contextmanager
def _answering(call: Call) -> Iterator[None]:
    """Answer with a status if the block raises _InvalidMessage or Refused."""
    try:
        yield
    except _InvalidMessage as error:
        _invalid(call, str(error))
    except Refused as refused:
        call.abort(grpc.StatusCode.FAILED_PRECONDITION, refused.message)


class RequestChecks(Protocol):
    """Which requests of users a job can still fulfil."""

    def why_not_scale(self, low: int, high: int) -> str | None:
        """Return why the number of workers cannot change to low:high, or None."""

    def what_steps_stay(self, workers: int) -> str | None:
        """Return what does not follow a change to as many workers, or None."""

    def why_not_scale_servers(self) -> str | None:
        """Return why the number of parameter servers cannot change, or None."""

    def place_of(self, server: int) -> tuple[ServerMap, bool]:
        """Return the map of a server, and whether it stands by until it is told what to restore."""

    @property
    def roll_back(self) -> RollBack | None:
        """The return of all servers to a checkpoint; None if none is under way."""

    def why_not_checkpoint(self) -> str | None:
        """Return why no checkpoint can be taken, or None."""


@lru_cache(MAX_WORKERS)  # of callers that are connected
def _process_of(name: str) -> ProcessName | None:
    try:
        return ProcessName.parse(name)
    except ValueError:
        return None


def _process(caller: Caller) -> ProcessName | None:
    """Return the name of a process; None for people."""
    return _process_of(caller.name)


def proof_of(caller: Caller, token: str) -> str:
    """Return the proof of a process of that name, or of the owner for any other name.

    `token` is the job's.
    """
    return proof_to_master(process_token(token, caller.name) if _process(caller) else token)


def _name(call: Call) -> ProcessName:
    """Return the sender's name, which the access check has validated."""
    name = _process(call.caller)
    assert name is not None
    return name


@final
class MasterService:
    """The service; one instance per master."""

    def __init__(
        self,
        queue: EventQueue,
        gateway: ProcessGateway,
        welcome: Welcome,
        status: Callable[[], str],
        checks: RequestChecks,
    ) -> None:
        """`status` returns the job's status as JSON; `checks` knows which requests are possible."""
        self._queue = queue
        self._gateway = gateway
        self._welcome = welcome
        self._status = status
        self._checks = checks

    def refusal(self, caller: Caller, method: str) -> str | None:
        """Return why a caller who has proved its name is refused, or None."""
        name = _process(caller)
        if method not in _MAY[name.role if name else None]:
            return f"{caller.name or 'an unnamed caller'} may not call {method}"
        if name is None or method not in ATTACHED:
            return None
        if caller.term != self._welcome.term:
            kind: type[CallDenied] = Superseded
            if caller.term < self._welcome.term:
                # Without a term it has never attached.
                kind = AttachAgain if caller.term else CallDenied
            return kind(
                f"{caller.name} addresses the master of term {caller.term}, but this is term"
                f" {self._welcome.term}"
            )
        return self._gateway.sessions.refusal(name, caller.instance)

    async def Who(self, request: pb.WhoRequest, call: Call) -> pb.WhoReply:
        try:
            name = self._gateway.who(_name(call))
        except TransientError as unknown:
            call.abort(grpc.StatusCode.UNAVAILABLE, unknown.message)
        return pb.WhoReply(name=str(name))

    async def Attach(self, request: pb.AttachRequest, call: Call) -> pb.AttachReply:
        caller = call.caller
        with _answering(call):
            with _valid():
                event = self._attached(caller, request)
                certificate = self._welcome.certificate(event.name, request.public_key)
                received = tuple(map(messages.received_from_wire, request.received))
                revocation = count_of(request.revocation, "revocation")
            known = request.again and await self._gateway.attach_again(
                event.name,
                caller.instance,
                Returning(received, revocation, tuple(request.unsettled), event.control_address),
            )
            if known:
                # It knows the rest already, and thousands come at once.
                period_s = self._gateway.set_period_s(event.name)
                return pb.AttachReply(term=self._welcome.term, heartbeat_s=period_s)
            await self._gateway.attach(
                event,
                caller.instance,
                request.memory,
                loaded=request.loaded,
                not_loaded=request.not_loaded,
            )
        servers = self._gateway.orders.servers
        place, stands_by = self._checks.place_of(event.name.index)
        is_server = event.name.role is Role.PS
        back = self._checks.roll_back if is_server else None
        return pb.AttachReply(
            term=self._welcome.term,
            heartbeat_s=self._gateway.set_period_s(event.name),
            job=self._welcome.job(),
            servers=servers.addresses,
            first_server=servers.first,
            place=event.name.index - place.first if is_server else 0,
            places=place.number if is_server else 0,
            stands_by=is_server and stands_by,
            restore_from=back.path if back else self._welcome.restore_from(),
            rolls_back=back is not None,
            sources=self._sources() if event.name.role is Role.WORKER else (),
            run=run_name(self._welcome.token),
            bulk_tokens=self._bulk_tokens(event.name, servers),
            certificate=certificate,
        )

    async def RequestLease(self, request: pb.LeaseRequest, call: Call) -> pb.LeaseReply:
        name = _name(call)
        if not request.wait_s >= 0:
            _invalid(
                call, f"{name} requested a lease with wait_s={request.wait_s}; expected at least 0"
            )
        wait_s, number = min(request.wait_s, _LONGEST_POLL_S), request.ring_number
        if number < 0:
            _invalid(call, f"{name} requested item {number} of the ring; expected at least 0")
        await self._gateway.returning.all_are_back()
        with _answering(call):
            answer = await self._gateway.poll(
                name, request.sequence, wait_s, ring_number=number, at_mark=request.at_mark
            )
        return messages.lease_answer_to_wire(answer)

    async def TakeTurn(self, request: pb.TurnRequest, call: Call) -> pb.TurnReply:
        name, turns = await self._of_steps(call)
        if not request.wait_s >= 0 or request.number < 1 or request.epoch < 0:
            _invalid(call, f"{name} asked for a turn with {request}")
        wait_s = min(request.wait_s, _LONGEST_POLL_S)
        step, reason = await turns.take(
            name, request.number, request.epoch, request.revocation, wait_s
        )
        return pb.TurnReply(step=step, wait_reason=reason)

    async def EndTurn(self, request: pb.EndTurnRequest, call: Call) -> pb.EndTurnReply:
        name, turns = await self._of_steps(call)
        if not 0 <= request.examples <= _MOST_EXAMPLES or min(request.number, request.sequence) < 0:
            _invalid(call, f"{name} ended a turn with {request}")
        contribution = None
        if request.sequence:
            contribution = Contribution(name, request.sequence, request.examples)
        lease = name, ShardId(request.applied.shard), request.applied.attempt
        accepted = await turns.end(name, request.number, contribution, lease, last=request.last)
        return pb.EndTurnReply(accepted=accepted)

    async def Report(self, request: pb.ReportRequest, call: Call) -> pb.ReportReply:
        await self._gateway.returning.all_are_back()
        with _answering(call):
            return await self._reported(_name(call), request)

    async def _reported(self, name: ProcessName, request: pb.ReportRequest) -> pb.ReportReply:
        """Handle a report, and the request for a lease that it may carry.

        Raises _InvalidMessage, Refused.
        """
        with _valid():
            report = messages.report_from_wire(request)
        answer = None
        if not request.HasField("lease"):
            await self._gateway.report(name, report, request.sequence)
        elif name.role is not Role.WORKER:
            raise _InvalidMessage(f"{name} requested a lease; only workers have leases")
        else:
            answer = await self._gateway.report_and_poll(
                name, report, request.sequence, request.lease.sequence
            )
        return pb.ReportReply(
            heartbeat_s=self._gateway.set_period_s(name),
            lease=messages.lease_answer_to_wire(answer) if answer is not None else None,
        )

    async def Orders(self, request: pb.OrdersRequest, call: Call) -> AsyncGenerator[pb.Order]:
        name = _name(call)
        async with aclosing(self._gateway.stream(name)) as orders:
            async for order in orders:
                message = messages.order_to_wire(order)
                if isinstance(order, Servers) and name.role is Role.WORKER:
                    message.servers.bulk_tokens.extend(self._bulk_tokens(name, order))
                yield message

    async def Status(self, request: pb.StatusRequest, call: Call) -> pb.StatusReply:
        return pb.StatusReply(status=self._status())

    async def Stop(self, request: pb.StopRequest, call: Call) -> pb.Done:
        await self._queue.post(
            StopRequested(self._queue.at_s(), request.reason or "no reason given")
        )
        return pb.Done()

    async def Scale(self, request: pb.ScaleRequest, call: Call) -> pb.ScaleReply:
        if request.servers:
            return await self._scale_servers(request.servers, call)
        low, high = request.min_workers, request.max_workers
        if not 1 <= low <= high <= MAX_WORKERS:
            _invalid(call, f"workers {low}:{high}: expected 1 <= MIN <= MAX <= {MAX_WORKERS}")
        if why_not := self._checks.why_not_scale(low, high):
            text = f"cannot change the number of workers to {low}:{high}: {why_not}"
            call.abort(grpc.StatusCode.OUT_OF_RANGE, text)
        await self._queue.post(ScaleRequested(self._queue.at_s(), low, high))
        return pb.ScaleReply(stays=self._checks.what_steps_stay(high))

    async def _scale_servers(self, number: int, call: Call) -> pb.ScaleReply:
        if not 1 <= number <= MAX_SERVERS:
            _invalid(call, f"{number} parameter servers: expected 1 to {MAX_SERVERS}")
        if why_not := self._checks.why_not_scale_servers():
            text = f"cannot change the number of parameter servers to {number}: {why_not}"
            call.abort(grpc.StatusCode.OUT_OF_RANGE, text)
        await self._queue.post(ScaleServersRequested(self._queue.at_s(), number))
        return pb.ScaleReply()

    async def Checkpoint(self, request: pb.CheckpointRequest, call: Call) -> pb.Done:
        leaving = _process(call.caller)
        why_not = self._checks.why_not_checkpoint()
        if leaving or not why_not:
            # The job reports what a leaving server loses, even if it can save nothing.
            await self._queue.post(CheckpointRequested(self._queue.at_s(), leaving))
        if why_not:
            call.abort(grpc.StatusCode.OUT_OF_RANGE, f"cannot take a checkpoint: {why_not}")
        return pb.Done()

    def _bulk_tokens(self, name: ProcessName, servers: Servers) -> Iterator[str]:
        """A worker's token at each of these servers; a server's own key."""
        token = self._welcome.token
        if name.role is Role.PS:
            yield bulk_key(token, name.index)
            return
        for position in range(len(servers.addresses)):
            yield bulk_token(bulk_key(token, servers.first + position), str(name))

    async def _of_steps(self, call: Call) -> tuple[ProcessName, StepTurns]:
        """The worker that calls, and the turns of a job that trains in steps."""
        name, turns = _name(call), self._gateway.turns
        if name.role is not Role.WORKER or turns is None:
            _invalid(call, f"{name} asked for a turn; expected a worker of a job with --sync")
        self._gateway.sessions.heard(name)
        return name, turns

    def _sources(self) -> Iterator[pb.Source]:
        for source in self._welcome.sources():
            yield pb.Source(
                name=source.name, records=source.records, fingerprint=source.fingerprint
            )

    def _attached(self, caller: Caller, request: pb.AttachRequest) -> ProcessAttached:
        sender, name = caller.name, _process(caller)
        assert name is not None
        control, bulk = messages.bounded((request.control_address, request.bulk_address))
        if name.role is Role.PS and bool(control) != bool(bulk):
            raise ValueError(
                f"{sender} attached with one address missing: control {control!r}, bulk {bulk!r}"
            )
        if name.role is Role.WORKER and (bulk or request.has_state or request.restored_version):
            raise ValueError(f"{sender} attached with what only a server has")
        restored = count_of(request.restored_version, "restored_version")
        version = restored if request.has_state else None
        return ProcessAttached(
            self._queue.at_s(),
            name,
            control,
            bulk,
            version,
            starting=request.starting,
            instance=caller.instance,
            kept=name.role is Role.PS and request.kept,
        )


def _invalid(call: Call, why: str) -> NoReturn:
    call.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
