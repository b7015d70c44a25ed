"""What really happened to each record, and what the job says of it: the two are compared all the
time.

- Records shown as trained are in the weights of every member, and are never fewer than was
  reported.
- At a mark, where the ring stands still, they are exactly those in the weights.
- A checkpoint's ledger is exactly what is in its weights.
- At the end each record of each epoch is in the weights once, and nothing is lost.
- The receipt's updates are those in the weights of all servers, or of the ring. The lost ones are
  those that some server lacks.
- What the journal has is enough to come to the same state again.
- With --autoscale the chosen numbers of workers and servers are in their ranges, and change at most
  so often.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.dropped import WRONG
from elasticdl.errors import ElasticDLError, ExitCode
from elasticdl.job_status import Receipt, UpdateCounts
from elasticdl.master.core import commands as do
from elasticdl.master.core import events as happened
from elasticdl.master.core.data.counts import ShardIds
from elasticdl.master.core.data.resuming import resume
from elasticdl.master.core.job_context import Phase
from elasticdl.master.core.processes.autoscale_decision import Kind
from elasticdl.master.core.processes.autoscale_policy import CHANGES_S, MOST_CHANGES
from elasticdl.master.core.processes.table import Life
from elasticdl.master.core.state import JobState
from elasticdl.rpc.conversation import Report
from elasticdl.rpc.parameters import Update
from elasticdl.shard import Lease, ShardId, Task, WorkItem
from elasticdl.worker.process.shutdown import Done, Draining, Failed, Reason
from tests.simulation.scheduler import Violation
from tests.simulation.servers import Key, Server, View

if TYPE_CHECKING:
    from elasticdl.worker.process.time_account import TimeAccount
    from tests.simulation.workers import SimulatedWorker
    from tests.simulation.world import World

STANDS_STILL = "the job is stalled: "
_CLOSE_S = 1e-6
_UNSAFE_STEPS = 2
"""A step is told when the next one is complete, and a report that is being written may miss
that.
"""


@final
class Truth:
    """Knows what no process knows. `violated` ends the run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rolled_back = 0
        self.generation = 0
        self.progress_s = 0.0
        """When something moved last."""
        self.announced_s = -1.0
        """When the master last announced that the job stands still."""
        self._offsets: dict[tuple[int, int], int] = {}
        """By shard and attempt: how far a worker has told to be, or where its lease begins."""
        self._pushes: dict[Key, tuple[int, NDArray[np.int64], set[int]]] = {}
        """By push: its epoch, its records, and the servers that have it."""
        self._complete: set[Key] = set()
        """Those that all servers of one map have."""
        self._pushing: dict[Key, Update] = {}
        self._epochs: dict[int, int] = {}
        """Of each shard that was leased."""
        self.scaled_s: dict[str, list[float]] = {"workers": [], "servers": []}
        """When --autoscale changed the number of workers, and of servers."""
        self.server_deaths = 0
        self.cannot_push_again = False
        """Whether a push may have been lost that no worker can make again."""
        self.lost_at_first = False
        """Whether a server lost its memory while there was no checkpoint to return to."""
        self.complete_records = 0
        """In pushes that all servers have."""
        self.servers: dict[int, Server] = {}
        """The newest of each index."""

    def violated(self, what: str, cause: BaseException | None = None) -> None:
        """A property does not hold."""
        violation = Violation(f"{what} (at {self._world.scheduler.now_s:.3f} s)")
        self._world.scheduler.fail(violation)
        raise violation from cause

    # The ring

    def before_report(self, worker: SimulatedWorker, times: TimeAccount) -> None:
        """What that member has told its outbox by now, at least: its weights but for the last
        steps. All of its time is accounted for, too.
        """
        since_s, spent_s = self._world.scheduler.now_s - times.began_s, times.spent_s()
        if abs(sum(spent_s.values()) - since_s) > _CLOSE_S or min(spent_s.values(), default=0) < 0:
            self.violated(f"{worker.name} accounts for {spent_s} of {since_s} s")
        if worker.exchange is None or worker.ring is None:
            return
        weights = worker.exchange.weights
        for _ in range(_UNSAFE_STEPS):
            weights = weights.before or weights
        worker.floor = (
            (worker.ring.generation, weights.records) if worker.ring.rank == 0 else (0, 0)
        )

    def reported(self, name: ProcessName, report: Report) -> None:
        """A report was handled."""
        worker = self._world.workers.get(name)
        if (
            worker is None
            or not worker.floor[0]
            or worker.floor[0] != self.generation
            or worker.running.process.dead
        ):
            return
        if report.ring is None or report.ring.entered != worker.floor[0]:
            return  # it has the weights of that generation, maybe, and has not told yet
        shown = self.shown()
        if shown < worker.floor[1]:
            self.violated(
                f"{shown} records are shown as trained, but {name} has reported {worker.floor[1]}"
                " at least"
            )

    def at_mark(self, worker: SimulatedWorker, lease: Lease) -> None:
        """A member does a lease for itself: the ring stands."""
        assert worker.exchange is not None and worker.ring is not None
        if worker.ring.generation != self.generation:
            return
        weights, shown = worker.exchange.weights, self.shown()
        if lease.version != weights.version:
            self.violated(
                f"a {lease.task} lease is of version {lease.version}, the weights are of"
                f" {weights.version}"
            )
        status, steps = (
            self._world.master.state.status(),
            self._world.plan.spec.training.evaluation_steps,
        )
        if (
            lease.task is Task.EVALUATION
            and status.phase == Phase.WORKING
            and steps
            and lease.version % steps
        ):
            self.violated(
                f"an evaluation that is due each {steps} steps is of version {lease.version}"
            )
        if shown != weights.records:
            self.violated(
                f"the ring stands with {weights.records} records in its weights, but {shown} are"
                " shown as trained"
            )

    # Parameter servers

    def pushing(self, worker: str, update: Update) -> None:
        """A worker begins a push, or tries it again."""

    def applied(self, server: int, worker: str, update: Update) -> None:
        """A server has let a push in."""
        key = (worker, update.sequence)
        epoch = self._epochs[update.applied.shard]
        _, ids, on = self._pushes.setdefault(key, (epoch, np.asarray(update.dense), set()))
        on.add(server)
        if key not in self._complete and on.issuperset(self._map_of(server)):
            self._complete.add(key)
            self.complete_records += len(ids)
            self._world.stepped()

    def stepped(self, server: int, version: int, updates: Sequence[Update]) -> None:
        """A server is about to apply a synchronous step."""
        epochs = {self._epochs[update.applied.shard] for update in updates}
        if len(epochs) > 1:
            self.violated(f"a step mixes the epochs {sorted(epochs)}")
        if len(updates) > self._world.plan.spec.gradients_per_step:
            self.violated(f"a step of {len(updates)} gradients")
        if not self._whole:
            return
        pulled = {update.versions[server] for update in updates}
        # After a takeover a server that has lost its memory is told a step without the gradients.
        if updates and pulled != {version}:
            self.violated(f"a step on version {version} has gradients of {sorted(pulled)}")

    @property
    def _whole(self) -> bool:
        """Whether all servers have the same updates: none was lost, or all returned with it."""
        return not (self.lost_at_first if self._in_steps else self.server_deaths)

    @property
    def _in_steps(self) -> bool:
        return self._world.plan.spec.trains_in_steps

    def _records_in(self, log: Iterable[Key]) -> NDArray[np.int64]:
        """How often each record of each epoch is in the weights of a server."""
        plan = self._world.plan
        records = sum(one.records for one in plan.training)
        counts = np.zeros(records * plan.spec.data.num_epochs, np.int64)
        for key in log:
            epoch, ids, _ = self._pushes[key]
            np.add.at(counts, ids + epoch * records, 1)
        return counts

    def _map_of(self, server: int) -> range:
        """The indices of the servers that share the parameters with this one."""
        return self.servers[server].map.indices

    # The master

    def shown(self) -> int:
        """Records that the job shows as trained."""
        return int(self._world.master.state.receipt().total.trained)

    def before(self, event: happened.Event) -> None:
        """The core is about to hear of it."""
        if isinstance(event, happened.ProcessEnded) and event.name.role is Role.WORKER:
            self.cannot_push_again |= self._world.master.state.status().phase != "ending"
        if (
            isinstance(event, happened.ProcessEnded)
            and event.name.role is Role.PS
            # Others have no part of the parameters, not yet or no longer.
            and event.name.index in self._world.master.state.server_map.indices
            and self._world.master.state.status().phase not in (Phase.ENDING, Phase.ENDED)
        ):
            self.server_deaths += 1
        if (
            isinstance(event, happened.ProcessAttached)
            and event.name.role is Role.PS
            and event.name.incarnation
            and not event.kept
        ):
            self.lost_at_first |= not self._world.master.state.status().checkpoints

    def after(self, event: happened.Event, commands: Sequence[do.Command]) -> None:
        """The core has decided."""
        world = self._world
        for command in commands:
            match command:
                case (
                    do.GrantLease(lease=lease) | do.GrantItem(item=WorkItem(lease=Lease() as lease))
                ):
                    self._leased(lease)
                case do.PublishRing():
                    self.generation = command.generation
                    self.rolled_back += not command.holders and command.generation > 1
                case do.FinishJob():
                    world.finish = command
                case do.Announce("stall", text) if text.startswith(STANDS_STILL):
                    self._stall_announced(text)
                case do.Announce("server", text) if "and there is no checkpoint" in text:
                    self.lost_at_first = True
                case do.Announce("scale", details=details) if "decision" in details:
                    self._autoscaled(details)
                case do.StartProcess(name=name) if name.role is Role.WORKER:
                    self._check_number()
        if isinstance(event, happened.RingReported) and event.worker in world.workers:
            world.workers[event.worker].entered = event.entered
        if isinstance(event, happened.ProgressReported) and event.task is Task.TRAINING:
            self._check_progress()
        if not isinstance(event, happened.Tick | happened.LeaseRequested) or commands:
            self._look_for_progress(event, commands)

    def _leased(self, lease: Lease) -> None:
        if lease.shard is None:
            return
        # Whoever gets the rest of a shard tells that it is at its beginning: that is no movement.
        begun = lease.shard.id, lease.attempt
        self._offsets[begun] = max(lease.offset, self._offsets.get(begun, 0))
        if lease.task is Task.TRAINING:
            self._epochs[lease.shard.id] = lease.epoch

    def _check_number(self) -> None:
        """A worker starts: the job has no more than --autoscale chose."""
        if self._world.plan.spec.autoscales:
            scale = self._world.master.state.status().scale
            if scale.requested > (scale.autoscaled or 0):
                self.violated(f"{scale.requested} workers, {scale.autoscaled} were chosen")

    def _autoscaled(self, details: Mapping[str, Any]) -> None:
        master, now_s = self._world.master.state, self._world.scheduler.now_s
        for what, limits in (
            ("workers", master.status().scale),
            ("servers", self._world.plan.spec.cluster.num_ps_pods),
        ):
            if (number := details.get(what)) is None:
                continue
            # A person's number of servers replaces the range.
            asked = what == "servers" and details["decision"] == Kind.FOLLOW
            if not asked and not limits.low <= number <= limits.high:
                self.violated(f"{number} {what} were chosen from {limits.low}:{limits.high}")
            changes_s = self.scaled_s[what]
            if details["decision"] not in (Kind.KEEP, Kind.STAY_FEWER):
                changes_s.append(now_s)
            if sum(one > now_s - CHANGES_S for one in changes_s) > MOST_CHANGES:
                self.violated(f"the number of {what} changes too often: {changes_s}")

    def _stall_announced(self, text: str) -> None:
        now_s = self._world.scheduler.now_s
        self.announced_s, quiet_s = now_s, now_s - self.progress_s
        if quiet_s < self._world.plan.stall_s:
            self.violated(f"announced after {quiet_s:.1f} s without a movement: {text}")

    def stands_still(self) -> str:
        """For people, of a job that does not move: whether its master says so."""
        announced = self.announced_s > self.progress_s
        heard = "" if announced else ", and its master does not announce it"
        return f"the job stands still since {self.progress_s:.1f} s{heard}"

    def _check_progress(self) -> None:
        shown = self.shown()
        if self._world.plan.on_ring:
            most = self._world.hub.most_records
            if shown > most:
                self.violated(
                    f"{shown} records are shown as trained, but no weights have more than {most}"
                )
            for worker in self._world.workers.values():
                if (
                    worker.entered == self.generation
                    and worker.is_inside(self.generation)
                    and worker.records < shown
                ):
                    self.violated(
                        f"{shown} records are shown as trained, but {worker.name} has only"
                        f" {worker.records} in its weights"
                    )
        elif not self.server_deaths and shown > self.complete_records:
            self.violated(
                f"{shown} records are shown as trained, but all servers have only"
                f" {self.complete_records}"
            )

    def _look_for_progress(self, event: happened.Event, commands: Sequence[do.Command]) -> None:
        match event:
            case happened.ProgressReported():
                # A worker that is asked for its state tells the same once more.
                lease = (event.applied.shard, event.applied.attempt)
                if event.done or event.applied.offset > self._offsets.get(lease, 0):
                    self._offsets[lease] = event.applied.offset
                    self.progress_s = self._world.scheduler.now_s
            case (
                happened.ProcessAttached()
                | happened.ProcessEnded()
                | happened.SummaryReported()
                | happened.SnapshotSaved()
                | happened.SnapshotFailed()
                | happened.ExportFinished()
            ):
                self.progress_s = self._world.scheduler.now_s
            case _:
                pass

    def saved(self, command: do.SaveSnapshot, path: str) -> None:
        """A checkpoint is complete."""
        self._world.disk.versions[path] = command.version
        trained = sum(int(count["trained"]) for count in json.loads(command.ledger)["counts"])
        if self._world.plan.on_ring:
            version, weights = self._world.disk.rings[path]
            if (version, weights.version) != (command.version, command.version):
                self.violated(
                    f"{path} has version {version}, weights of {weights.version}; its ledger is of"
                    f" {command.version}"
                )
            if weights.records != trained:
                self.violated(
                    f"{path} has {weights.records} records in its weights, and {trained} in its"
                    " ledger"
                )
        else:
            self._check_saved_updates(command, path)
        if not self._world.plan.on_ring and self._whole:
            views: dict[int, View] = self._world.disk.servers[path]
            everywhere = set.intersection(*(set(view.log) for view in views.values()))
            records = sum(len(self._pushes[key][1]) for key in everywhere)
            if records != trained:
                self.violated(
                    f"{path} has {records} records in its weights, and {trained} in its ledger"
                )
            self._check_pieces(command, path, everywhere)

    def _check_pieces(self, command: do.SaveSnapshot, path: str, log: Iterable[Key]) -> None:
        """Whether a job that resumes would train just the records that are not in the weights."""
        plan, epochs = self._world.plan, self._world.plan.spec.data.num_epochs
        ledger = resume(command.ledger, plan.training, epochs, ShardIds()).ledger
        if plan.bad_every or ledger.stopped:
            return
        shards = ledger.plan
        sizes = np.array([shards.shard(one, ShardId(one)).records for one in range(shards.shards)])
        settled = np.zeros((epochs, shards.shards), np.int64)
        settled[: ledger.epoch] = sizes
        if ledger.counts:
            done = list(ledger.order[: ledger.cursor])
            settled[ledger.epoch, done] = sizes[done]
        for piece in (*ledger.returned, *ledger.parked):
            settled[piece.epoch, piece.number] = piece.offset
        counts = self._records_in(log).reshape(epochs, -1)
        begins = np.cumsum([0, *sizes[:-1]])
        if (np.add.reduceat(counts, begins, axis=1) != settled).any():
            self.violated(f"{path} has other records in its weights than its ledger says")

    def worker_ended(self, name: ProcessName, reason: Reason | None) -> None:
        """A worker comes to its end by itself."""
        match reason:
            case None | Done() | Draining():
                return
            case Failed(error):
                expected = isinstance(error, ElasticDLError) and (
                    bool(self._world.plan.faults) or self._world.master.state.over
                )
                if not expected:
                    self.violated(f"{name} failed though nothing went wrong: {error!r}", error)

    # The end

    def check_end(self) -> None:
        """After FinishJob."""
        world, plan = self._world, self._world.plan
        assert world.finish is not None
        code, early = world.finish.exit_code, plan.may_end_early
        if code is ExitCode.STALLED and self.announced_s < 0:
            self.violated("the job stood still, and its master does not announce it")
        if code is not ExitCode.DONE and not (early and code is ExitCode.INTERRUPTED):
            self.violated(f"job ended with exit code {int(code)}: {world.finish.message}")
        receipt = world.master.state.receipt()
        total, records = asdict(receipt.total), sum(one.records for one in plan.training)
        epochs = plan.spec.data.num_epochs
        done = total["trained"] + total["bad"] + total["left"]
        expected = total["expected"] == records * epochs == done
        bad = plan.bad_records * epochs
        if total["bad"] > bad or (total["bad"] < bad and not total["left"]):
            self.violated(f"{total['bad']} records are shown as bad, and {bad} are")
        if not expected or total["lost"] or (total["left"] and not early):
            self.violated(f"the receipt is wrong: {total}")
        status = world.master.state.status()
        if (
            sum(row.records or 0 for row in status.processes) + status.records.resumed
            != status.records.trained + status.records.undone
        ):
            self.violated(f"what workers did does not come to what was trained: {status.records}")
        if plan.on_ring:
            self._check_ring(total, records, epochs)
        else:
            self._check_servers(total, records, epochs)
        wrong = {cause: count for cause, count in status.dropped.items() if cause in WRONG}
        if wrong:
            self.violated(f"messages were dropped that no correct process sends: {wrong}")
        self._check_times(receipt)
        self._check_replay(receipt)

    def _check_times(self, receipt: Receipt) -> None:
        """All time of all workers that ended is accounted for, whatever ended them."""
        processes = self._world.master.state._context.processes
        ran_s = [
            one.since_s - one.began_s
            for one in processes.all.values()
            if one.name.role is Role.WORKER and one.began_s is not None and one.life is Life.ENDED
        ]
        if any(name.role is Role.WORKER for name in processes.going):
            return  # it counts up to its last report
        account = receipt.goodput
        spent = account.spent if account else ()
        known_s = sum(one.seconds for one in spent)
        # Each row is rounded to a millisecond.
        if abs(known_s - sum(ran_s)) > 0.005 * sum(ran_s) + _CLOSE_S + 0.0005 * len(spent):
            self.violated(f"workers ran for {sum(ran_s)} s, and account for {known_s} s: {account}")

    def _check_ring(self, total: dict[str, int], records: int, epochs: int) -> None:
        counts = self._world.hub.newest.counts(records, epochs).ravel()
        if total["left"]:
            # The last step may not have been safe when the job was stopped.
            if (counts > 1).any() or counts.sum() < total["trained"]:
                self.violated(
                    f"{total['trained']} records are told, the weights have {counts.sum()}, of one"
                    f" {counts.max()}"
                )
        elif not (counts == self._wanted(records, epochs)).all():
            self.violated(
                f"in the weights {int((counts < self._wanted(records, epochs)).sum())} records are"
                " missing,"
                f" {int((counts > 1).sum())} more than once"
            )
        updates = self._updates()
        steps = self._world.hub.newest.version
        if updates.applied > steps or (updates.applied < steps and not total["left"]):
            self.violated(f"the weights have {steps} steps, the receipt says {updates}")
        if updates.lost or bool(updates.repeated) > bool(self.rolled_back):
            self.violated(f"updates are undone that were not: {updates}")
        if not self.rolled_back and total["repeated"]:
            self.violated(
                f"{total['repeated']} records count as repeated, but no weights were lost"
            )

    def _check_servers(self, total: dict[str, int], records: int, epochs: int) -> None:
        complete = np.zeros(records * epochs, np.int64)
        torn = 0
        for key, (epoch, ids, _) in self._pushes.items():
            if key in self._complete:
                np.add.at(complete, ids + epoch * records, 1)
            else:
                torn += len(ids)
        self._check_updates(self._updates())
        if self._in_steps and self._whole:
            self._check_weights(total, records, epochs)
        missing = complete < self._wanted(records, epochs)
        if not total["left"] and missing.any():
            self.violated(f"{int(missing.sum())} records were never on all servers")
        if self.server_deaths:
            return
        if total["left"] and complete.sum() != total["trained"]:
            self.violated(f"{total['trained']} records are told, all servers have {complete.sum()}")
        if (complete > 1).any():
            self.violated(f"{int((complete > 1).sum())} records were trained more than once")
        if not total["left"] and total["repeated"] != torn:
            self.violated(
                f"{total['repeated']} records count as repeated, but pushes that only some servers"
                f" have are of {torn}"
            )

    def _check_weights(self, total: dict[str, int], records: int, epochs: int) -> None:
        """Each server has each record once, however often all returned to a checkpoint."""
        for index in self._world.master.state.server_map.indices:
            counts = self._records_in(self.servers[index].log) if index in self.servers else None
            if counts is None:
                continue
            if (counts > 1).any():
                self.violated(f"ps-{index} has {int((counts > 1).sum())} records more than once")
            if not total["left"] and not (counts == self._wanted(records, epochs)).all():
                missing = int((counts < self._wanted(records, epochs)).sum())
                self.violated(f"ps-{index} lacks {missing} records")
            # The last step may not have been told when the job was stopped.
            if counts.sum() < total["trained"]:
                self.violated(f"{total['trained']} records are told, ps-{index} has {counts.sum()}")

    def _updates(self) -> UpdateCounts:
        """What the receipt says."""
        updates = self._world.master.state.receipt().updates
        assert updates is not None
        return updates

    def _booked(self) -> set[Key]:
        """Updates that the master was told to be on all servers: pushes, or steps of ''."""
        pushes: dict[str, int] = {}
        steps: dict[int, bool] = {}
        for event in self._world.journal.events:
            match event:
                case happened.ProgressReported() | happened.PushesReported():
                    worker, number = str(event.worker), event.pushes
                case happened.WorkerFenced():
                    known = [sequence for sequence in event.sequences if sequence is not None]
                    worker, number = str(event.worker), min(known, default=0)
                    number = number if len(known) == len(event.sequences) else 0
                case happened.StepApplied():
                    steps.setdefault(event.number, event.complete)
                    continue
                case _:
                    continue
            pushes[worker] = max(number, pushes.get(worker, 0))
        if self._world.plan.spec.trains_in_steps:
            return {("", number) for number, complete in steps.items() if complete}
        return {(worker, one + 1) for worker, number in pushes.items() for one in range(number)}

    def _on(self, server: Server | View) -> set[Key]:
        """The updates in the weights of a server."""
        if not self._world.plan.spec.trains_in_steps:
            return set(server.log)
        steps = server.applied_steps if isinstance(server, Server) else server.steps
        return {("", number) for number in steps}

    def _check_updates(self, told: UpdateCounts) -> None:
        """Whether the receipt's updates are those of the servers."""
        booked = self._booked()
        indices = self._world.master.state.server_map.indices
        present = [self.servers[index] for index in indices if index in self.servers]
        everywhere = set.intersection(booked, *(self._on(one) for one in present))
        lost = booked - everywhere
        if told.applied + told.lost + told.repeated != len(booked):
            self.violated(f"{len(booked)} updates were made, the receipt says {told}")
        if self._in_steps and self._whole:
            if told.lost or told.at_least:
                self.violated(f"all returned to a checkpoint, but the receipt says {told}")
            for server in present:
                if len(self._on(server)) != told.applied:
                    self.violated(
                        f"ps-{server.index} has {len(self._on(server))} steps, the receipt says"
                        f" {told}"
                    )
            return
        if told.repeated:
            return  # All training was repeated; late reports may still be of the first time.
        if told.lost > len(lost) or (told.lost < len(lost) and not told.at_least):
            self.violated(f"{len(lost)} updates were lost, the receipt says {told}")
        if lost and not self.cannot_push_again:
            self.violated(f"only servers were lost, and with them {len(lost)} updates")
        if self.server_deaths:
            return
        if lost or told.at_least:
            self.violated(f"no server was lost, the receipt says {told}")
        if self._world.plan.spec.trains_in_steps:
            return
        if booked != self._complete:
            self.violated(f"all servers have {len(self._complete)} pushes, the receipt says {told}")

    def _check_saved_updates(self, command: do.SaveSnapshot, path: str) -> None:
        """Whether a checkpoint's ledger has the updates of its parts."""
        if not self._whole:
            return
        told = UpdateCounts(**json.loads(command.ledger)["updates"])
        views = self._world.disk.servers[path].values()
        everywhere = set.intersection(*(self._on(view) for view in views))
        if told != UpdateCounts(len(everywhere), 0, told.repeated, at_least=False):
            self.violated(f"{path} has {len(everywhere)} updates, its ledger says {told}")

    def _wanted(self, records: int, epochs: int) -> NDArray[np.int64]:
        """How often each record of each epoch is trained on: the bad ones never."""
        good = ~self._world.plan.bad(np.arange(records, dtype=np.int64))
        return np.tile(good.astype(np.int64), epochs)

    def _check_replay(self, receipt: Receipt) -> None:
        world = self._world
        if world.plan.number % 8 and not any(self.scaled_s.values()):
            return
        again = JobState(world.plan.spec)
        for event in world.journal.events:
            again.handle(event)
        state = world.master.state
        if again.receipt() != receipt or again.ledger_json() != state.ledger_json():
            self.violated("the journal leads to another state")
        if again.status().scale != state.status().scale:
            self.violated("the journal leads to another number of workers")
