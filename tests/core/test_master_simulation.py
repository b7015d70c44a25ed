"""A whole job without a process: workers and servers that do what the real ones may do, in any
order, at any moment.
"""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from elasticdl.cluster.base import ExitStatus, ProcessName, Role
from elasticdl.dropped import WRONG
from elasticdl.errors import ExitCode
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.state import JobState
from elasticdl.shard import Applied, Lease, SnapshotId, Source, Task
from tests.present import present

pytestmark = pytest.mark.core

TRAIN = (Source("a", 70), Source("b", 33))
VALIDATION = (Source("v", 50),)
BATCH = 8


def make_spec(**flags: Any) -> JobSpec:
    base: dict[str, Any] = {
        "model_zoo": "z",
        "model_def": "m",
        "training_data": "t",
        "validation_data": "v",
    }
    base |= {"minibatch_size": BATCH, "num_epochs": 2, "num_workers": "1:3"}
    return JobSpec.from_flags(Action.TRAIN, base | flags)


@dataclass
class Server:
    name: ProcessName
    last: dict[ProcessName, Applied] = field(default_factory=dict)
    order: dict[ProcessName, int] = field(default_factory=dict)


@dataclass
class Worker:
    name: ProcessName
    leases: deque[Lease] = field(default_factory=deque)
    offsets: dict[int, int] = field(default_factory=dict)
    reports: deque[e.Event] = field(default_factory=deque)
    silent: bool = False
    drain: bool = False
    finished: bool = False
    asked: bool = False
    pushes: int = 0


class World:
    """Truth beside the state machine: `complete` counts how often each record was applied on all
    servers at once, `torn`
    how often on some only. Once a server died the truth is only what the receipt says: what it had
    is lost.
    """

    def __init__(self, spec: JobSpec, servers: int) -> None:
        self.spec, self.t = spec, 0.0
        self.state = JobState(spec)
        self.servers: dict[int, Server | None] = dict.fromkeys(range(servers))
        self.workers: dict[ProcessName, Worker] = {}
        self.ghosts: list[Worker] = []
        self.fenced: set[ProcessName] = set()
        self.pending: deque[e.Event] = deque()
        self.complete: Counter[Any] = Counter()
        self.torn: Counter[Any] = Counter()
        self.deaths = 0
        self.server_deaths = 0
        self.gates: set[int] = set()
        self.ended: c.FinishJob | None = None
        self.version = 0
        self.failures = 0
        self.ledgers: list[tuple[str, Counter[Any]]] = []
        self.at_cut: dict[int, Counter[Any]] = {}
        self.handled: list[e.Event] = []
        self.expected_sum = None

    @property
    def finish(self) -> c.FinishJob:
        """Of a job that has ended."""
        return present(self.ended)

    # The driver

    def put(self, event: e.Event) -> list[c.Command]:
        assert event.at_s == self.t
        commands = self.state.handle(event)
        if commands or not isinstance(event, e.Tick):
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
                self.pending.append(e.ProcessSeen(0, name, True, "here"))
                self.pending.append(e.ProcessAttached(0, name, "c", f"addr-{name}", None))
            case c.StopProcess(name, grace_s):
                self.stop(name, grace_s)
            case c.GrantLease(name, lease):
                worker = self.workers[name]
                worker.leases.append(lease)
                if lease.shard is not None:
                    worker.offsets[lease.shard.id] = lease.offset
                assert len(worker.leases) <= 2
            case c.WorkFinished(name):
                if name in self.workers:
                    self.workers[name].finished = True
            case c.RevokeLeases(name):
                if name in self.workers:
                    self.workers[name].leases.clear()
            case c.AskState(name):
                if name in self.workers:
                    held = tuple(
                        Applied(lease.shard.id, lease.attempt, 0)
                        for lease in self.workers[name].leases
                        if lease.shard is not None
                    )
                    self.pending.append(e.StateReported(0, name, held, "", ""))
            case c.FenceWorker(name):
                self.fenced.add(name)
                told = tuple(
                    server.last.get(name) if server else None for server in self.servers.values()
                )
                self.pending.append(e.WorkerFenced(0, name, told))
            case c.TakeSnapshot(snapshot, _):
                self.cut(snapshot)
            case c.SaveSnapshot(snapshot, version, ledger):
                self.ledgers.append((ledger, self.at_cut[snapshot]))
                self.pending.append(
                    e.SnapshotSaved(0, SnapshotId(snapshot), version, f"version-{version}", 10)
                )
            case c.FinishJob():
                self.ended = command

    def cut(self, snapshot: int) -> None:
        if not all(self.servers.values()):
            self.pending.append(e.SnapshotFailed(0, SnapshotId(snapshot), "a server is away"))
            return
        self.gates.add(snapshot)
        names = {name for server in self.servers.values() for name in present(server).last}
        applied = {}
        for name in names:
            servers = map(present, self.servers.values())
            least = min(servers, key=lambda server: server.order.get(name, 0))
            if name in least.last:
                applied[str(name)] = least.last[name]
        self.at_cut[snapshot] = self.complete.copy()
        self.pending.append(e.SnapshotCut(0, SnapshotId(snapshot), self.version, applied))

    # Processes

    def deliver(self) -> None:
        """The oldest event that is under way arrives."""
        if not self.pending:
            return
        event = self.pending.popleft()
        event = type(event)(
            self.t,
            **{name: getattr(event, name) for name in event.__dataclass_fields__ if name != "at_s"},
        )
        if isinstance(event, e.ProcessAttached):
            if not self.state.may_attach(event.name):
                return
            if event.name.role is Role.WORKER:
                self.workers[event.name] = Worker(event.name)
            else:
                self.servers[event.name.index] = Server(event.name)
        self.put(event)
        if isinstance(event, e.SnapshotCut):
            self.gates.discard(event.snapshot)

    def stop(self, name: ProcessName, grace_s: float) -> None:
        if name.role is Role.PS:
            server = self.servers.get(name.index)
            if server and server.name == name:
                self.servers[name.index] = None
            self.pending.append(e.ProcessEnded(0, name, ExitStatus(exit_code=0, asked=True)))
        elif name in self.workers and grace_s > 0 and not self.workers[name].silent:
            self.workers[name].drain = True
        else:
            worker = self.workers.pop(name, None)
            if worker and worker.silent:
                self.ghosts.append(worker)
            self.pending.append(e.ProcessEnded(0, name, ExitStatus(signal=9, asked=True)))

    def worker(self, index: int) -> Worker | None:
        names = sorted(self.workers)
        return self.workers[names[index % len(names)]] if names else None

    # What a worker does

    def act(self, worker: Worker) -> None:
        """The next thing that worker would do by itself."""
        if worker.silent:
            return
        if worker.reports:
            self.report(worker)
        elif worker.drain:
            self.drain(worker)
        elif worker.leases:
            self.work(worker)
        elif worker.finished:
            del self.workers[worker.name]
            self.put(e.ProcessEnded(self.t, worker.name, ExitStatus(exit_code=0)))
        else:
            self.ask(worker)

    def ask(self, worker: Worker) -> None:
        if len(worker.leases) < 2 and not worker.silent and not worker.drain:
            self.put(e.LeaseRequested(self.t, worker.name))

    def work(self, worker: Worker) -> None:
        lease = next(
            (one for one in worker.leases if one.task is not Task.TRAINING), worker.leases[0]
        )
        match lease.task:
            case Task.TRAINING:
                self.train(worker, lease, list(self.servers))
            case Task.EVALUATION:
                self.evaluate(worker, lease)
            case Task.SUMMARY:
                payload = json.loads(lease.payload)
                assert payload["metrics"] == {"sum": [[float(sum(range(50)))], [50.0, 0.5 * 50]]}
                worker.leases.remove(lease)
                worker.reports.append(
                    e.SummaryReported(0, worker.name, payload["round"], {"mean": 24.5})
                )
            case Task.EXPORT:
                worker.leases.remove(lease)
                place = f"out/{lease.round}" if lease.round is not None else "out"
                worker.reports.append(e.ExportFinished(0, worker.name, place))

    def train(self, worker: Worker, lease: Lease, on: list[int]) -> None:
        """One batch, applied on the servers `on`; reported only if that is all of them."""
        if self.gates or not all(self.servers.values()) or worker.name in self.fenced:
            return
        shard = present(lease.shard)
        begin = worker.offsets[shard.id]
        end = min(begin + BATCH, shard.records)
        worker.pushes += 1
        for index in on:
            server = present(self.servers[index])
            server.last[worker.name] = Applied(shard.id, lease.attempt, end)
            server.order[worker.name] = worker.pushes
        records = Counter((lease.epoch, shard.source, shard.begin + i) for i in range(begin, end))
        (self.complete if len(on) == len(self.servers) else self.torn).update(records)
        if len(on) < len(self.servers):
            return
        self.version += 1
        worker.offsets[present(shard).id] = end
        done = end == present(shard).records
        applied = Applied(shard.id, lease.attempt, end)
        worker.reports.append(
            e.ProgressReported(
                0, worker.name, Task.TRAINING, applied, self.version, loss=1.0, done=done
            )
        )
        if done:
            worker.leases.remove(lease)

    def evaluate(self, worker: Worker, lease: Lease) -> None:
        shard = present(lease.shard)
        assert lease.snapshot is not None
        assert lease.offset == 0
        worker.leases.remove(lease)
        metrics: Any = {
            "sum": (
                (float(sum(range(shard.begin, shard.end))),),
                (float(shard.records), 0.5 * shard.records),
            )
        }
        applied = Applied(shard.id, lease.attempt, shard.records)
        worker.reports.append(
            e.ProgressReported(0, worker.name, Task.EVALUATION, applied, done=True, metrics=metrics)
        )

    def report(self, worker: Worker, *, twice: bool = False) -> None:
        if not worker.reports:
            return
        event = worker.reports.popleft()
        event = type(event)(
            self.t,
            **{name: getattr(event, name) for name in event.__dataclass_fields__ if name != "at_s"},
        )
        self.put(event)
        if twice:
            self.put(event)
        if isinstance(event, e.ProgressReported) and event.version:
            self.put(e.VersionAdvanced(self.t, self.version))

    def drain(self, worker: Worker) -> None:
        while worker.reports:
            self.report(worker)
        for lease in worker.leases:
            if lease.shard is not None:
                self.put(
                    e.LeaseReturned(
                        self.t,
                        worker.name,
                        Applied(lease.shard.id, lease.attempt, worker.offsets[lease.shard.id]),
                    )
                )
        if self.workers.pop(worker.name, None):
            self.put(
                e.ProcessEnded(self.t, worker.name, ExitStatus(exit_code=int(ExitCode.DRAINED)))
            )

    def kill(self, worker: Worker, torn_on: list[int]) -> None:
        lease = worker.leases[0] if worker.leases else None
        if lease and lease.task is Task.TRAINING and torn_on:
            self.train(worker, lease, torn_on)
        del self.workers[worker.name]
        self.deaths += 1
        self.put(e.ProcessEnded(self.t, worker.name, ExitStatus(signal=9)))
        self.put(e.ProcessEnded(self.t, worker.name, ExitStatus(signal=9)))

    def fail(self, worker: Worker) -> None:
        """User code raises at the first lease, with a push under way that some servers get."""
        lease = worker.leases[0] if worker.leases else None
        if lease is None or lease.task is not Task.TRAINING:
            return
        self.failures += 1
        self.deaths += 1
        while worker.reports:
            self.report(worker)
        if len(self.servers) > 1:
            self.train(worker, lease, [0])
        self.put(
            e.TaskFailed(
                self.t,
                worker.name,
                Task.TRAINING,
                present(lease.shard).id,
                lease.attempt,
                "m.py:3: boom",
            )
        )
        del self.workers[worker.name]
        self.put(e.ProcessEnded(self.t, worker.name, ExitStatus(exit_code=64)))

    def lose_grant(self, worker: Worker) -> None:
        """A lease is granted to a worker that does not get it."""
        if worker.silent or worker.drain:
            return
        before = len(worker.leases)
        self.ask(worker)
        if len(worker.leases) > before and worker.leases[-1].shard is not None:
            lease = worker.leases.pop()
            self.put(
                e.LeaseReturned(
                    self.t,
                    worker.name,
                    Applied(present(lease.shard).id, lease.attempt, lease.offset),
                    taken=False,
                )
            )

    def come_back(self) -> None:
        """A worker that was given up wakes: it reports, and pushes on if nobody fenced it."""
        if self.ghosts:
            ghost = self.ghosts.pop()
            while ghost.reports:
                self.report(ghost)
            self.put(e.LeaseRequested(self.t, ghost.name))

    def kill_server(self, index: int) -> None:
        server = self.servers[index]
        if server is None or self.gates:
            return
        self.servers[index] = None
        self.server_deaths += 1
        self.put(e.ProcessEnded(self.t, server.name, ExitStatus(signal=9)))

    def lose_server_in_a_push(self, worker: Worker, index: int) -> None:
        """A server dies in the middle of a push that the others get, and then the worker dies: it
        told nobody of that push.
        """
        lease = worker.leases[0] if worker.leases else None
        others = [one for one in self.servers if one != index]
        if (
            lease
            and lease.task is Task.TRAINING
            and others
            and self.servers.get(index)
            and not self.gates
        ):
            self.train(worker, lease, others)
            self.kill_server(index)
        if worker.name in self.workers:
            self.kill(worker, [])

    def fall_silent(self, worker: Worker) -> None:
        worker.silent = True
        self.deaths += 1
        self.put(e.ProcessSilent(self.t, worker.name, 10.0))

    def tick(self, seconds: float) -> None:
        self.t += seconds
        self.put(e.Tick(self.t))

    # The end

    def run_out(self) -> None:
        """Nothing goes wrong any more: the job must end by itself."""
        for _ in range(3000):
            if self.ended:
                return
            while self.pending:
                self.deliver()
            for worker in list(self.workers.values()):
                self.act(worker)
                self.ask(worker) if worker.name in self.workers and not worker.finished else None
            self.tick(0.2)
        raise AssertionError(f"the job does not end: {self.state.status()}")

    def check_truth(self) -> None:
        receipt = self.state.receipt()
        total = sum(source.records for source in TRAIN)
        assert [epoch.expected for epoch in receipt.epochs] == [total] * self.spec.data.num_epochs
        assert [epoch.trained for epoch in receipt.epochs] == [total] * self.spec.data.num_epochs
        assert receipt.total.lost == receipt.total.left == 0
        told = self.state.status()
        assert (
            sum(row.records or 0 for row in told.processes) + told.records.resumed
            == told.records.trained + told.records.undone
        )
        assert receipt.total.repeated <= BATCH * self.deaths
        assert not WRONG & told.dropped.keys(), told.dropped
        assert len(self.complete) == total * self.spec.data.num_epochs, (
            "each record was on all servers at once"
        )
        if self.server_deaths == 0:
            assert set(self.complete.values()) == {1}
            assert receipt.total.repeated == sum(self.torn.values())

    def check_ledgers(self) -> None:
        """A checkpoint's ledger is exactly what is on all servers at the cut: a resume trains just
        the others.
        """
        if self.server_deaths:
            return
        for text, records in self.ledgers:
            assert sum(count["trained"] for count in json.loads(text)["counts"]) == len(records)
        for text, records in self.ledgers[-2:]:
            again = World(self.spec, len(self.servers))
            again.put(e.JobStarted(0.0, TRAIN, VALIDATION, ledger=text))
            again.run_out()
            assert again.finish.exit_code is ExitCode.DONE
            assert set((records + again.complete).values()) == {1}
            assert (
                len(records + again.complete)
                == sum(source.records for source in TRAIN) * self.spec.data.num_epochs
            )


class Job(RuleBasedStateMachine):
    """Anything may happen at any moment; whatever did, the job ends with every record trained."""

    @initialize(
        servers=st.integers(1, 3),
        output=st.sampled_from(["", "out"]),
        every=st.sampled_from([0, 5]),
        export_seconds=st.sampled_from([0, 2]),
    )
    def begin(self, servers: int, output: str, every: int, export_seconds: float) -> None:
        spec = make_spec(
            num_ps_pods=servers,
            output=output,
            export_seconds=export_seconds if output else 0,
            evaluation_steps=every,
            checkpoint_steps=every,
            max_relaunches=0,
        )
        self.world = World(spec, servers)
        self.world.put(e.JobStarted(0.0, TRAIN, VALIDATION))
        self.index = 0

    @rule(times=st.integers(1, 8))
    def deliver(self, times: int) -> None:
        for _ in range(times):
            self.world.deliver()

    @rule(who=st.integers(0, 5), times=st.integers(1, 12))
    def act(self, who: int, times: int) -> None:
        for _ in range(times):
            if worker := self.world.worker(who):
                self.world.act(worker)

    @rule(who=st.integers(0, 5), times=st.integers(1, 12))
    def work_without_reporting(self, who: int, times: int) -> None:
        for _ in range(times):
            worker = self.world.worker(who)
            if worker and worker.leases and not worker.drain and not worker.silent:
                self.world.work(worker)

    @rule(who=st.integers(0, 5))
    def ask(self, who: int) -> None:
        if worker := self.world.worker(who):
            self.world.ask(worker)

    @rule(who=st.integers(0, 5), torn=st.sets(st.integers(0, 2)))
    def kill(self, who: int, torn: set[int]) -> None:
        if worker := self.world.worker(who):
            alive = sorted(index for index in torn if index < len(self.world.servers))
            self.world.kill(worker, [] if len(alive) == len(self.world.servers) else alive)

    @rule(who=st.integers(0, 5))
    def fail(self, who: int) -> None:
        worker = self.world.worker(who)
        if worker and not worker.silent and not worker.drain and self.world.failures < 2:
            self.world.fail(worker)

    @rule(who=st.integers(0, 5))
    def lose_grant(self, who: int) -> None:
        if worker := self.world.worker(who):
            self.world.lose_grant(worker)

    @rule(who=st.integers(0, 5))
    def drain(self, who: int) -> None:
        worker = self.world.worker(who)
        if worker and not worker.silent:
            self.world.drain(worker)

    @rule(who=st.integers(0, 5))
    def fall_silent(self, who: int) -> None:
        if worker := self.world.worker(who):
            self.world.fall_silent(worker)

    @rule()
    def come_back(self) -> None:
        self.world.come_back()

    @rule(who=st.integers(0, 5))
    def report_twice(self, who: int) -> None:
        if worker := self.world.worker(who):
            self.world.report(worker, twice=True)

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0]))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)
        json.dumps(self.world.state.status().to_json())

    @rule(low=st.integers(0, 3), high=st.integers(1, 5))
    def scale(self, low: int, high: int) -> None:
        self.world.put(e.ScaleRequested(self.world.t, low, high))

    @rule(who=st.integers(0, 5))
    def replace(self, who: int) -> None:
        if worker := self.world.worker(who):
            self.world.put(e.ReplaceRequested(self.world.t, worker.name))

    @rule(index=st.integers(0, 2))
    def kill_server(self, index: int) -> None:
        if index in self.world.servers:
            self.world.kill_server(index)

    @rule(who=st.integers(0, 5), index=st.integers(0, 2))
    def lose_server_in_a_push(self, who: int, index: int) -> None:
        worker = self.world.worker(who)
        if worker and not worker.silent and not worker.drain and index in self.world.servers:
            self.world.lose_server_in_a_push(worker, index)

    @rule()
    def checkpoint(self) -> None:
        self.world.put(e.CheckpointRequested(self.world.t))

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.run_out()
        assert self.world.finish.exit_code is ExitCode.DONE, self.world.finish
        self.world.check_truth()
        self.world.check_ledgers()


TestAnyOrder = Job.TestCase
TestAnyOrder.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("seed", range(30))
def test_a_job_whose_workers_are_killed_again_and_again_trains_every_record(seed: int) -> None:
    rng = random.Random(seed)
    servers = rng.randint(1, 3)
    world = World(
        make_spec(num_ps_pods=servers, evaluation_steps=7, checkpoint_steps=9, max_relaunches=0),
        servers,
    )
    world.put(e.JobStarted(0.0, TRAIN, VALIDATION))
    for _ in range(400):
        if world.ended:
            break
        world.tick(0.1)
        world.deliver()
        worker = world.worker(rng.randint(0, 9))
        if worker is None:
            continue
        for _ in range(3):
            if worker.name in world.workers:
                world.act(worker)
        if rng.random() < 0.08 and worker.name in world.workers:
            torn = [index for index in world.servers if rng.random() < 0.5]
            world.kill(worker, torn if len(torn) < servers else [])
    world.run_out()
    assert world.finish.exit_code is ExitCode.DONE
    world.check_truth()
    world.check_ledgers()


@pytest.mark.parametrize("seed", range(20))
def test_servers_that_die_in_a_push_with_their_worker_leave_no_record_half_trained(
    seed: int,
) -> None:
    rng = random.Random(seed)
    servers = rng.randint(2, 3)
    world = World(make_spec(num_ps_pods=servers, max_relaunches=0), servers)
    world.put(e.JobStarted(0.0, TRAIN, VALIDATION))
    for _ in range(400):
        if world.ended:
            break
        world.tick(0.1)
        for _ in range(rng.randint(0, 3)):
            world.deliver()
        worker = world.worker(rng.randint(0, 9))
        for _ in range(rng.randint(0, 4)):
            if worker and worker.name in world.workers:
                world.act(worker)
        if worker and worker.name in world.workers and rng.random() < 0.1:
            world.lose_server_in_a_push(worker, rng.randrange(servers))
    world.run_out()
    assert world.finish.exit_code is ExitCode.DONE
    world.check_truth()
