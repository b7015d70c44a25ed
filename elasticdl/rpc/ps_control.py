"""The master's side of the control of one parameter server.

Every call is made once, with a deadline: the caller decides whether to ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, final

import grpc
import grpc.aio

from elasticdl.errors import ElasticDLError, PermanentError, TransientError
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc import messages
from elasticdl.rpc.channel import Credentials
from elasticdl.rpc.conversation import WrittenFile
from elasticdl.rpc.elasticdl_pb2_grpc import ParameterServerStub
from elasticdl.rpc.retry import mapped
from elasticdl.rpc.secured import LOOK_S, connected_async
from elasticdl.shard import Applied, SnapshotId
from elasticdl.tls.contexts import handshake_problem
from elasticdl.tokens import proof_to_server

_SLACK_S = 1.0
"""Added to the client's deadline: the server times out first, and its error says why."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """The last push of a worker that a server refuses from now on; None if it never saw one."""

    applied: Applied | None
    sequence: int


@dataclass(frozen=True, slots=True)
class ServerCut:
    """One server's frozen view: its version, and each worker's last push in it with its number."""

    version: int
    applied: Mapping[str, Applied]
    sequences: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ServerSaved:
    """What one server wrote of a view. `parameters` is the job's `ParametersSpec` as JSON.

    `rows` are those of the view. `delta`: the file has only those changed since the base.
    `paused_s` of the time it took were pauses.
    """

    files: tuple[WrittenFile, ...]
    version: int
    rows: int
    parameters: str
    delta: bool = False
    paused_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RecentSteps:
    """The newest synchronous steps of one server, by number, and its version with them.

    A step is the pushes (worker, sequence, examples) that it is the mean of. `memory` is the number
    of the server's kept memory, 0 for none.
    """

    version: int
    steps: Mapping[int, tuple[tuple[str, int, float], ...]]
    memory: int = 0

    @property
    def newest(self) -> int:
        """The number of the last step; 0: none."""
        return max(self.steps, default=0)

    def has(self, worker: str, sequence: int) -> bool:
        """Whether a push is in one of these steps."""
        return any(
            (worker, sequence) == push[:2] for pushes in self.steps.values() for push in pushes
        )


class ServerControl(Protocol):
    """What the master may ask of one server.

    Every call raises TransientError if the server does not answer in time, Refused if it does not
    accept this master, and PermanentError if it cannot carry out the call.
    """

    async def fence(self, worker: str, *, timeout_s: float) -> Fenced:
        """Refuse the worker's pushes from now on."""

    async def gate(self, *, timeout_s: float) -> dict[str, int]:
        """Hold new pushes; each worker's last sequence number.

        The gate opens by itself after `timeout_s`.
        """

    async def cut(
        self, snapshot: SnapshotId, admit_until: Mapping[str, int], *, timeout_s: float
    ) -> ServerCut:
        """Admit held pushes up to the given numbers, then freeze a view.

        It does not wait for fenced workers.
        """

    async def apply_step(
        self, step: int, contributions: Sequence[tuple[str, int, float]], *, timeout_s: float
    ) -> int:
        """Apply the mean of these pushes (worker, sequence, examples), once; the version after it.

        For synchronous training.
        """

    async def recent_steps(self, *, timeout_s: float) -> RecentSteps:
        """The newest steps that were applied. For synchronous training."""

    async def ungate(self, *, timeout_s: float) -> None:
        """Let all pushes in again."""

    async def seal(self, snapshot: SnapshotId, *, timeout_s: float) -> dict[str, int]:
        """Keep all pushes after the cut of `snapshot` out; each worker's last sequence number.

        It lasts until `unseal`, or the server's end.
        """

    async def unseal(self, snapshot: SnapshotId, *, timeout_s: float) -> None:
        """Undo that seal, also one that comes later; does nothing to another one."""

    async def save(
        self,
        snapshot: SnapshotId,
        directory: str,
        base: SnapshotId | None = None,
        pause_s: float = 0.0,
        *,
        timeout_s: float,
    ) -> ServerSaved:
        """Write a view below an existing directory, as a delta of the view `base` if it can.

        It pauses for `pause_s` in all at most, so that training keeps the processors.
        """

    async def hurry(self, snapshot: SnapshotId, *, timeout_s: float) -> None:
        """Have this view written without further pauses; does nothing if there is none."""

    async def drop(self, snapshot: SnapshotId, *, saved: bool = False, timeout_s: float) -> None:
        """Release a view; does nothing if there is none.

        `saved`: it is in a complete checkpoint, of which later ones may be deltas.
        """

    async def keep(self, snapshots: Sequence[SnapshotId], *, timeout_s: float) -> None:
        """Release all views but these, and let all pushes in: for a master that took over."""

    async def close(self) -> None:
        """Drop the connection; calls in progress raise TransientError."""


@final
class GrpcServerControl:
    """`ServerControl` over gRPC. Use it from one event loop."""

    def __init__(
        self, name: str, address: str, token: str, term: int, authority: str | None = None
    ) -> None:
        """`token` is the server's; `term` the calling master's.

        `authority` (PEM) signs the server's certificate; None: clear text.
        """
        self._name = name
        self._address = address
        self._metadata = Credentials(proof_to_server(token, term), "master").metadata(term)
        self._closed = False
        self._authority = authority
        # Another incarnation has the same name: it is the same server.
        self._certified, _, _ = name.partition(".")
        self._channel = connected_async(address, authority, self._certified)
        self._stub: Any = ParameterServerStub(self._channel)

    async def fence(self, worker: str, *, timeout_s: float) -> Fenced:
        reply: pb.FenceReply = await self._call("Fence", pb.FenceRequest(worker=worker), timeout_s)
        with self._sense("Fence"):
            return Fenced(
                messages.applied_from_wire(reply.applied) if reply.seen else None, reply.sequence
            )

    async def gate(self, *, timeout_s: float) -> dict[str, int]:
        reply: pb.GateReply = await self._call(
            "Gate", pb.GateRequest(timeout_s=timeout_s), timeout_s
        )
        with self._sense("Gate"):
            return messages.sequences(reply.sequences)

    async def cut(
        self, snapshot: SnapshotId, admit_until: Mapping[str, int], *, timeout_s: float
    ) -> ServerCut:
        request = pb.CutRequest(snapshot=snapshot, admit_until=admit_until, timeout_s=timeout_s)
        reply: pb.CutReply = await self._call("Cut", request, timeout_s + _SLACK_S)
        with self._sense("Cut"):
            applied = messages.applied_by_worker(reply.applied)
            return ServerCut(reply.version, applied, messages.sequences(reply.sequences))

    async def apply_step(
        self, step: int, contributions: Sequence[tuple[str, int, float]], *, timeout_s: float
    ) -> int:
        request = pb.ApplyStepRequest(number=step)
        for worker, sequence, examples in contributions:
            request.contributions.add(worker=worker, sequence=sequence, examples=examples)
        reply: pb.ApplyStepReply = await self._call("ApplyStep", request, timeout_s)
        return reply.version

    async def recent_steps(self, *, timeout_s: float) -> RecentSteps:
        reply: pb.RecentStepsReply = await self._call(
            "RecentSteps", pb.RecentStepsRequest(), timeout_s
        )
        steps = {
            step.number: tuple(
                (push.worker, push.sequence, push.examples) for push in step.contributions
            )
            for step in reply.steps
        }
        return RecentSteps(reply.version, steps, reply.memory)

    async def ungate(self, *, timeout_s: float) -> None:
        await self._call("Ungate", pb.UngateRequest(), timeout_s)

    async def seal(self, snapshot: SnapshotId, *, timeout_s: float) -> dict[str, int]:
        reply: pb.SealReply = await self._call("Seal", pb.SealRequest(snapshot=snapshot), timeout_s)
        with self._sense("Seal"):
            return messages.sequences(reply.sequences)

    async def unseal(self, snapshot: SnapshotId, *, timeout_s: float) -> None:
        await self._call("Seal", pb.SealRequest(snapshot=snapshot, undo=True), timeout_s)

    async def save(
        self,
        snapshot: SnapshotId,
        directory: str,
        base: SnapshotId | None = None,
        pause_s: float = 0.0,
        *,
        timeout_s: float,
    ) -> ServerSaved:
        request = pb.SaveRequest(snapshot=snapshot, directory=directory, base=base, pause_s=pause_s)
        reply: pb.SaveReply = await self._call("Save", request, timeout_s)
        files = tuple(WrittenFile(file.name, file.bytes, file.checksum) for file in reply.files)
        return ServerSaved(
            files, reply.version, reply.rows, reply.parameters, reply.delta, reply.paused_s
        )

    async def hurry(self, snapshot: SnapshotId, *, timeout_s: float) -> None:
        await self._call("Hurry", pb.HurryRequest(snapshot=snapshot), timeout_s)

    async def drop(self, snapshot: SnapshotId, *, saved: bool = False, timeout_s: float) -> None:
        await self._call("Drop", pb.DropRequest(snapshot=snapshot, saved=saved), timeout_s)

    async def keep(self, snapshots: Sequence[SnapshotId], *, timeout_s: float) -> None:
        await self._call("Keep", pb.KeepRequest(snapshots=snapshots), timeout_s)

    async def close(self) -> None:
        self._closed = True
        await self._channel.close(None)

    def _what(self, call: str) -> str:
        return f"{call} at {self._name} ({self._address})"

    async def _explained(self, error: ElasticDLError) -> ElasticDLError:
        """Add why no connection is possible: gRPC only says that time was up."""
        if self._authority is None or not isinstance(error, TransientError):
            return error
        problem = await asyncio.to_thread(
            handshake_problem, self._address, self._authority, self._certified, LOOK_S
        )
        return TransientError(f"{error.message}: {problem}") if problem else error

    async def _call(self, method: str, request: object, timeout_s: float) -> Any:  # noqa: ANN401 - one reply type a method
        try:
            call = getattr(self._stub, method)
            return await call(
                request, timeout=timeout_s, metadata=self._metadata, wait_for_ready=True
            )
        except grpc.RpcError as error:
            raise await self._explained(mapped(error, self._what(method))) from error
        except (asyncio.CancelledError, grpc.aio.UsageError) as error:
            # A closed channel cancels its calls; that does not cancel the task that waits here.
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise TransientError(f"{self._what(method)}: the server was given up") from error
            raise

    @contextmanager
    def _sense(self, what: str) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise PermanentError(f"{self._what(what)}: invalid answer: {error}") from error
