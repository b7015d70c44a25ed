"""Changes the number of parameter servers while the job trains.

Servers of the next map start beside those that serve, and stand by. While training continues, they
load checkpoints that are taken for them, until few rows change from one to the next. Then a
checkpoint is cut whose servers stay sealed: they admit no later push. The new servers restore it,
of which they need the newest delta only, and the map changes in one decision. Until then the seal
can be undone, and training continues as before; from then on the sealed servers hold nothing that
the new ones lack. So whatever ends meanwhile costs a try at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.dropped import DropCause
from elasticdl.flag_values import ServerRange
from elasticdl.formatting import amount
from elasticdl.job_choices import Action
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.checkpoint.snapshots import retry_s
from elasticdl.master.core.commands import (
    FinishServers,
    KeepServers,
    LoadServers,
    RestoreServers,
    StopProcess,
    UnsealServers,
)
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.events import ScaleServersRequested, ServerStandsBy, SnapshotSaved
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.scaling import Scaling
from elasticdl.master.core.processes.table import Life, Process
from elasticdl.master.core.ps.server_map import ServerMap
from elasticdl.master.core.ps.server_move import Move, Stage
from elasticdl.shard import SnapshotId

START_LIMIT_S = 600.0
"""Time for all new servers to start. Training goes on meanwhile."""
LOAD_LIMIT_S = 1800.0
"""Time for all new servers to load checkpoints. Training goes on meanwhile."""
MOVE_LIMIT_S = 120.0
"""Time from the cut until all new servers have restored it. Workers wait meanwhile."""
_FINISH_S = 30.0
"""Time for a server whose parameters moved to exit."""
_TRIES = 3
_MOST_FAILED = 2
"""Checkpoints before the seal that may fail in one try: a call was lost, the disk is full, or a new
server cannot load it.
"""


@final
class Resizing:
    """At most one change at a time."""

    def __init__(
        self,
        context: JobContext,
        leasing: Leasing,
        scaling: Scaling,
        evaluation: Evaluation,
        checkpointing: Checkpointing,
    ) -> None:
        self._context = context
        self._leasing = leasing
        self._scaling = scaling
        self._evaluation = evaluation
        self._checkpointing = checkpointing
        self._wanted: int | None = None
        """The number of servers that was requested and that the job does not have yet."""
        self._move: Move | None = None
        self._next_index = context.servers
        self._failures = 0
        self._retry_at_s = 0.0
        self._undone: SnapshotId | None = None
        """The newest seal that is to be undone: an earlier master may not have done so."""
        self._by_person = False
        """A person requested the newest number."""
        self._kept: int | None = None
        """The number that a person chose and the job had: a resumed job begins with it."""

    # requests

    def why_not(self) -> str | None:
        """Why the number of servers cannot be changed, in words; None if it can."""
        spec = self._context.spec
        if not self._context.servers:
            return "the job has no parameter servers"
        if spec.action is not Action.TRAIN:
            return "the job does not train"
        if spec.gang_workers:
            # A pod that is replaced later needs the whole group, which has the old servers.
            return "the job has --gang, which places its servers together with its workers"
        if not spec.keeps_checkpoints:
            return (
                "the servers share no storage: no --checkpoint-dir, and no --job-dir on a --volume"
            )
        if late := self._context.late():
            return f"the job {late}"
        if self._context.phase is not Phase.WORKING:
            return f"the job is {self._context.phase}"
        if spec.trains_in_steps:
            # Only the preflight knows it of a job that did not choose.
            return (
                "the job trains in synchronous steps; stop it, and resume it with another"
                " --num-ps-pods"
            )
        return None

    def requested(self, event: ScaleServersRequested) -> None:
        """Change the number of servers at a person's request, if possible."""
        context, number = self._context, event.servers
        if why_not := self.why_not() or (None if number >= 1 else "expected at least 1"):
            text = f"cannot change the number of parameter servers to {number}: {why_not}"
            context.orders.announce("scale", text, level="warning")
            return
        servers_text = amount(number, "parameter server")
        now = "as now" if number == context.servers else f"instead of {context.servers}"
        text = f"{servers_text} requested, {now}"
        context.orders.announce("scale", text, details={"servers": number})
        context.server_range, self._by_person = ServerRange.just(number), True
        self._request(number)

    def choose(self, number: int) -> None:
        """Change the number of servers, as autoscaling decided."""
        self._request(number)

    def _request(self, number: int) -> None:
        self._wanted, self._failures, self._retry_at_s = number, 0, self._context.now_s
        move = self._move
        if move is not None and not move.sealed and move.to.number != number:
            servers_text = amount(number, "parameter server")
            self._withdraw(move, f"{servers_text} were requested meanwhile")

    @property
    def under_way(self) -> bool:
        """Whether the number of servers is to change."""
        return self._wanted is not None

    # decisions

    def decide(self) -> None:
        """Begin, continue or give up the change that is wanted. Call it after every event."""
        if self._wanted is None:
            return
        context, move = self._context, self._move
        if context.phase is not Phase.WORKING or context.outcome is not None:
            self._give_up(f"the job {context.late() or f'is {context.phase}'}")
        elif move is None:
            if self._wanted == context.servers:
                self._reached()
            elif context.now_s >= self._retry_at_s:
                self._begin(self._wanted)
        elif problem := self._problem(move):
            self._fail(problem)
        elif move.stage in (Stage.STARTING, Stage.LOADING):
            self._prepare(move)
        elif move.stage is Stage.RESTORING and self._restored_number(move) == move.to.number:
            self._commit(move)

    def _begin(self, number: int) -> None:
        to = ServerMap(self._next_index, number)
        self._next_index += number
        self._move = Move(to, Stage.STARTING, self._context.now_s)
        for index in to.indices:
            self._scaling.start(ProcessName(Role.PS, index))

    def _prepare(self, move: Move) -> None:
        """Take a checkpoint for the new servers, or seal if another one gains nothing."""
        if move.prepares or move.snapshot is not None:
            return
        if not self._checkpointing.possible():
            self._checkpointing.hurry()
            return
        if not move.worth_a_round:
            self._cut(move)
            return
        starting, now_s = move.stage is Stage.STARTING, self._context.now_s
        self._move = replace(
            move,
            stage=Stage.LOADING,
            since_s=now_s if starting else move.since_s,
            snapshot=self._checkpointing.take_hurried(seal=False),
            ordered_s=now_s,
        )

    def _problem(self, move: Move) -> str | None:
        """Why this try cannot succeed any more; None if it can."""
        processes, lasted_s = self._context.processes, self._context.now_s - move.since_s
        for index in move.to.indices:
            if processes.server(index) is None:
                return f"ps-{index} ended"
        if move.stage is Stage.STARTING:
            late = [index for index in move.to.indices if index not in move.standing]
            if lasted_s <= START_LIMIT_S or not late:
                return None
            process = processes.server(late[0])
            why = f": {process.message}" if process is not None and process.message else ""
            return f"ps-{late[0]} did not start within {START_LIMIT_S:.0f} s{why}"
        if move.stage is Stage.LOADING:
            late_s = f"{LOAD_LIMIT_S:.0f} s"
            return f"loading took more than {late_s}" if lasted_s > LOAD_LIMIT_S else None
        present = self._going(self._context.server_map)
        up = tuple(server.name for server in present if server.life is Life.READY)
        if up != move.sealed:
            # The next process of a sealed server may admit pushes.
            lost = next(name for name in move.sealed if name not in up)
            return f"{lost} ended"
        if lasted_s > MOVE_LIMIT_S:
            return f"moving the parameters took more than {MOVE_LIMIT_S:.0f} s"
        return None

    def _cut(self, move: Move) -> None:
        snapshot, context = self._checkpointing.take_hurried(seal=True), self._context
        self._move = replace(
            move,
            stage=Stage.CUTTING,
            since_s=context.now_s,
            sealed=context.server_names(),
            snapshot=snapshot,
        )
        context.loading = ()
        context.moving = f"their number changes from {context.servers} to {move.to.number}"

    def _reached(self) -> None:
        """The job has the number of servers that was requested."""
        self._wanted = None
        if self._by_person:
            self._kept = self._context.servers
            self._context.orders.give(KeepServers(self._kept))

    def _going(self, servers: ServerMap) -> list[Process]:
        """Those of these servers that live."""
        processes = (self._context.processes.server(index) for index in servers.indices)
        return [process for process in processes if process is not None]

    def _restored_number(self, move: Move) -> int:
        return sum(server.attached for server in self._going(move.to))

    def _commit(self, move: Move) -> None:
        """Change the map: workers follow, and the sealed servers end."""
        context, before = self._context, self._context.servers
        pause = move.pause(context.now_s)
        context.server_map, context.moving = move.to, ""
        context.updates.moved(move.to.first)
        self._move, self._failures = None, 0
        for name in move.sealed:
            process = context.processes.going[name]
            # If it does not end in time, it is killed.
            end_s, process.finished = context.now_s + _FINISH_S, True
            process.enter(Life.STOPPING, context.now_s, "its parameters moved", deadline_s=end_s)
        context.orders.give(FinishServers(move.sealed))
        self._checkpointing.complete.prune(move.version)
        exporter = self._leasing.exporting.server_lost(move.sealed[0])
        for holder in (*self._evaluation.server_lost(move.sealed[0]), *exporter):
            self._leasing.revocation.revoke(holder, "the number of parameter servers changed")
        self._forgive()
        if move.to.number == self._wanted:
            self._reached()
        text = (
            f"the parameters moved from {before} to {amount(move.to.number, 'server')} at version"
            f" {move.version}; workers waited {pause}, and no update was lost"
        )
        details = {
            "servers": move.to.number,
            "version": move.version,
            "waited_s": pause.total_s,
            **asdict(pause),
        }
        context.orders.announce("scale", text, details=details)

    def _forgive(self) -> None:
        """Restart the clocks of the workers, because none could make progress."""
        for worker in self._context.processes.workers():
            worker.busy_since_s = self._context.now_s

    # failures

    def _withdraw(self, move: Move, why: str) -> None:
        """End the new servers of a try, and let the present ones continue."""
        context, self._move = self._context, None
        context.loading = ()
        if move.sealed:
            assert move.snapshot is not None
            self._undone = move.snapshot
            context.orders.give(UnsealServers(move.snapshot))
            context.moving = ""
            self._forgive()
        self._prune()
        for index in move.to.indices:
            if (process := context.processes.server(index)) is not None:
                self._scaling.stop(process, 0.0, why)
            else:
                # It has ended. A platform may keep its memory for a next process.
                gone = ProcessName(Role.PS, index)
                context.orders.give(StopProcess(gone, 0.0, why, for_good=True))

    def _prune(self) -> None:
        """Remove the checkpoints that the job does not keep. A change removes none."""
        complete = self._checkpointing.complete
        if complete.newest is not None:
            complete.prune(complete.newest.version)

    def _fail(self, problem: str) -> None:
        assert self._move is not None and self._wanted is not None
        move = self._move
        self._withdraw(move, f"the change of the number of servers failed: {problem}")
        self._failures += 1
        if self._failures >= _TRIES:
            self._give_up(f"{problem}, after {_TRIES} tries")
            return
        pause_s = retry_s(self._failures)
        self._retry_at_s = self._context.now_s + pause_s
        text = (
            f"the job keeps {amount(self._context.servers, 'parameter server')} for now:"
            f" {problem}; retrying in {pause_s:.0f} s"
        )
        self._context.orders.announce("scale", text, level="warning")

    def _give_up(self, why: str) -> None:
        wanted, self._wanted = self._wanted, None
        if self._move is not None:
            self._withdraw(self._move, f"the number of servers does not change: {why}")
        if wanted != self._context.servers:
            text = (
                f"the job keeps {amount(self._context.servers, 'parameter server')} instead of"
                f" {wanted}: {why}"
            )
            self._context.orders.announce("scale", text, level="warning")

    def taken_over(self) -> None:
        """Undo the seal of an earlier master, and begin again: it may have died in the middle."""
        # The order may not have reached servers whose parameters had moved.
        going, is_spare = self._context.processes.going, self._context.is_spare
        moved = [
            process.name
            for process in going.values()
            if process.finished and is_spare(process.name)
        ]
        if moved:
            self._context.orders.give(FinishServers(tuple(moved)))
        if self._kept is not None:
            # Also if it is the number of the spec again: an earlier order may have kept another.
            self._context.orders.give(KeepServers(self._kept))
        if self._undone is not None:
            self._context.orders.give(UnsealServers(self._undone))
        if self._move is not None:
            self._withdraw(self._move, "another master continues the job")
            self._retry_at_s = self._context.now_s
        elif self._next_index > self._context.servers:
            # There was a change.
            self._prune()

    # events

    def stands_by(self, event: ServerStandsBy) -> None:
        """Note that a new server waits for the order to restore, and what it has loaded."""
        process, move = self._context.processes.going.get(event.name), self._move
        if (
            process is None
            or not process.live
            or move is None
            or event.name.index not in move.to.indices
        ):
            self._context.drop(DropCause.ENDED_PROCESS, event.name, event)
            return
        if event.name.index not in move.standing:
            process.ran = True
            process.enter(Life.READY, event.at_s, "waits for its parameters")
            move = self._move = replace(move, standing=move.standing | {event.name.index})
        elif event.not_loaded and event.not_loaded == move.base:
            self._not_loaded(event.name, move)
        elif event.loaded and event.loaded == move.base:
            loaded = move.loaded | {event.name.index}
            move = self._move = replace(move, loaded=loaded, loaded_s=event.at_s)
            if not move.prepares and move.newest != move.base:
                self._load(move)

    def _not_loaded(self, name: ProcessName, move: Move) -> None:
        """What the new servers load is gone: have all load a newer one, and take one if needed.

        Each checkpoint counts once, however many servers report it.
        """
        if move.sealed:
            return
        if move.failed >= _MOST_FAILED:
            self._fail(f"{name} cannot load {move.base}")
            return
        gone, failed = move.base, move.failed + 1
        # The time of this round says nothing about the next one.
        move = replace(move, base="", loaded=frozenset(), failed=failed, rounds=0)
        if move.newest != gone:
            self._load(move)
        else:
            self._move = replace(move, newest="")
            self._hold(self._move)

    def cut(self, snapshot: SnapshotId) -> None:
        """The servers that serve are sealed, and their views are being written."""
        if self._move is not None and self._move.sealed and self._move.snapshot == snapshot:
            now_s = self._context.now_s
            self._move = replace(self._move, stage=Stage.SAVING, sealed_s=now_s)

    def saved(self, event: SnapshotSaved) -> None:
        """A checkpoint is on disk: the new servers may load it, or restore it if it is the last."""
        move = self._move
        if move is None or move.stage is Stage.STARTING:
            return
        ours = move.snapshot == event.snapshot
        if not move.sealed:
            # Also one that was not taken for them: the next delta builds on it.
            move = move.next_round() if ours else move
            move = self._move = replace(move, newest=event.path)
            self._hold(move)
            if not move.prepares:
                self._load(move)
        elif ours:
            names = tuple(server.name for server in self._going(move.to))
            now_s = self._context.now_s
            self._move = replace(move, stage=Stage.RESTORING, version=event.version, saved_s=now_s)
            self._context.orders.give(RestoreServers(names, event.path))

    def _load(self, move: Move) -> None:
        """Have the new servers load the newest checkpoint. They load one at a time."""
        move = self._move = replace(move, base=move.newest, loaded=frozenset())
        self._hold(move)
        names = tuple(server.name for server in self._going(move.to))
        self._context.orders.give(LoadServers(names, move.newest))

    def _hold(self, move: Move) -> None:
        """Keep what the new servers load, and what they load next."""
        self._context.loading = tuple(sorted({move.base, move.newest} - {""}))

    def failed(self, snapshot: SnapshotId, reason: str) -> None:
        """The checkpoint failed. Nobody waits for one before the seal: it is taken again."""
        move = self._move
        if move is None or move.snapshot != snapshot:
            return
        if move.sealed or move.failed >= _MOST_FAILED:
            self._fail(reason)
        else:
            self._move = replace(move, snapshot=None, failed=move.failed + 1)

    # for people

    def place_of(self, index: int) -> tuple[ServerMap, bool]:
        """The map of a server, and whether it stands by until it is told what to restore."""
        if self._move is not None and index in self._move.to.indices:
            return self._move.to, True
        return self._context.server_map, False

    def waits(self) -> Iterator[str]:
        """What a change that is under way waits for, in words."""
        move, context = self._move, self._context
        if self._wanted is None or self._wanted == context.servers:
            return
        what = f"changing from {context.servers} to {amount(self._wanted, 'parameter server')}"
        if move is None:
            yield f"{what}: the next try is in {max(0.0, self._retry_at_s - context.now_s):.0f} s"
        elif move.stage is Stage.STARTING and len(move.standing) < move.to.number:
            yield f"{what}: {len(move.standing)} of {move.to.number} new servers have started"
        elif not move.sealed and (why := context.servers_away()):
            yield f"{what}: new servers wait until a checkpoint can be taken: {why}"
        elif not move.sealed:
            did = f"{len(move.loaded)} of {move.to.number} new servers have loaded checkpoint"
            yield f"{what}: {did} {max(1, move.rounds)}; training continues"
        else:
            did = f"{self._restored_number(move)} of {move.to.number} new servers have restored it"
            yield f"{what}: workers wait; the checkpoint is {move.stage}, {did}"
