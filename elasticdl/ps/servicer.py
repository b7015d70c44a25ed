"""The master's control of this server over gRPC. Every call may be repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeVar, final

import grpc

from elasticdl.errors import ElasticDLError, PermanentError, Refused, TransientError, UserError
from elasticdl.native import _native
from elasticdl.ps.saving import ServerPart, save_at
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.channel import caller_of, status_details
from elasticdl.rpc.elasticdl_pb2_grpc import ParameterServerServicer
from elasticdl.rpc.term_guard import TermGuard

T = TypeVar("T")

MAX_WAIT_S = 120.0
"""Longest gate or cut, whatever the request says."""


FOREVER_S = 1e9
"""Longer than any job: C++ counts nanoseconds in 64 bits."""
HOLD_S = 60.0
"""How long a leaving server keeps new pushes out: longer than it stays."""


@final
class ControlService(ParameterServerServicer):
    """Translates calls to the C++ server, and its errors to status codes."""

    def __init__(self, server: _native.Server, place: ServerPart, guard: TermGuard) -> None:
        self._server = server
        self._place = place
        self._guard = guard
        self._stepping = threading.Lock()
        """Held while a step is applied: a master that takes over must not miss it."""
        self._views: set[int] = set()
        """Frozen views that were not released; a set is safe to use from several threads."""
        self._leaving = threading.Event()
        self._held: set[int] = set()
        """Views after whose cut no push was admitted: they have all that was acknowledged."""
        self._last: set[int] = set()
        """Those of them that are being written, or were."""
        self._sealing = threading.Lock()
        self._sealed: int | None = None
        """The snapshot after whose cut no push is admitted, in favour of other servers."""
        self._undone = -1
        """The newest snapshot whose seal was undone: a late call must not seal for it again."""
        self.handed_over = threading.Event()
        """Set when one of those is part of a complete checkpoint."""

    @property
    def version(self) -> int:
        """How many updates this server has applied."""
        return self._server.version

    def leave(self) -> None:
        """Admit no push after the next cut: what is acknowledged is then in the checkpoint.

        If that checkpoint fails elsewhere, this server takes part in the next one.
        """
        self._leaving.set()

    def Fence(self, request: pb.FenceRequest, context: grpc.ServicerContext) -> pb.FenceReply:
        known = self._do(context, lambda: self._server.fence(request.worker))
        if known is None:
            return pb.FenceReply(seen=False)
        return pb.FenceReply(seen=True, applied=_applied(known), sequence=known[1])

    def Gate(self, request: pb.GateRequest, context: grpc.ServicerContext) -> pb.GateReply:
        if self._last:
            # A later cut would let pushes in that its last checkpoint does not have.
            _abort(context, TransientError("this server leaves, and has its last checkpoint taken"))
        if self._sealed is not None:
            _abort(context, TransientError("this server's parameters move to other servers"))
        return pb.GateReply(
            sequences=self._do(
                context, lambda: self._server.gate(min(request.timeout_s, MAX_WAIT_S))
            )
        )

    def Cut(self, request: pb.CutRequest, context: grpc.ServicerContext) -> pb.CutReply:
        timeout_s = min(request.timeout_s, MAX_WAIT_S)
        facts = self._do(
            context,
            lambda: self._server.cut(request.snapshot, dict(request.admit_until), timeout_s),
        )
        if self._leaving.is_set():
            # The gate is still closed: this keeps it so.
            self._do(context, lambda: self._server.gate(HOLD_S))
            self._held.add(request.snapshot)
        self._views.add(request.snapshot)
        if self._guard.is_replaced(caller_of(context.invocation_metadata())):
            # Nobody would ever release the view.
            self._do(context, lambda: self._server.drop(request.snapshot))
            self._views.discard(request.snapshot)
        workers = facts["workers"]
        return pb.CutReply(
            version=facts["version"],
            applied={name: _applied(known) for name, known in workers.items()},
            sequences={name: known[1] for name, known in workers.items()},
        )

    def ApplyStep(
        self, request: pb.ApplyStepRequest, context: grpc.ServicerContext
    ) -> pb.ApplyStepReply:
        named = [(push.worker, push.sequence, push.examples) for push in request.contributions]
        with self._stepping:
            self._refuse_replaced(context)
            version = self._do(context, lambda: self._server.apply_step(request.number, named))
        return pb.ApplyStepReply(version=version)

    def RecentSteps(
        self, request: pb.RecentStepsRequest, context: grpc.ServicerContext
    ) -> pb.RecentStepsReply:
        with self._stepping:
            reply = pb.RecentStepsReply(version=self._server.version, memory=self._server.memory_id)
            for number, contributions in self._server.recent_steps():
                step = reply.steps.add(number=number)
                for worker, sequence, examples in contributions:
                    step.contributions.add(worker=worker, sequence=sequence, examples=examples)
        return reply

    def Seal(self, request: pb.SealRequest, context: grpc.ServicerContext) -> pb.SealReply:
        with self._sealing:
            self._refuse_replaced(context)
            if request.undo:
                self._undone = max(self._undone, request.snapshot)
                if self._sealed == request.snapshot:
                    self._sealed = None
                    self._ungate(context)
                return pb.SealReply()
            if request.snapshot <= self._undone or request.snapshot not in self._views:
                _abort(context, TransientError(f"the cut {request.snapshot} was given up"))
            # The gate is still closed since the cut; the caller compares the numbers.
            # First with a limit, for a push that is under way. Then it returns at once.
            self._do(context, lambda: self._server.gate(MAX_WAIT_S))
            sequences = self._do(context, lambda: self._server.gate(FOREVER_S))
            self._sealed = request.snapshot
            return pb.SealReply(sequences=sequences)

    def Ungate(self, request: pb.UngateRequest, context: grpc.ServicerContext) -> pb.Done:
        self._ungate(context)
        return pb.Done()

    def Save(self, request: pb.SaveRequest, context: grpc.ServicerContext) -> pb.SaveReply:
        self._last |= self._held & {request.snapshot}
        base = request.base if request.HasField("base") else None
        saved = self._do(
            context,
            lambda: save_at(
                self._server,
                self._place,
                request.snapshot,
                request.directory,
                base,
                request.pause_s,
                context.is_active,
            ),
        )
        return pb.SaveReply(
            files=[pb.SavedFile(name=saved.name, bytes=saved.bytes, checksum=saved.checksum)],
            version=saved.version,
            rows=saved.rows,
            parameters=saved.parameters,
            delta=saved.delta,
            paused_s=saved.paused_s,
        )

    def Hurry(self, request: pb.HurryRequest, context: grpc.ServicerContext) -> pb.Done:
        self._do(context, lambda: self._server.hurry(request.snapshot))
        return pb.Done()

    def Drop(self, request: pb.DropRequest, context: grpc.ServicerContext) -> pb.Done:
        if request.saved:
            self._do(context, lambda: self._server.set_base(request.snapshot))
        self._do(context, lambda: self._server.drop(request.snapshot))
        self._views.discard(request.snapshot)
        if request.snapshot in self._last:
            if request.saved:
                self.handed_over.set()
            else:
                # Another server could not write its part. The master tries again.
                self._last.discard(request.snapshot)
        return pb.Done()

    def Keep(self, request: pb.KeepRequest, context: grpc.ServicerContext) -> pb.Done:
        for snapshot in self._views - set(request.snapshots):
            self._do(context, partial(self._server.drop, snapshot))
            self._views.discard(snapshot)
            self._last.discard(snapshot)
        self._ungate(context)
        return pb.Done()

    def _ungate(self, context: grpc.ServicerContext) -> None:
        # An Ungate that comes late belongs to an earlier cut.
        if not self._held and self._sealed is None:
            self._do(context, self._server.ungate)

    def _refuse_replaced(self, context: grpc.ServicerContext) -> None:
        """Refuse a master that was replaced since its call came in."""
        if self._guard.is_replaced(caller_of(context.invocation_metadata())):
            _abort(context, Refused("another master has replaced this one"))

    def _do(self, context: grpc.ServicerContext, work: Callable[[], T]) -> T:
        try:
            return work()
        except ElasticDLError as error:
            _abort(context, error)


def _abort(context: grpc.ServicerContext, error: ElasticDLError) -> NoReturn:
    match error:
        case TransientError():
            code = grpc.StatusCode.UNAVAILABLE
        case Refused():
            code = grpc.StatusCode.FAILED_PRECONDITION
        case UserError():
            code = grpc.StatusCode.INVALID_ARGUMENT
        case PermanentError() | _:
            code = grpc.StatusCode.UNKNOWN  # INTERNAL means a broken connection
    context.abort(code, status_details(error.message))


def _applied(known: tuple[Any, ...]) -> pb.Applied:
    _, _, shard, attempt, offset = known
    return pb.Applied(shard=shard, attempt=attempt, offset=offset)
