"""A worker's stages on an in-memory model, which counts how often it has seen each record."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from elasticdl.clock import Clock, SystemClock
from elasticdl.data.base import Block, Metadata
from elasticdl.embedding.spec import (
    DenseSpec,
    OptimizerKind,
    OptimizerSpec,
    ParametersSpec,
    TableSpec,
)
from elasticdl.rpc.conversation import Finished, Progress, Report, Wait
from elasticdl.rpc.parameters import Pulled, Pushed, RowsPage, Update
from elasticdl.shard import Lease, Shard, ShardId, SnapshotId, Source, Task
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.leases import LeaseKeeper
from elasticdl.worker.pipeline.loop import Loop
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.prefetch import Prefetch
from elasticdl.worker.pipeline.reading import Feeding, ShardReading, Sources
from elasticdl.worker.pipeline.reporter import Reporter
from elasticdl.worker.pipeline.retry import ServerRetry
from elasticdl.worker.pipeline.trainer import Loaded
from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.hang_watch import HangWatch
from elasticdl.worker.process.shutdown import Draining, Shutdown
from elasticdl.worker.ps.trainer import Bounds, PsTrainer
from elasticdl.worker.tasks.evaluation import EvaluationTask, SummaryTask
from tests.present import present

LIMIT_S = 20.0
DIM = 2
SPEC = ParametersSpec(
    optimizer=OptimizerSpec(kind=OptimizerKind.SGD),
    dense=(DenseSpec(path="count", shape=(1,)),),
    tables=(TableSpec(name="ids", dim=DIM),),
)


@dataclass(frozen=True)
class Lookups:
    ids: tuple[Any, ...]
    positions: tuple[Any, ...]


@dataclass(frozen=True)
class Outcome:
    loss: float
    dense: np.ndarray
    gradients: tuple[Any, ...]
    learning_rate: float = 1.0
    nonfinite: str = ""
    squares: tuple[Any, ...] = ()
    dense_squares: None = None


class MemoryParameters:
    """SGD in NumPy with snapshots, and faults on demand.

    A record's row counts how often it was trained.
    """

    def __init__(self) -> None:
        self.dense: np.ndarray | None = None
        self.table: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(DIM, np.float32))
        self.version = 0
        self.updates: list[Update] = []
        self.pulls: list[tuple[int, bool, SnapshotId | None]] = []
        self.snapshots: dict[SnapshotId, tuple[np.ndarray, dict[int, np.ndarray], int]] = {}
        self.before_push: Callable[[Update], None] = lambda update: None
        self.after_push: Callable[[Update], None] = lambda update: None
        self.lock = threading.Lock()

    def initialise(self, spec: ParametersSpec, dense: np.ndarray, *, timeout_s: float) -> bool:
        first = self.dense is None
        if first:
            self.dense = dense.copy()
        return first

    def freeze(self, snapshot: SnapshotId) -> None:
        with self.lock:
            self.snapshots[snapshot] = (present(self.dense).copy(), dict(self.table), self.version)

    def pull(
        self,
        ids: Sequence[np.ndarray],
        *,
        dense: bool = True,
        snapshot: SnapshotId | None = None,
        exact: bool = False,
        timeout_s: float,
    ) -> Pulled:
        with self.lock:
            self.pulls.append((self.version, dense, snapshot))
            vector, table, version = (
                (self.dense, self.table, self.version)
                if snapshot is None
                else self.snapshots[snapshot]
            )
            zero = np.zeros(DIM, np.float32)
            rows = np.array([table.get(int(i), zero) for i in ids[0]], np.float32).reshape(-1, DIM)
            return Pulled((version,), present(vector).copy() if dense else None, (rows,))

    def push(self, update: Update, *, timeout_s: float) -> Pushed:
        self.before_push(update)
        with self.lock:
            if not self.updates or update.sequence > self.updates[-1].sequence:
                assert update.sequence == (self.updates[-1].sequence if self.updates else 0) + 1
                self.updates.append(update)
                self.dense = present(self.dense) - update.learning_rate * present(update.dense)
                for i, gradient in zip(update.ids[0], update.gradients[0], strict=True):
                    self.table[int(i)] = self.table[int(i)] - update.learning_rate * gradient
                self.version += 1
        self.after_push(update)
        return Pushed((self.version,), (self.version - 1 - update.versions[0],))

    def meet(self, *, timeout_s: float) -> Mapping[str, int]:
        return {}

    @property
    def servers(self) -> int:
        return 1

    def rows(
        self, table: int, server: int, begin: int, *, snapshot: SnapshotId | None, timeout_s: float
    ) -> RowsPage:
        ids = list(self.table)[begin:]
        weights = np.array([self.table[i] for i in ids], np.float32)
        return RowsPage(False, len(self.table), np.array(ids, np.int64), weights)

    def move(
        self, addresses: Sequence[str], first: int = 0, tokens: Sequence[str] = ()
    ) -> None: ...

    def close(self) -> None: ...


class CountingStep:
    """Adds 1 to the dense value for each record of a batch, and 1 to each record's row."""

    def __init__(self) -> None:
        self.on_train: Callable[[np.ndarray], None] = lambda features: None
        self.nonfinite: Callable[[np.ndarray], str] = lambda features: ""
        self.evaluated = 0.0

    def prepare(self, features: np.ndarray, *, training: bool = False) -> Lookups:
        return Lookups((np.unique(features).astype(np.int64),), ())

    def train(
        self, features: np.ndarray, labels: None, lookups: Lookups, pulled: Pulled
    ) -> Outcome:
        self.on_train(features)
        gradient = np.full((len(lookups.ids[0]), DIM), -1.0, np.float32)
        return Outcome(
            float(len(features)),
            np.array([-len(features)], np.float32),
            (gradient,),
            nonfinite=self.nonfinite(features),
        )

    def evaluate(
        self, features: np.ndarray, labels: None, lookups: Lookups, pulled: Pulled
    ) -> None:
        self.evaluated += float(present(pulled.dense)[0]) + float(pulled.rows[0].sum())

    def metric_states(self) -> dict[str, tuple[tuple[float, ...], ...]]:
        return {"sum": ((self.evaluated,),)}

    def reset_metrics(self) -> None:
        self.evaluated = 0.0

    def metric_values(self, states: dict[str, Any]) -> dict[str, float]:
        return {name: state[0][0] for name, state in states.items()}


class Numbers:
    """A reader whose record n is the number n."""

    metadata = Metadata()

    def __init__(self, bad_every: int = 0) -> None:
        self.bad_every = bad_every

    def sources(self) -> tuple[Source, ...]:
        return (Source("numbers", 10**6),)

    def read(self, shard: Shard) -> Iterator[Block]:
        numbers = np.arange(shard.begin, shard.end)
        good = numbers[numbers % self.bad_every != 0] if self.bad_every else numbers
        yield Block(
            good,
            len(numbers),
            len(numbers) - len(good),
            ("a bad one",) if len(good) < len(numbers) else (),
        )

    def close(self) -> None: ...


class ScriptedMaster:
    """Grants leases in order, and says that there are no more when all are done."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        self.todo = list(leases)
        self.open = len(self.todo)
        self.reports: list[Report] = []
        self.carried = 0
        """Requests that came with a report."""
        self.changed = threading.Condition()

    def request_lease(self, wait_s: float) -> Finished | Wait | Lease:
        with self.changed:
            if self.changed.wait_for(lambda: self.todo or self.open == 0, min(wait_s, 0.2)):
                return self.todo.pop(0) if self.todo else Finished()
            return Wait("nothing yet")

    def report(self, report: Report) -> None:
        with self.changed:
            self.reports.append(report)
            self.open -= sum(progress.done for progress in report.progress) + len(report.summaries)
            self.changed.notify_all()

    def report_and_request(self, report: Report) -> tuple[None, Finished | Wait | Lease]:
        self.report(report)
        self.carried += 1
        return None, self.request_lease(0.0)

    def progress(self) -> list[Progress]:
        return [progress for report in self.reports for progress in report.progress]


class TrainingOnly:
    """Training without callbacks."""

    def __init__(self, trainer: PsTrainer) -> None:
        self.trainer = trainer
        self.losses: list[float] = []

    def run(self, loaded: Loaded) -> None:
        loss = self.trainer.train(loaded)
        if loss is not None:
            self.losses.append(loss)

    def leave(self) -> None: ...


class NoCallbacks:
    def recall(self, rounds: tuple[Any, ...]) -> None:
        pass

    def tested(self, lease: Lease, values: dict[str, float]) -> bool:
        return False


@dataclass
class Rig:
    """A worker with all its threads, but for the process around it."""

    master: ScriptedMaster
    parameters: MemoryParameters = field(default_factory=MemoryParameters)
    step: CountingStep = field(default_factory=CountingStep)
    reader: Numbers = field(default_factory=Numbers)
    bounds: Bounds = field(default_factory=Bounds)
    minibatch_size: int = 4
    feed: Callable[..., Any] = field(default=lambda window: (window, None))
    give_up_s: float = 5.0
    steps_clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        clock = SystemClock()
        self.shutdown = Shutdown()
        self.outbox, self.gauges = Outbox(), Gauges(clock)
        keeper = LeaseKeeper(self.master, self.outbox, self.shutdown)
        server_retry = ServerRetry(self.shutdown, self.gauges, clock, give_up_s=self.give_up_s)
        self.context = WorkerContext(
            keeper, self.outbox, self.gauges, server_retry, HangWatch(clock), self.shutdown
        )
        self.trainer = PsTrainer(
            self.step,  # type: ignore[arg-type]
            self.parameters,
            self.context,
            self.bounds,
            self.steps_clock,
        )
        sources = Sources(lambda task: self.reader, lambda task: self.feed, self.minibatch_size)
        reading = ShardReading(sources, self.context)
        feeding = Feeding(reading, sources, self.context)
        self.loading = Prefetch(feeding, self.trainer, self.context)
        self.training = TrainingOnly(self.trainer)
        self.tasks: dict[Task, Any] = {
            Task.TRAINING: self.training,
            Task.EVALUATION: EvaluationTask(self.step, self.context),  # type: ignore[arg-type]
            Task.SUMMARY: SummaryTask(self.step, NoCallbacks(), self.outbox),  # type: ignore[arg-type]
        }
        self.loop = Loop(self.loading, self.trainer, self.tasks, self.context)
        self.reporter = Reporter(self.outbox, self.gauges, self.master, 0.1, self.shutdown)
        self.stages = (keeper, reading, feeding, self.loading)

    def run(self) -> None:
        """Run to the end, with what the process does about it."""
        self.reporter.start()
        self.trainer.start(SPEC, np.zeros(1, np.float32))
        for stage in self.stages:
            stage.start()
        self.loop.run()
        if isinstance(self.shutdown.reason, Draining):
            self.loop.leave()
            assert self.trainer.settle(LIMIT_S)
            self.outbox.give_back(self.outbox.held())
        elif self.shutdown.reason is None:
            assert self.trainer.settle(LIMIT_S)
        assert self.reporter.flush(LIMIT_S)
        self.shutdown.end(Draining("the test is over"))

    def trained(self) -> dict[int, int]:
        """How often each record is in the model."""
        return {number: round(float(row[0])) for number, row in self.parameters.table.items()}


def training(records: int, shard: int = 0, **fields: Any) -> Lease:
    return Lease(
        Task.TRAINING,
        Shard(ShardId(shard), "numbers", shard * 1000, shard * 1000 + records),
        1,
        **fields,
    )


def numbers_of(lease: Lease) -> range:
    return range(present(lease.shard).begin, present(lease.shard).end)


def once(*leases: Lease) -> dict[int, int]:
    return {number: 1 for lease in leases for number in numbers_of(lease)}
