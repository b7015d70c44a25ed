"""A job on a ring without a process: workers that do what real ones may do, in any order, and
weights that remember exactly
which records they were trained on.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from elasticdl.cluster.base import ExitStatus, ProcessName, Role
from elasticdl.dropped import WRONG
from elasticdl.errors import ExitCode
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.state import JobState
from elasticdl.shard import Applied, Barrier, Lease, SnapshotId, Source, Task, WorkItem
from tests.present import present

TRAIN = (Source("a", 70), Source("b", 33))
VALIDATION = (Source("v", 50),)
BATCH = 8
KILLED = ExitStatus(signal=9)


def make_spec(**flags: int | str) -> JobSpec:
    base: dict[str, Any] = {
        "model_zoo": "z",
        "model_def": "m",
        "training_data": "t",
        "validation_data": "v",
    }
    base |= {
        "minibatch_size": BATCH,
        "num_epochs": 2,
        "num_workers": "1:3",
        "distribution_strategy": "AllreduceStrategy",
    }
    return JobSpec.from_flags(Action.TRAIN, base | flags)


@dataclass(frozen=True)
class Weights:
    """`windows`: (epoch, source, begin, end) of each step that is in them.

    `number`, `offset`: where to go on. `last`: the
    lease of the last step, and how far that step came in it.
    """

    windows: tuple[tuple[int, str, int, int], ...] = ()
    number: int = 1
    offset: int | None = None
    last: tuple[Lease, int] | None = None

    def at(self, number: int) -> Weights:
        return replace(self, number=number, offset=None)

    @property
    def version(self) -> int:
        return len(self.windows)

    def records(self) -> Counter[Any]:
        return Counter(
            (epoch, source, i)
            for epoch, source, begin, end in self.windows
            for i in range(begin, end)
        )


@dataclass(eq=False)
class Worker:
    name: ProcessName
    weights: Weights | None = None
    entered: int = 0
    broken: int = 0
    inside: int = 0
    """The generation that it is in now, 0 for none."""
    form: c.PublishRing | None = None
    orders: deque[c.PublishRing] = field(default_factory=deque)
    reports: deque[e.Event] = field(default_factory=deque)
    items: dict[int, WorkItem] = field(default_factory=dict)
    leases: deque[Lease] = field(default_factory=deque)
    silent: bool = False
    drain: bool = False
    finished: bool = False
    drains_s: float = 0.0
    heard_s: float = 0.0
    marks: set[int] = field(default_factory=set)

    def word(self) -> e.RingReported:
        problem, at = "it broke" if self.broken else "", self.weights or Weights()
        offset = -1 if at.offset is None else at.offset
        return e.RingReported(
            0,
            self.name,
            True,
            self.entered,
            self.broken,
            self.drain,
            problem,
            at.version,
            at.number,
            offset,
        )


class RingWorld:
    """`put` is the driver; everything else is what happens outside of the master."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec, self.t = spec, 0.0
        self.state = JobState(spec)
        self.workers: dict[ProcessName, Worker] = {}
        self.pending: deque[e.Event] = deque()
        self.alarms: list[float] = []
        self.ended: c.FinishJob | None = None
        self.newest_ring: c.PublishRing | None = None
        self.generations: list[int] = []
        self.repeated = 0
        self.held_by: tuple[ProcessName, ...] = ()
        """Who was in the last generation that anybody entered."""
        self.saved: dict[str, Weights] = {}
        self.copies: dict[int, tuple[Worker, Weights]] = {}
        self.rolled_back = 0
        self.rounds: list[int] = []
        self.handled: list[e.Event] = []
        self.announced: list[c.Announce] = []
        self.newest: Weights = Weights()
        self.deaths = 0

    @property
    def finish(self) -> c.FinishJob:
        """The end of a job that has ended."""
        return present(self.ended)

    @property
    def ring(self) -> c.PublishRing:
        """The newest ring that was published."""
        return present(self.newest_ring)

    # The driver

    def put(self, event: e.Event) -> list[c.Command]:
        values = {
            name: getattr(event, name) for name in event.__dataclass_fields__ if name != "at_s"
        }
        event = type(event)(self.t, **values)
        commands = self.state.handle(event)
        self.handled.append(event)
        for position, command in enumerate(commands):
            if isinstance(command, c.FinishJob):
                assert position == len(commands) - 1
                assert self.ended is None
            self.carry_out(command)
        return commands

    def carry_out(self, command: c.Command) -> None:
        match command:
            case c.StartProcess(name):
                assert name.role is Role.WORKER
                self.pending.append(e.ProcessSeen(0, name, True, "here"))
                self.pending.append(e.ProcessAttached(0, name))
            case c.StopProcess(name, grace_s):
                self.stop(name, grace_s)
            case c.GrantItem(name, item):
                self.workers[name].items[item.number] = item
            case c.GrantLease(name, lease):
                assert lease.task is not Task.TRAINING
                self.workers[name].leases.append(lease)
            case c.WorkFinished(name):
                if name in self.workers:
                    self.workers[name].finished = True
            case c.RevokeLeases(name):
                if name in self.workers:
                    self.workers[name].leases.clear()
            case c.PublishRing():
                self.publish(command)
            case c.WithdrawRing(generation):
                for worker in self.workers.values():
                    if (
                        worker.form is not None
                        and worker.form.generation == generation
                        and worker.inside != generation
                    ):
                        worker.broken = generation
                        worker.reports.append(worker.word())
            case c.LookAgain(after_s):
                self.alarms.append(self.t + after_s)
            case c.SaveSnapshot(snapshot, version, ledger):
                self.save(snapshot, version, ledger)
            case c.Announce():
                self.announced.append(command)
            case c.FinishJob():
                self.ended = command
            case c.FenceWorker() | c.TakeSnapshot() | c.PublishServers():
                raise AssertionError(f"a ring has no servers: {command}")

    def publish(self, ring: c.PublishRing) -> None:
        assert not self.generations or ring.generation > self.generations[-1]
        assert len(ring.members) == len(set(ring.members)) >= 1
        self.generations.append(ring.generation)
        before, self.newest_ring = self.newest_ring, ring
        if not ring.holders and before is not None:
            self.rolled_back += 1
            well = [
                one
                for name in self.held_by
                if (one := self.workers.get(name)) and not one.silent and not one.drain
            ]
            repeated, self.repeated = self.repeated, self.state.receipt().total.repeated
            assert not well or repeated == self.repeated, (
                f"weights of {[str(one.name) for one in well]} are thrown away"
            )
        for name in dict.fromkeys((*(before.members if before else ()), *ring.members)):
            if name in self.workers:
                self.workers[name].orders.append(ring)
            else:
                unseen = any(
                    isinstance(event, e.ProcessEnded) and event.name == name
                    for event in self.pending
                )
                assert unseen or name not in ring.members, f"{name} of {ring} is dead"

    def save(self, snapshot: int, version: int, ledger: str) -> None:
        found = self.copies.pop(snapshot, None)
        if found is None or found[0].name not in self.workers:
            self.pending.append(e.SnapshotFailed(0, SnapshotId(snapshot), "the copy is gone"))
            return
        weights = found[1]
        assert weights.version == version
        assert sum(count["trained"] for count in json.loads(ledger)["counts"]) == sum(
            weights.records().values()
        )
        self.saved[f"version-{version}"] = weights
        self.pending.append(
            e.SnapshotSaved(0, SnapshotId(snapshot), version, f"version-{version}", 10)
        )

    # Processes

    def deliver(self) -> None:
        if not self.pending:
            return
        event = self.pending.popleft()
        if isinstance(event, e.ProcessAttached):
            if not self.state.may_attach(event.name):
                return
            worker = self.workers[event.name] = Worker(event.name, heard_s=self.t)
            worker.reports.append(worker.word())
        self.put(event)

    def stop(self, name: ProcessName, grace_s: float) -> None:
        worker = self.workers.get(name)
        if worker is not None and grace_s > 0 and not worker.silent:
            self.drain(worker)
        else:
            self.workers.pop(name, None)
            self.pending.append(e.ProcessEnded(0, name, ExitStatus(signal=9, asked=True)))

    def kill(self, worker: Worker, *, tell: bool = True) -> None:
        """`tell` False: the exit is seen later, as on a cluster with a slow watch; its connection
        breaks at once.
        """
        del self.workers[worker.name]
        self.deaths += 1
        if tell:
            self.put(e.ProcessEnded(0, worker.name, KILLED))
        else:
            self.put(e.ConnectionLost(0, worker.name))
            self.pending.append(e.ProcessEnded(0, worker.name, KILLED))

    def kill_quietly(self, name: ProcessName) -> None:
        """Nobody was told yet."""
        del self.workers[name]

    def say_broken(self, name: ProcessName) -> None:
        """A step broke for that member, and it tells."""
        self.broke(self.workers[name])
        while self.workers[name].reports:
            self.put(self.workers[name].reports.popleft())

    def drain(self, worker: Worker) -> None:
        """It is asked to go: it stays as long as the ring needs it, but not for ever."""
        if not worker.drain:
            worker.drain, worker.drains_s = True, self.t
            worker.reports.append(worker.word())

    # What a worker does by itself

    def act(self, worker: Worker) -> None:
        if worker.silent or worker.name not in self.workers:
            return
        if worker.orders:
            self.obey(worker)
        elif worker.reports:
            worker.heard_s = self.t
            self.put(worker.reports.popleft())
        elif worker.inside and worker.leases:
            self.work(worker)
        elif worker.drain and (
            not self.newest_ring
            or worker.name not in self.ring.members
            or self.t > worker.drains_s + 4.5
        ):
            self.leave(worker)
        elif worker.finished:
            del self.workers[worker.name]
            self.put(e.ProcessEnded(0, worker.name, ExitStatus(exit_code=0)))
        elif worker.inside and worker.weights is not None:
            self.ask(worker)

    def obey(self, worker: Worker) -> None:
        form = worker.orders.popleft()
        if worker.form is not None and form.generation <= worker.form.generation:
            return
        worker.form, worker.inside = form, 0
        worker.items = {
            number: item for number, item in worker.items.items() if number >= form.first_item
        }
        worker.marks.clear()
        if worker.name not in form.members:
            worker.form = None
            worker.reports.append(worker.word())

    def leave(self, worker: Worker) -> None:
        while worker.reports:
            self.put(worker.reports.popleft())
        for lease in worker.leases:
            if lease.shard is not None:
                self.put(
                    e.LeaseReturned(
                        0, worker.name, Applied(lease.shard.id, lease.attempt, lease.offset)
                    )
                )
        if self.workers.pop(worker.name, None):
            self.put(e.ProcessEnded(0, worker.name, ExitStatus(exit_code=int(ExitCode.DRAINED))))

    def ask(self, worker: Worker) -> None:
        number = present(worker.weights).number
        item = worker.items.get(number)
        if item is None:
            self.put(e.LeaseRequested(0, worker.name, number, False))
        elif number in worker.marks and number + 1 in worker.items:
            worker.weights = present(worker.weights).at(number + 1)
        elif number in worker.marks:
            self.put(e.LeaseRequested(0, worker.name, number + 1, True))
        elif item.mark is not Barrier.NONE and number not in worker.marks:
            self.reach_mark(worker, item)

    def reach_mark(self, worker: Worker, item: WorkItem) -> None:
        """A pause needs all members: they confirm the last step. A checkpoint is the leader's."""
        members = self.members(worker.inside)
        if item.mark is Barrier.CHECKPOINT:
            if worker.name == self.ring_of(worker).members[0]:
                snapshot, weights = present(item.snapshot), present(worker.weights)
                self.copies[snapshot] = (worker, weights)
                worker.reports.append(e.SnapshotCut(0, snapshot, weights.version, {}))
            worker.weights = present(worker.weights).at(item.number + 1)
        elif members is None or any(member.silent for member in members):
            self.broke(worker)
        elif all(
            member.inside == worker.inside and present(member.weights).number == item.number
            for member in members
        ):
            self.tell(members[0], present(members[0].weights))
            for member in members:
                member.marks.add(item.number)

    def work(self, worker: Worker) -> None:
        lease = worker.leases.popleft()
        members = self.members(worker.inside) or []
        if lease.task in (Task.EVALUATION, Task.SUMMARY, Task.EXPORT) and members:
            assert lease.snapshot is None
            if all(member.inside == worker.inside for member in members):
                assert {present(member.weights).windows for member in members} == {
                    present(worker.weights).windows
                }
        match lease.task:
            case Task.EVALUATION:
                assert present(worker.weights).version == lease.version
                self.rounds.append(lease.version)
                shard = present(lease.shard)
                metrics: Any = {"sum": ((float(sum(range(shard.begin, shard.end))),),)}
                applied = Applied(shard.id, lease.attempt, shard.records)
                worker.reports.append(
                    e.ProgressReported(
                        0, worker.name, Task.EVALUATION, applied, done=True, metrics=metrics
                    )
                )
            case Task.SUMMARY:
                payload = json.loads(lease.payload)
                assert payload["metrics"] == {"sum": [[float(sum(range(50)))]]}
                worker.reports.append(
                    e.SummaryReported(0, worker.name, payload["round"], {"mean": 24.5})
                )
            case Task.EXPORT:
                assert present(worker.weights).version == self.newest.version
                worker.reports.append(e.ExportFinished(0, worker.name, "export"))

    # The ring

    def ring_of(self, worker: Worker) -> c.PublishRing:
        assert worker.form is not None
        return worker.form

    def members(self, generation: int) -> list[Worker] | None:
        """Members of the newest generation by rank; None if one of them is dead, or that is not the
        newest.
        """
        if self.newest_ring is None or self.ring.generation != generation:
            return None
        if not all(name in self.workers for name in self.ring.members):
            return None
        return [self.workers[name] for name in self.ring.members]

    def enter(self) -> None:
        """The members of the newest generation meet, and all get the weights."""
        members = self.members(self.ring.generation) if self.newest_ring else None
        if members is None or any(
            member.silent
            or member.form is not self.newest_ring
            or member.entered >= self.ring.generation
            for member in members
        ):
            return
        holders = [present(members[rank].weights) for rank in self.ring.holders]
        if holders:
            elected = max(holders, key=lambda weights: weights.version)
        else:
            elected = self.saved[self.ring.restore_from] if self.ring.restore_from else Weights()
            if self.ring.first_item > 1:
                elected = elected.at(self.ring.first_item)
        handed = elected
        if elected.number < self.ring.first_item:
            elected = elected.at(self.ring.first_item)
        # Restored ones were told before; handed over ones are safe when everybody has them.
        self.held_by = self.ring.members
        for one in members:
            one.weights = elected
            one.entered = one.inside = self.ring.generation
        if holders:
            self.tell(members[0], handed)
        for one in members:
            one.reports.append(one.word())
        self.newest = elected

    def tell(self, leader: Worker, weights: Weights) -> None:
        """Progress that every member has."""
        if weights.last is not None:
            lease, end = weights.last
            done = end == (lease.limit or present(lease.shard).records)
            applied = Applied(present(lease.shard).id, lease.attempt, end)
            leader.reports.append(
                e.ProgressReported(
                    0, leader.name, Task.TRAINING, applied, weights.version, loss=1.0, done=done
                )
            )

    def step(self) -> None:
        """One step of the newest generation."""
        members = [
            self.workers[name]
            for name in (self.ring.members if self.newest_ring else ())
            if name in self.workers
        ]
        inside = [
            member
            for member in members
            if self.newest_ring and member.inside == self.ring.generation and not member.silent
        ]
        if not inside:
            return
        if len(inside) < len(self.ring.members):
            # Somebody is gone, stopped or not in any more: whoever steps falls out.
            if self.generations[-1] == self.ring.generation and any(
                member.silent for member in members
            ):
                for one in inside:
                    self.broke(one)
            return
        windows = [self.window(one) for one in inside]
        if any(window is None for window in windows):
            return
        assert len(set(windows)) == 1, f"members train on different records: {windows}"
        before = present(inside[0].weights)
        for one in inside:
            self.apply(one, present(windows[0]))
        self.newest = present(inside[0].weights)
        self.tell(inside[0], before)

    def window(self, worker: Worker) -> tuple[WorkItem, int, int] | None:
        weights = present(worker.weights)
        item = worker.items.get(weights.number)
        if item is None or item.mark is not Barrier.NONE:
            return None
        lease = present(item.lease)
        begin = lease.offset if weights.offset is None else weights.offset
        end = min(begin + item.batch, lease.limit or present(lease.shard).records)
        return item, begin, end

    def apply(self, worker: Worker, window: tuple[WorkItem, int, int]) -> None:
        item, begin, end = window
        lease = present(item.lease)
        shard = present(lease.shard)
        window_of = (lease.epoch, shard.source, shard.begin + begin, shard.begin + end)
        windows = (*present(worker.weights).windows, window_of)
        through = end == (lease.limit or shard.records)
        worker.weights = Weights(
            windows, item.number + through, None if through else end, (lease, end)
        )

    def broke(self, worker: Worker) -> None:
        if worker.inside:
            worker.broken, worker.inside = worker.inside, 0
            worker.reports.append(worker.word())

    # Time

    def tick(self, seconds: float) -> None:
        while seconds > 0.5:
            self._tick(0.5)
            seconds -= 0.5
        self._tick(seconds)

    def _tick(self, seconds: float) -> None:
        until = self.t + seconds
        for alarm in sorted(alarm for alarm in self.alarms if alarm <= until):
            self.t = max(self.t, alarm)
            self.put(e.Tick(0))
        self.alarms = [alarm for alarm in self.alarms if alarm > until]
        self.t = until
        for worker in list(self.workers.values()):
            if not worker.silent and self.t - worker.heard_s >= 2.0:
                worker.heard_s = self.t
                self.put(worker.word())
            elif worker.silent and self.t - worker.heard_s >= 10.0:
                self.put(e.ProcessSilent(0, worker.name, 10.0))
        self.put(e.Tick(0))

    def turn(self) -> None:
        """Everybody does a little, and nothing goes wrong."""
        while self.pending:
            self.deliver()
        for worker in list(self.workers.values()):
            for _ in range(3):
                self.act(worker)
        self.enter()
        self.step()
        self.tick(0.1)

    def run_out(self) -> None:
        """Nothing goes wrong any more: the job must end by itself."""
        self.run_until(lambda: self.ended is not None)

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Nothing goes wrong until then."""
        for _ in range(1000):
            if reached():
                return
            self.turn()
        raise AssertionError(f"the job does not end: {self.state.status()}")

    def check_truth(self) -> None:
        receipt = self.state.receipt()
        total = sum(source.records for source in TRAIN) * self.spec.data.num_epochs
        assert receipt.total.expected == receipt.total.trained == total, receipt
        assert receipt.total.lost == receipt.total.left == 0
        told = self.state.status()
        assert (
            sum(row.records or 0 for row in told.processes) + told.records.resumed
            == told.records.trained + told.records.undone
        )
        records = self.newest.records()
        assert set(records.values()) == {1}
        assert len(records) == total
        if not self.rolled_back:
            assert receipt.total.repeated == 0
        assert self.generations == sorted(set(self.generations))
        assert not WRONG & told.dropped.keys(), told.dropped


def started(**flags: Any) -> RingWorld:
    """A world whose job has begun."""
    world = RingWorld(make_spec(**flags))
    world.put(e.JobStarted(0.0, TRAIN, VALIDATION))
    return world
