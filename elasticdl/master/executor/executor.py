"""Carries out the core's commands.

Slow work runs beside the loop, and its result comes back as an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, final

from elasticdl.cluster.base import CreateRefused, ExitStatus, ProcessName, Role
from elasticdl.errors import ElasticDLError
from elasticdl.master.core import commands as do
from elasticdl.master.core import events as happened
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.checkpoint_archive import SavedCheckpoint, Saver
from elasticdl.master.executor.fencing import Fences
from elasticdl.master.executor.launcher import Launcher
from elasticdl.master.executor.snapshots import Snapshots
from elasticdl.master.gateway.process_gateway import ProcessGateway
from elasticdl.rpc.conversation import (
    Drain,
    Finish,
    Finished,
    Load,
    Order,
    Restore,
    Revoke,
    TellState,
    Wait,
)

_LOG = logging.getLogger(__name__)
_LEVELS = {
    "detail": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
NEVER_STARTED = ExitStatus(reason="NeverStarted", asked=True)
"""The exit of a process that was stopped before its delayed start."""


class Archive(Protocol):
    """Checkpoints on disk."""

    async def save(self, command: do.SaveSnapshot, snapshots: Saver) -> SavedCheckpoint:
        """Write a cut view as a complete checkpoint. Raises ElasticDLError."""

    async def prune(self, version: int, held: Collection[str]) -> None:
        """Remove checkpoints before this version that the job does not keep. Never fails."""

    def keep_scale(self, low: int, high: int) -> None:
        """Save the range of workers for a resumed job. A full disk loses only that."""

    def keep_servers(self, number: int) -> None:
        """Save the number of parameter servers for a resumed job, as `keep_scale`."""


class Record(Protocol):
    """The job's recorded history: `history.event_log.EventLog`."""

    def append(self, stamp: Mapping[str, float], fields: Mapping[str, Any]) -> object:
        """Record an event. A full disk loses only the line."""


class Rows(Protocol):
    """A destination of numbers: `history.lines.JsonLines`."""

    def append(self, value: Mapping[str, Any]) -> None:
        """Append a row. A full disk loses only the row."""


@dataclass(frozen=True, slots=True)
class ExecutorDeps:
    """What the executor works with."""

    launcher: Launcher
    fences: Fences
    snapshots: Snapshots
    archive: Archive
    events: Record
    metrics: Rows
    preflight: Callable[[], Coroutine[Any, Any, None]]
    """Posts JobStarted or PreflightFailed: `JobPreparation.run`."""


@final
class Executor:
    """Carries out commands. Use it from one event loop."""

    def __init__(self, queue: EventQueue, gateway: ProcessGateway, deps: ExecutorDeps) -> None:
        self._queue = queue
        self._gateway = gateway
        self._deps = deps
        self.finish: do.FinishJob | None = None
        """Set by the last command of a job."""

    def carry_out(self, command: do.Command) -> None:
        """Carry out a command, or start to."""
        match command:
            case do.StartProcess():
                self._queue.spawn(f"start of {command.name}", self._start(command))
            case do.StopProcess():
                self._stop(command)
            case do.FenceWorker():
                self._queue.spawn(f"fence of {command.worker}", self._fence(command.worker))
            case do.PublishRing():
                assert self._gateway.ring is not None
                self._gateway.ring.publish(command)
            case do.WithdrawRing():
                assert self._gateway.ring is not None
                self._gateway.ring.withdraw()
            case do.LookAgain(after_s):
                self._queue.spawn("ring check", self._look_again(after_s))
            case do.PublishServers():
                self._gateway.publish(command.addresses, command.first)
            case do.PruneCheckpoints(version, held):
                self._queue.spawn(
                    "removal of old checkpoints", self._deps.archive.prune(version, held)
                )
            case do.Announce():
                self._announce(command)
            case do.RecordMetrics():
                self._deps.metrics.append({**self._stamp(), **asdict(command)})
            case do.KeepScale(low, high):
                self._deps.archive.keep_scale(low, high)
            case do.RunPreflight():
                self._queue.spawn("preflight", self._deps.preflight())
            case do.FinishJob():
                self.finish = command
            case _:
                self._snapshot(command)

    def _tell(self, command: do.Command) -> None:
        """Carry out a command that is a message to a worker."""
        match command:
            case do.GrantLease():
                self._gateway.throughput.granted(command.lease)
                self._gateway.leases.answer(command.worker, command.lease)
            case do.GrantItem():
                self._gateway.give_item(command.worker, command.item)
            case do.NoLeaseNow():
                self._gateway.leases.answer(command.worker, Wait(command.reason))
            case do.WorkFinished():
                if not self._gateway.leases.answer(command.worker, Finished()):
                    # The worker is starting or ending and need not ask first.
                    self._order(command.worker, Finish())
            case do.RevokeLeases():
                revocation = self._gateway.leases.revoked(command.worker)
                if self._gateway.turns is not None:
                    self._gateway.turns.revoked(command.worker, revocation)
                self._order(command.worker, Revoke(command.reason, revocation))
            case do.AskState():
                self._order(command.process, TellState())
            case _:
                raise TypeError(f"unknown command {command}")

    def _snapshot(self, command: do.Command) -> None:
        """Carry out a command about a view of the servers, or another one."""
        match command:
            case do.TakeSnapshot():
                self._queue.spawn(f"cut of view {command.snapshot}", self._cut(command))
            case do.SaveSnapshot():
                self._queue.spawn(f"save of view {command.snapshot}", self._save(command))
            case do.HurrySnapshot(snapshot):
                self._queue.spawn(
                    f"hurry for view {snapshot}", self._deps.snapshots.hurry(snapshot)
                )
            case do.KeepSnapshots(snapshots):
                self._queue.spawn(
                    "views of an earlier master", self._deps.snapshots.keep(snapshots)
                )
            case do.DropSnapshot(snapshot=snapshot) if self._gateway.ring is not None:
                self._gateway.ring.drop(snapshot)
            case do.DropSnapshot():
                self._queue.spawn(
                    f"drop of view {command.snapshot}",
                    self._deps.snapshots.drop(command.snapshot, saved=command.saved),
                )
            case _:
                self._resize(command)

    def _resize(self, command: do.Command) -> None:
        """Carry out a part of a change of the number of servers, or another command."""
        match command:
            case do.LoadServers(servers, directory):
                for server in servers:
                    self._order(server, Load(directory))
            case do.RestoreServers(servers, directory):
                for server in servers:
                    self._order(server, Restore(directory))
            case do.UnsealServers(snapshot):
                self._queue.spawn(
                    f"unseal of view {snapshot}", self._deps.snapshots.unseal(snapshot)
                )
            case do.FinishServers(servers):
                for server in servers:
                    self._order(server, Finish())
            case do.KeepServers(number):
                self._deps.archive.keep_servers(number)
            case _:
                self._tell(command)

    async def _start(self, command: do.StartProcess) -> None:
        name = command.name
        try:
            started = await self._deps.launcher.start(
                name, command.delay_s, command.memory_bytes, in_gang=command.in_gang
            )
        except CreateRefused as refused:
            self._queue.post(
                happened.CreateFailed(self._queue.at_s(), name, refused.reason, refused.retry)
            )
            return
        if not started:
            self._queue.post(happened.ProcessEnded(self._queue.at_s(), name, NEVER_STARTED))

    def _stop(self, command: do.StopProcess) -> None:
        _LOG.debug("stopping %s within %g s: %s", command.name, command.grace_s, command.reason)
        if command.name.role is Role.WORKER:
            # Also without grace: a node that waits for a pod's first grace does not shorten it.
            self._order(command.name, Drain(command.reason, command.grace_s))
        self._queue.spawn(
            f"stop of {command.name}",
            self._deps.launcher.stop(command.name, command.grace_s, for_good=command.for_good),
        )

    async def _look_again(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._queue.post(happened.Tick(self._queue.at_s()))

    async def _fence(self, worker: ProcessName) -> None:
        self._gateway.leave(worker, "was fenced")
        answers = await self._deps.fences.fence(str(worker))
        applied = tuple(answer.applied if answer is not None else None for answer in answers)
        sequences = tuple(answer.sequence if answer is not None else None for answer in answers)
        self._queue.post(happened.WorkerFenced(self._queue.at_s(), worker, applied, sequences))

    async def _cut(self, command: do.TakeSnapshot) -> None:
        snapshot = command.snapshot
        try:
            async with self._deps.snapshots.cut(snapshot, seal=command.seal) as cut:
                await self._queue.post(
                    happened.SnapshotCut(
                        self._queue.at_s(),
                        snapshot,
                        cut.version,
                        dict(cut.applied),
                        dict(cut.sequences),
                        dict(cut.reached),
                        {index: dict(lacking) for index, lacking in cut.behind.items()},
                    )
                )
        except ElasticDLError as error:
            # Drop partial views in the background, so that the job does not wait.
            self._snapshot(do.DropSnapshot(snapshot))
            self._queue.post(happened.SnapshotFailed(self._queue.at_s(), snapshot, error.message))

    async def _save(self, command: do.SaveSnapshot) -> None:
        try:
            written = await self._deps.archive.save(
                command, self._gateway.ring or self._deps.snapshots
            )
        except ElasticDLError as error:
            self._queue.post(
                happened.SnapshotFailed(self._queue.at_s(), command.snapshot, error.message)
            )
        else:
            saved = happened.SnapshotSaved(
                self._queue.at_s(),
                command.snapshot,
                command.version,
                written.directory,
                written.bytes,
                written.not_copied,
                written.paused_s,
            )
            self._queue.post(saved)

    def _order(self, worker: ProcessName, order: Order) -> None:
        """Send an order; do nothing for a process that has left or is not attached yet."""
        if worker in self._gateway.sessions:
            self._gateway.orders.put(worker, order)

    def _announce(self, command: do.Announce) -> None:
        _LOG.log(_LEVELS.get(command.level, logging.INFO), "%s", command.text)
        self._deps.events.append(self._stamp(), asdict(command))

    def _stamp(self) -> dict[str, float]:
        return {"at": round(self._queue.clock.wall_s(), 3), "at_s": round(self._queue.at_s(), 3)}
