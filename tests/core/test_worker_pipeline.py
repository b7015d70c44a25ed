"""The stages of a worker on an in-memory model: staleness, exactly-once, retries, revocation,
drain.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from elasticdl.clock import Clock, ManualClock, SystemClock
from elasticdl.data.base import Block, Metadata
from elasticdl.embedding.spec import (
    DenseSpec,
    OptimizerKind,
    OptimizerSpec,
    ParametersSpec,
    TableSpec,
)
from elasticdl.errors import Refused, TransientError, UserError
from elasticdl.rpc.conversation import Finished, Progress, Report, Wait
from elasticdl.rpc.parameters import Pulled, Pushed, Update
from elasticdl.shard import Lease, Shard, ShardId, SnapshotId, Source, Task
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.leases import LeaseKeeper
from elasticdl.worker.pipeline.loop import Loop
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.prefetch import Prefetch
from elasticdl.worker.pipeline.reading import Feeding, ShardReading, Sources
from elasticdl.worker.pipeline.record_order import LoadedShard, order_of
from elasticdl.worker.pipeline.reporter import Reporter
from elasticdl.worker.pipeline.retry import ServerRetry
from elasticdl.worker.pipeline.trainer import Loaded
from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.hang_watch import HangWatch
from elasticdl.worker.process.shutdown import Done, Draining, Failed, NonFinite, Shutdown
from elasticdl.worker.ps.auto_staleness import GROW, WINDOW
from elasticdl.worker.ps.revival import Revival
from elasticdl.worker.ps.trainer import Bounds, PsTrainer
from elasticdl.worker.tasks.evaluation import EvaluationTask, SummaryTask
from tests.present import present

pytestmark = pytest.mark.core

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

    def rows(
        self, table: int, *, snapshot: SnapshotId | None, timeout_s: float
    ) -> tuple[np.ndarray, np.ndarray]:
        ids = sorted(self.table)
        return np.array(ids, np.int64), np.array([self.table[i] for i in ids], np.float32)

    def move(self, addresses: Sequence[str]) -> None: ...

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
        self.changed = threading.Condition()
        self.hold = 0

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
        """To the end, with what the process does about it."""
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


def test_all_records_of_all_leases_are_trained_once_and_reported() -> None:
    leases = [training(10, 0), training(7, 1, order_seed=5), training(1, 2)]
    rig = Rig(ScriptedMaster(leases))
    rig.run()
    assert rig.trained() == once(*leases)
    done = [progress for progress in rig.master.progress() if progress.done]
    assert [(one.applied.shard, one.applied.offset) for one in done] == [(0, 10), (1, 7), (2, 1)]
    assert done[-1].version == len(rig.parameters.updates) == 6
    assert sum(rig.training.losses) == 18


def test_a_lease_goes_on_at_its_offset() -> None:
    whole = np.random.Generator(np.random.PCG64(9)).permutation(12)
    rig = Rig(ScriptedMaster([training(12, order_seed=9, offset=5)]))
    rig.run()
    assert rig.trained() == {int(number): 1 for number in whole[5:]}


def test_the_master_knows_of_bad_records_before_a_server_has_their_batch() -> None:
    lease, reader = training(40, order_seed=9), Numbers(bad_every=3)
    rig = Rig(ScriptedMaster([lease]), reader=reader)
    loaded = LoadedShard.read(present(lease.shard), reader.read(present(lease.shard)))
    known: list[bool] = []

    def look(update: Update) -> None:
        bad = loaded.bad_among(order_of(40, 9), 0, update.applied.offset)
        known.append(max((one.bad_records for one in rig.master.progress()), default=0) >= bad)

    rig.parameters.before_push = look
    rig.run()
    assert known and all(known)


def test_bad_records_are_left_out_and_counted() -> None:
    rig = Rig(ScriptedMaster([training(10)]), reader=Numbers(bad_every=3))
    rig.run()
    assert rig.trained() == {number: 1 for number in range(10) if number % 3}
    # Each report of a lease has all bad records of it so far.
    assert rig.master.progress()[-1].bad_records == 4
    assert rig.master.progress()[-1].applied.offset == 10


@pytest.mark.parametrize("kept", [(), (5,), (0,), (11,)])
def test_windows_that_feed_empties_count_as_read(kept: tuple[int]) -> None:
    rig = Rig(ScriptedMaster([training(12), training(3, 1)]), minibatch_size=2)
    rig.feed = lambda window: (window, None) if any(number in window for number in kept) else None
    rig.run()
    assert set(rig.trained()) >= set(kept)
    assert len(rig.parameters.updates) == len(kept)
    assert sum(progress.done for progress in rig.master.progress()) == 2


def test_a_lease_with_nothing_left_is_done_at_once() -> None:
    rig = Rig(ScriptedMaster([training(5, offset=5)]))
    rig.run()
    assert [(one.done, one.applied.offset) for one in rig.master.progress()] == [(True, 5)]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(0, 39),
    st.integers(1, 12),
    st.none() | st.integers(0, 2**63),
    st.integers(0, 3),
    st.integers(1, 4),
)
def test_whatever_the_boundaries_all_of_a_lease_is_told_and_it_is_done_once(
    records: int, begun: int, size: int, seed: int | None, bad_every: int, feed_every: int
) -> None:
    """Windows whose records are all bad or left out by `feed`, one record, an end inside a batch;
    another lease comes after.
    """
    leases = [training(records, offset=begun % records, order_seed=seed), training(3, 1)]
    reader = Numbers(bad_every)
    rig = Rig(ScriptedMaster(leases), reader=reader, minibatch_size=size)
    rig.feed = lambda window: (
        (window, None) if any(number % feed_every == 0 for number in window) else None
    )
    rig.run()
    for lease in leases:
        told = [
            one for one in rig.master.progress() if one.applied.shard == present(lease.shard).id
        ]
        offsets = [one.applied.offset for one in told]
        assert offsets == sorted(offsets) and offsets[0] >= lease.offset
        assert [one.done for one in told] == [False] * (len(told) - 1) + [True]
        assert offsets[-1] == present(lease.shard).records
        order = order_of(present(lease.shard).records, lease.order_seed)
        loaded = LoadedShard.read(present(lease.shard), reader.read(present(lease.shard)))
        assert told[-1].bad_records == loaded.bad_among(
            order, lease.offset, present(lease.shard).records
        )
    assert not [
        name
        for report in rig.master.reports
        for name in report.gauges
        if name.startswith("dropped")
    ]


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_a_pull_misses_at_most_the_allowed_number_of_own_updates(staleness: int) -> None:
    rig = Rig(
        ScriptedMaster([training(40)]), bounds=Bounds(max_staleness=staleness), minibatch_size=2
    )
    rig.run()
    missing = [number - update.versions[0] for number, update in enumerate(rig.parameters.updates)]
    assert max(missing) <= staleness
    if staleness == 0:
        assert missing == [0] * 20


def test_an_adaptive_worker_overlaps_steps_only_when_pull_and_push_are_slow() -> None:
    rig = Rig(ScriptedMaster([training(400)]), bounds=Bounds(1, adaptive=True), minibatch_size=2)
    slow = 100
    rig.step.on_train = lambda features: time.sleep(0.002)

    def push(update: Update) -> None:
        if update.sequence > slow:
            time.sleep(0.004)

    rig.parameters.before_push = push
    rig.run()
    missing = [number - update.versions[0] for number, update in enumerate(rig.parameters.updates)]
    assert max(missing[slow + 3 * WINDOW :]) == 1 and max(missing) == 1
    assert rig.gauges._levels["staleness_limit"] == 1
    assert rig.gauges._levels["exchange_share"] > GROW


@pytest.mark.parametrize("staleness", [1, 2])
def test_pull_step_and_push_overlap_as_far_as_staleness_allows(staleness: int) -> None:
    """The push of the first batch is held until the pull that may go ahead of it has come."""
    rig = Rig(
        ScriptedMaster([training(8)]), bounds=Bounds(max_staleness=staleness), minibatch_size=2
    )
    overlapped = threading.Event()

    def hold(update: Update) -> None:
        if update.sequence == 1:
            deadline = time.monotonic() + LIMIT_S
            while len(rig.parameters.pulls) < 1 + staleness and time.monotonic() < deadline:
                overlapped.wait(0.01)
            if len(rig.parameters.pulls) >= 1 + staleness:
                overlapped.set()

    rig.parameters.before_push = hold
    rig.run()
    assert overlapped.is_set()


def test_a_server_that_is_away_is_waited_for_and_the_push_is_applied_once() -> None:
    rig = Rig(ScriptedMaster([training(8)]))
    failures = iter([True, True, False])
    waits: list[float] = []

    def fail(update: Update) -> None:
        waits.append(rig.gauges._levels.get("waiting_for_servers_s", 0))
        if update.sequence == 2 and next(failures):
            raise TransientError("server 0 is away", retry_after_s=0.01)

    rig.parameters.after_push = fail  # applied, but the answer is lost
    rig.run()
    assert rig.trained() == once(training(8))
    assert [update.sequence for update in rig.parameters.updates] == [1, 2]
    assert max(waits) > 0
    assert "waiting_for_servers_s" not in rig.gauges._levels


def test_a_server_that_stays_away_ends_the_worker_with_its_last_words() -> None:
    rig = Rig(ScriptedMaster([training(8)]), give_up_s=0.05)

    def fail(update: Update) -> None:
        raise TransientError("server 0 is away", retry_after_s=0.01)

    rig.parameters.before_push = fail
    rig.run()
    assert isinstance(rig.shutdown.reason, Failed)
    assert "gave up" in str(rig.shutdown.reason.error) and "server 0 is away" in str(
        rig.shutdown.reason.error
    )


def test_a_fenced_worker_ends_as_refused() -> None:
    rig = Rig(ScriptedMaster([training(8)]))

    def fail(update: Update) -> None:
        raise Refused("fenced")

    rig.parameters.before_push = fail
    rig.run()
    assert isinstance(rig.shutdown.reason, Failed) and isinstance(
        rig.shutdown.reason.error, Refused
    )
    assert rig.trained() == {}


def test_a_nonfinite_step_is_tried_again_with_fresh_parameters_and_not_pushed() -> None:
    rig = Rig(ScriptedMaster([training(12)]))
    bad = iter(["a layer", "a layer", ""])
    rig.step.nonfinite = lambda features: next(bad) if 4 in features else ""
    rig.run()
    assert rig.trained() == once(training(12))
    # The successful try of the second batch saw the first one's update.
    assert rig.parameters.updates[1].versions == (1,)


def test_steps_that_stay_nonfinite_end_the_worker_naming_layer_and_records() -> None:
    rig = Rig(ScriptedMaster([training(12)]), bounds=Bounds(max_nonfinite_steps=2))
    tries: list[int] = []

    def nonfinite(features: np.ndarray) -> str:
        if 4 in features:
            tries.append(1)
            return "dense_1/kernel"
        return ""

    rig.step.nonfinite = nonfinite
    rig.run()
    assert isinstance(rig.shutdown.reason, Failed)
    error = rig.shutdown.reason.error
    assert (
        isinstance(error, NonFinite)
        and "dense_1/kernel" in error.message
        and "4:8" in error.message
    )
    assert len(tries) == 2
    assert set(rig.trained()) <= {0, 1, 2, 3}


def test_an_error_of_user_code_names_the_lease_that_it_was_at() -> None:
    lease = training(8, 3)
    rig = Rig(ScriptedMaster([training(8, 2), lease]))

    def explode(window: NDArray[Any]) -> tuple[NDArray[Any], None] | None:
        if 3004 in window:
            raise UserError("feed raised ValueError")
        return window, None

    rig.feed = explode
    rig.run()
    assert isinstance(rig.shutdown.reason, Failed) and rig.shutdown.reason.lease == lease


def test_sys_exit_in_user_code_ends_the_worker_visibly() -> None:
    rig = Rig(ScriptedMaster([training(8)]))

    def leave(features: np.ndarray) -> None:
        raise SystemExit(0)

    rig.step.on_train = leave
    rig.run()
    assert isinstance(rig.shutdown.reason, Failed)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 6),
    st.none() | st.integers(0, 2**63),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=4),
)
def test_over_any_kills_each_record_is_in_the_model_once(
    records: int, size: int, seed: int | None, staleness: int, kills: list[tuple[int, bool]]
) -> None:
    """A kill is at a push, before or after it was applied; the next attempt begins where the
    servers say.
    """
    shared = MemoryParameters()
    lease = training(records, order_seed=seed)
    for at_push, applied in [*kills, (0, False)]:
        rig = Rig(
            ScriptedMaster([lease]),
            parameters=shared,
            minibatch_size=size,
            bounds=Bounds(max_staleness=staleness),
        )
        begun = len(shared.updates)
        shared.updates, earlier = [], shared.updates

        def kill(update: Update, at_push: int = at_push) -> None:
            if update.sequence == at_push:
                raise Refused("killed")

        shared.before_push = kill if not applied else lambda update: None
        shared.after_push = kill if applied else lambda update: None
        rig.run()
        offset = shared.updates[-1].applied.offset if shared.updates else lease.offset
        shared.updates = earlier + [
            replace(one, sequence=begun + one.sequence) for one in shared.updates
        ]
        lease = replace(lease, attempt=lease.attempt + 1, offset=offset)
    assert lease.offset == records
    assert rig.trained() == once(lease)


def test_a_step_that_took_unusually_long_is_computed_again_on_newer_parameters() -> None:
    """The first one traces the model, while others train on: its gradient would come hundreds of
    versions late.
    """
    clock = ManualClock()
    rig = Rig(ScriptedMaster([training(40)]), steps_clock=clock)
    computed: list[int] = []

    def train(features: np.ndarray) -> None:
        computed.append(int(features[0]))
        if computed[-1] in (0, 12) and computed.count(computed[-1]) == 1:
            with rig.parameters.lock:
                rig.parameters.version += 100
            clock.advance(1.5)

    rig.step.on_train = train
    rig.run()
    assert rig.trained() == once(training(40))
    assert (computed.count(0), computed.count(12), computed.count(24)) == (2, 2, 1)
    # The batch after a late one may have been asked for before or after the pause: what counts is
    # what it was pushed with.
    assert all(
        update.versions[0] >= 100 * (1 + (update.applied.offset > 12))
        for update in rig.parameters.updates
    )


def test_steps_that_are_always_long_are_computed_once() -> None:
    clock = ManualClock()
    rig = Rig(ScriptedMaster([training(40)]), steps_clock=clock)
    computed: list[int] = []

    def train(features: np.ndarray) -> None:
        computed.append(int(features[0]))
        clock.advance(3.0)

    rig.step.on_train = train
    rig.run()
    assert rig.trained() == once(training(40))
    assert computed == [0, *range(0, 40, 4)]


def test_a_drained_worker_finishes_its_step_and_gives_the_rest_back() -> None:
    leases = [training(40, 0), training(40, 1)]
    rig = Rig(ScriptedMaster(leases))

    def drain(features: np.ndarray) -> None:
        if 8 in features:
            rig.shutdown.end(Draining("SIGTERM"))

    rig.step.on_train = drain
    rig.run()
    trained = rig.trained()
    assert set(trained.values()) == {1} and 8 in trained
    returned = {
        one.applied.shard: one.applied.offset for one in rig.master.progress() if one.returned
    }
    assert returned[ShardId(0)] == len(trained) == 12
    assert returned.get(ShardId(1), 0) == 0


def test_a_revoked_lease_is_dropped_and_the_next_one_is_trained() -> None:
    rig = Rig(ScriptedMaster([training(400, 0)]), minibatch_size=1)
    rig.master.open = 2
    revoked = threading.Event()

    def revoke(features: np.ndarray) -> None:
        if 20 in features:
            # Else the push of record 19 might still wait, and would be dropped with the lease.
            assert rig.trainer.settle(LIMIT_S)
            rig.context.keeper.revoke(1)
            with rig.master.changed:
                rig.master.open -= 1
                rig.master.todo.append(training(3, 1, revocation=1))
                rig.master.changed.notify_all()
            revoked.set()

    rig.step.on_train = revoke
    rig.run()
    assert revoked.is_set()
    trained = rig.trained()
    assert {number for number in trained if number < 1000} == set(range(20))
    assert {number for number in trained if number >= 1000} == {1000, 1001, 1002}
    # What was pushed before is told, and nothing of it is told after the new lease was begun.
    told = [one.applied for one in rig.master.progress()]
    assert max(one.offset for one in told if one.shard == 0) == 20
    assert not any(one.returned for one in rig.master.progress())


def test_a_lease_that_was_granted_after_a_revocation_but_came_before_it_is_worked_on() -> None:
    """The two come to the worker by two ways.

    The master counts on the new lease: if it were dropped, all would wait for it.
    """
    rig = Rig(ScriptedMaster([training(400, 0), training(3, 1, revocation=1)]), minibatch_size=1)

    def revoke(features: np.ndarray) -> None:
        if 20 in features:
            rig.context.keeper.revoke(1)
            with rig.master.changed:
                rig.master.open -= 1
                rig.master.changed.notify_all()

    rig.step.on_train = revoke
    rig.run()
    assert {number for number in rig.trained() if number >= 1000} == {1000, 1001, 1002}


def test_a_lease_that_was_granted_before_a_revocation_but_comes_after_it_is_void() -> None:
    """The master has given it to another worker: trained here, it would be trained twice."""
    rig = Rig(ScriptedMaster([training(3, 0), training(3, 1, revocation=1)]))
    rig.master.open = 1
    rig.context.keeper.revoke(1)
    rig.run()
    assert rig.trained() == once(training(3, 1))
    assert {one.applied.shard for one in rig.master.progress()} == {1}


def test_evaluation_reads_its_snapshot_and_gets_dense_weights_once() -> None:
    rig = Rig(ScriptedMaster([]))
    view = SnapshotId(7)
    evaluation = Lease(
        Task.EVALUATION, Shard(ShardId(50), "numbers", 0, 8), 1, round=3, snapshot=view, version=2
    )
    second = replace(evaluation, shard=Shard(ShardId(51), "numbers", 8, 12))
    summary = Lease(
        Task.SUMMARY,
        None,
        1,
        round=3,
        snapshot=view,
        payload='{"round": 3, "metrics": {"sum": [[4.5]]}}',
    )
    rig.master.todo = [training(8), evaluation, second, summary, training(8, 1)]
    rig.master.open = 5

    def freeze(update: Update) -> None:
        if update.sequence == 1:
            rig.parameters.freeze(view)

    rig.parameters.dense = np.zeros(1, np.float32)
    rig.parameters.after_push = freeze
    rig.parameters.snapshots[view] = (
        np.array([100.0], np.float32),
        {0: np.array([1.0, 1.0], np.float32)},
        1,
    )
    rig.parameters.after_push = lambda update: None
    rig.run()
    assert rig.trained() == once(training(8), training(8, 1))
    states = {
        one.applied.shard: one.metrics["sum"][0][0] for one in rig.master.progress() if one.metrics
    }
    assert states == {50: 100.0 + 2.0 + 100.0, 51: 100.0}
    assert [dense for _, dense, snapshot in rig.parameters.pulls if snapshot == view] == [
        True,
        False,
        False,
    ]
    (told,) = [one for report in rig.master.reports for one in report.summaries]
    assert (told.round, told.values) == (3, {"sum": 4.5})


def test_a_drained_evaluation_lease_goes_back_from_its_beginning() -> None:
    lease = Lease(Task.EVALUATION, Shard(ShardId(50), "numbers", 0, 400), 1, round=0)
    rig = Rig(ScriptedMaster([lease]))
    rig.step.evaluate = lambda *arguments: rig.shutdown.end(Draining("SIGTERM"))  # type: ignore[assignment, method-assign]
    rig.run()
    (returned,) = [one for one in rig.master.progress() if one.returned]
    assert returned.applied.offset == 0 and not returned.metrics


def test_the_worker_asks_for_the_next_lease_before_the_current_one_is_done() -> None:
    rig = Rig(ScriptedMaster([training(400, 0), training(4, 1), training(4, 2)]), minibatch_size=1)
    seen: list[int] = []
    rig.step.on_train = lambda features: seen.append(len(rig.master.todo))
    rig.run()
    assert seen[100] == 1, "it holds the current lease and the next one, and no more"


def test_a_lost_view_does_not_hold_the_worker_up_once_its_leases_are_void() -> None:
    lease = Lease(
        Task.EVALUATION, Shard(ShardId(50), "numbers", 0, 8), 1, round=0, snapshot=SnapshotId(1)
    )
    rig = Rig(ScriptedMaster([lease]))
    rig.master.open = 2
    pull = rig.parameters.pull

    def lost(
        ids: tuple[NDArray[Any]],
        *,
        dense: bool = True,
        snapshot: int | None = None,
        timeout_s: float,
    ) -> Pulled:
        if snapshot is None:
            return pull(ids, dense=dense, timeout_s=timeout_s)
        if rig.context.keeper.revocation == 0:
            rig.context.keeper.revoke(1)
            with rig.master.changed:
                rig.master.open -= 1
                rig.master.todo.append(training(4, revocation=1))
        raise TransientError(
            "there is no snapshot 1 here: it was dropped or lost", retry_after_s=0.01
        )

    rig.parameters.pull = lost  # type: ignore[assignment, method-assign]
    rig.run()
    assert rig.trained() == once(training(4))
    assert "waiting_for_servers_s" not in rig.gauges._levels


def test_callbacks_of_a_round_whose_view_is_lost_do_not_hold_the_worker_up() -> None:
    """They look at the weights of the round's version.

    The round is begun anew, and other work goes on meanwhile.
    """
    summary = Lease(
        Task.SUMMARY,
        None,
        1,
        round=3,
        snapshot=SnapshotId(1),
        payload='{"round": 3, "metrics": {}}',
    )
    rig = Rig(ScriptedMaster([summary]))
    rig.master.open = 2
    pull = rig.parameters.pull

    def lost(
        ids: tuple[NDArray[Any]],
        *,
        dense: bool = True,
        snapshot: int | None = None,
        timeout_s: float,
    ) -> Pulled:
        if snapshot is None or rig.context.keeper.revocation:
            return pull(ids, dense=dense, timeout_s=timeout_s)
        rig.context.keeper.revoke(1)
        with rig.master.changed:
            rig.master.open -= 1
            rig.master.todo.append(training(4, revocation=1))
        raise TransientError(
            "there is no snapshot 1 here: it was dropped or lost", retry_after_s=0.01
        )

    class LooksAtWeights:
        def recall(self, rounds: tuple[Any, ...]) -> None:
            pass

        def tested(self, lease: Lease, values: dict[str, Any]) -> bool:
            rig.trainer.dense_of(lease)
            return False

    rig.tasks[Task.SUMMARY] = SummaryTask(rig.step, LooksAtWeights(), rig.outbox)  # type: ignore[arg-type]
    rig.parameters.pull = lost  # type: ignore[assignment, method-assign]
    rig.run()
    assert rig.trained() == once(training(4))
    assert not any(report.summaries for report in rig.master.reports)


class Moving(MemoryParameters):
    """Servers that can be lost: they come back empty, and take what was pulled last when they are
    asked for anything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.newest: np.ndarray | None = None
        self.revived = threading.Event()

    def lose(self) -> None:
        with self.lock:
            self.dense = None

    def pull(
        self,
        ids: Sequence[np.ndarray],
        *,
        dense: bool = True,
        snapshot: SnapshotId | None = None,
        timeout_s: float,
    ) -> Pulled:
        if self.dense is None:
            if self.newest is None:
                raise TransientError("there is nothing to give")
            self.dense = self.newest.copy()
            self.revived.set()
        pulled = super().pull(ids, dense=dense, snapshot=snapshot, timeout_s=timeout_s)
        self.newest = pulled.dense if dense else self.newest
        return pulled


def test_a_worker_without_work_gives_a_server_that_moved_what_it_pulled_last() -> None:
    rig = Rig(ScriptedMaster([]), parameters=Moving())
    parameters = rig.parameters
    assert isinstance(parameters, Moving)
    parameters.dense = np.array([7.0], np.float32)
    assert not rig.trainer.start(SPEC, np.zeros(1, np.float32)), "it has trained values"
    revival = Revival(rig.shutdown)
    revival.start(rig.trainer.revive)
    try:
        parameters.lose()
        revival.moved(["", "b"])
        revival.moved(["a", "b"])
        assert parameters.revived.wait(LIMIT_S)
        assert parameters.dense is not None and parameters.dense[0] == 7.0
    finally:
        rig.shutdown.end(Done())


def test_initial_values_count_as_given_though_the_server_was_lost_just_then() -> None:
    rig = Rig(ScriptedMaster([]), parameters=Moving())
    parameters, pull = rig.parameters, rig.parameters.pull
    assert isinstance(parameters, Moving)
    tries = []

    def lost_once(*args: tuple[NDArray[Any]], **named: Any) -> Pulled:
        tries.append(1)
        if len(tries) == 1:
            raise TransientError("it is gone", retry_after_s=0.01)
        return pull(*args, **named)

    parameters.pull = lost_once  # type: ignore[assignment, method-assign]
    assert rig.trainer.start(SPEC, np.zeros(1, np.float32))
    rig.shutdown.end(Done())
