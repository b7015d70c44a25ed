"""A worker of a simulated job: the real state machines of `elasticdl.worker`, put together as
`lifecycle.py` does it.

What is replaced: the model and its step, the ring's operations, the parameter servers' connections,
the disk.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Protocol, final

import numpy as np

from elasticdl.cluster.base import ProcessName
from elasticdl.cluster.role_environment import grace_s
from elasticdl.errors import ElasticDLError
from elasticdl.formatting import GIVING_PART
from elasticdl.shard import Lease, Task, WorkItem
from elasticdl.worker.lifecycle import Link, ProcessContext, wind_down
from elasticdl.worker.pipeline.first_batch import first_batch
from elasticdl.worker.pipeline.loop import Loop, TaskRunner
from elasticdl.worker.pipeline.prefetch import Prefetch
from elasticdl.worker.pipeline.reading import Feeding, ShardReading
from elasticdl.worker.pipeline.trainer import Loaded
from elasticdl.worker.process.hang_watch import HangWatch
from elasticdl.worker.process.os_process import end_by_force
from elasticdl.worker.process.shutdown import Shutdown, exit_code
from elasticdl.worker.process.thread_queue import Ended
from elasticdl.worker.ps.trainer import Bounds, PsTrainer
from elasticdl.worker.ring.barriers import BarrierTasks, Copies, RingListener
from elasticdl.worker.ring.reading import RingReading
from elasticdl.worker.ring.trainer import RingTrainer
from elasticdl.worker.ring.trainer_deps import RingDeps
from elasticdl.worker.tasks.evaluation import EvaluationTask, SummaryTask
from elasticdl.worker.tasks.export import ExportTask
from elasticdl.worker.tasks.training import TrainingTask
from tests.simulation import data
from tests.simulation.cluster import Running
from tests.simulation.network import Client
from tests.simulation.rings import Exchange, Ring, Step, Weights
from tests.simulation.threads import Clock

_NO_PARAMETERS = SimpleNamespace(tables=())


class World(Protocol):
    """What a worker sees of the simulated world."""

    # The world is one object; see world.py.
    scheduler: Any
    plan: Any
    hub: Any
    disk: Any
    truth: Any
    workers: dict[ProcessName, SimulatedWorker]

    def client(self, running: Running) -> Client: ...

    def parameters(self, running: Running) -> Any: ...

    def may_hang(self) -> None: ...


class Works(Protocol):
    """`lifecycle.wind_down` wants this of a worker."""

    @property
    def callbacks(self) -> Any: ...

    def run(self) -> None: ...

    def settle(self, timeout_s: float) -> bool: ...

    def leave(self) -> None: ...


@dataclass(eq=False)
class SimulatedWorker:
    """One worker process, for those who check."""

    name: ProcessName
    running: Running
    ring: Ring | None = None
    exchange: Exchange | None = None
    trainer: Any = None
    floor: tuple[int, int] = (0, 0)
    """See `Truth.before_report`."""
    entered: int = 0
    """The generation that it is in, as it told the master."""

    def is_inside(self, generation: int) -> bool:
        """Whether it is in this generation of the ring just now."""
        return (
            self.ring is not None
            and self.ring.generation == generation
            and not self.running.process.dead
        )

    @property
    def records(self) -> int:
        """In its weights."""
        return self.exchange.weights.records if self.exchange is not None else 0


def main(world: World, running: Running) -> int:
    """As `worker.main`: from the first word to the master to the exit code."""
    shutdown = Shutdown()

    def drain() -> None:
        shutdown.drain("SIGTERM", grace_s())

    def leave(shutdown: Shutdown) -> None:
        running.exit_code = int(exit_code(shutdown.reason))
        running.process.kill()

    running.drain = drain
    end_by_force(shutdown, leave)
    try:
        _run(world, running, shutdown)
    except ElasticDLError as error:
        shutdown.fail(error)
    return int(exit_code(shutdown.reason))


def _run(world: World, running: Running, shutdown: Shutdown) -> None:
    """As `lifecycle.run`."""
    scheduler, draw = world.scheduler, world.scheduler.random.random
    scheduler.sleep(world.plan.start_s * draw())
    client = world.client(running)
    worker = world.workers[running.name] = SimulatedWorker(running.name, running)
    link = _link(world, worker, client, shutdown)
    works: Works | None = None
    try:
        link.context.starting("build")
        scheduler.sleep(world.plan.build_s * draw())
        make = _on_ring if world.plan.on_ring else _with_servers
        works = make(world, worker, client, link)
        works.run()
    except Ended:
        pass
    except Exception as error:  # noqa: BLE001 - as `lifecycle.run`
        shutdown.fail(error)
    wind_down(works, link)  # type: ignore[arg-type]
    if not running.process.dead:  # a killed one only unwinds, and is not heard
        world.truth.worker_ended(running.name, shutdown.reason)


def _link(world: World, worker: SimulatedWorker, client: Client, shutdown: Shutdown) -> Link:
    running, clock = worker.running, Clock(world.scheduler)

    def leave() -> None:
        running.exit_code = int(exit_code(shutdown.reason))
        running.process.kill()

    around = ProcessContext(
        clock,
        data.Gauges(clock, lambda times: world.truth.before_report(worker, times)),  # type: ignore[arg-type]
        HangWatch(clock, output=io.StringIO()),
        lambda servers: world.parameters(running),
        leave,
    )
    return Link.make(client, around, shutdown)  # type: ignore[arg-type]


# On a ring


@final
@dataclass(frozen=True, slots=True)
class _RingWorker:
    """As `worker.ring.wiring.RingWorker`."""

    sources: Any
    trainer: RingTrainer
    reading: RingReading
    callbacks: data.Callbacks
    copies: Copies

    def settle(self, timeout_s: float) -> bool:
        return True

    def leave(self) -> None:
        """Nothing of the ring's leases is this worker's to give back."""

    def run(self) -> None:
        self.trainer.warm_up(first_batch(self.sources, Task.TRAINING))
        self.reading.read_ahead()
        self.reading.start()
        self.copies.start()
        self.trainer.run()


@final
class _RecordingListener:
    """The real listener of the trainer; the step learns of its item here, and the truth of restored
    weights.
    """

    def __init__(self, inner: RingListener, step: Step) -> None:
        self._inner = inner
        self._step = step

    def before_step(self, item: WorkItem) -> None:
        self._step.item = item
        self._inner.before_step(item)

    def after_step(self, loss: float | None, version: int) -> None:
        self._inner.after_step(loss, version)

    def rate(self, version: int, scale: float) -> None:
        self._inner.rate(version, scale)

    def at_mark(self, item: WorkItem, version: int, rank: int, stop: Callable[[], bool]) -> bool:
        return self._inner.at_mark(item, version, rank, stop)

    def restore(self, directory: str) -> int:
        return self._inner.restore(directory)


@final
class _Checked:
    """A task that is only done on the weights that its lease names."""

    def __init__(self, task: TaskRunner, check: Callable[[Lease], None]) -> None:
        self._task = task
        self._check = check

    def run(self, loaded: Loaded) -> None:
        self._check(loaded.batch.held.lease)
        self._task.run(loaded)

    def leave(self) -> None:
        self._task.leave()


def _on_ring(world: World, worker: SimulatedWorker, client: Client, link: Link) -> _RingWorker:
    """As `lifecycle._work_on_ring` and `worker.ring.wiring.assemble_ring`."""
    plan, scheduler, context, truth = world.plan, world.scheduler, link.context, world.truth
    virtual = plan.spec.training.virtual_workers
    ring = worker.ring = Ring(world.hub, worker.running.process)
    exchange = worker.exchange = Exchange(ring, truth.violated)
    step = Step(scheduler, ring, exchange, plan.step_s, truth.violated)
    sources = data.sources_of(
        scheduler,
        plan.training,
        plan.validation,
        plan.minibatch_size,
        plan.feed_s,
        plan.bad,
        world.may_hang,
    )
    metrics = data.MetricStep(
        scheduler, sum(one.records for one in plan.validation), plan.step_s, truth.violated
    )
    callbacks = data.Callbacks()

    def check(lease: Lease) -> None:
        truth.at_mark(worker, lease)

    evaluation, summary = (
        EvaluationTask(metrics, context),
        SummaryTask(metrics, callbacks, context.outbox),
    )
    export = ExportTask(
        _NoServers(),
        _NO_PARAMETERS,  # type: ignore[arg-type]
        data.unwritten,
        "out",
        data.Exports(),
        context.outbox,
    )
    tasks: Mapping[Task, TaskRunner] = {
        Task.EVALUATION: _Checked(evaluation, check),
        Task.SUMMARY: _Checked(summary, check),
        Task.EXPORT: _Checked(export, check),
    }
    copies = Copies(exchange, ["weights"], link.generations.copies, context)  # type: ignore[arg-type]
    preparing = SimpleNamespace(prepare=lambda features, training=False: _NO_PARAMETERS)
    marks = BarrierTasks(client, sources, tasks, preparing, context)

    def restore(directory: str) -> int:
        version, weights = world.disk.rings[directory] if directory else (0, Weights())
        exchange.load([weights])
        world.hub.restored(weights, ring.generation)
        return int(version)

    rate = SimpleNamespace(set=lambda version, scale: None)
    listener = _RecordingListener(RingListener(marks, copies, callbacks, rate, restore), step)  # type: ignore[arg-type]
    reading = RingReading(
        client,
        sources,
        context.watch,
        context.shutdown,
        link.generations.changed,
        context.gauges.times,
        virtual,
    )
    parts = RingDeps(ring, exchange, step, reading, listener, virtual)  # type: ignore[arg-type]
    trainer = worker.trainer = RingTrainer(
        str(worker.name), "master", parts, context, link.generations
    )
    context.starting("compile")
    return _RingWorker(sources, trainer, reading, callbacks, copies)


@final
class _NoServers:
    def dense_of(self, lease: Lease) -> Any:
        return np.empty(0, np.float32)

    def rows_of(self, lease: Lease, table: int) -> Any:
        raise AssertionError("there are no tables")


# With parameter servers


@final
@dataclass(frozen=True, slots=True)
class _PsWorker:
    """As `wiring.Worker`."""

    trainer: PsTrainer
    callbacks: data.Callbacks
    loop: Loop
    start: Callable[[], None]

    def run(self) -> None:
        self.start()
        self.loop.run()

    def settle(self, timeout_s: float) -> bool:
        return self.trainer.settle(timeout_s)

    def leave(self) -> None:
        self.loop.leave()


@final
class _PsStep:
    """As `model.step.CompiledStep`: the gradient is the records that it is of."""

    def __init__(self, scheduler: Any, step_s: float) -> None:
        self._scheduler = scheduler
        self._step_s = step_s

    def prepare(self, features: Any, *, training: bool = False) -> Any:
        return SimpleNamespace(ids=())

    def train(self, features: Any, labels: Any, lookups: Any, pulled: Any) -> Any:
        if self._step_s:
            self._scheduler.work(self._step_s * (0.5 + self._scheduler.random.random()))
        return SimpleNamespace(
            loss=1.0,
            dense=features,
            gradients=(),
            squares=(),
            dense_squares=None,
            learning_rate=0.1,
            nonfinite="",
            examples=float(len(features)),
        )


def _with_servers(world: World, worker: SimulatedWorker, client: Client, link: Link) -> _PsWorker:
    """As `lifecycle.work` and `wiring.put_together`."""
    plan, scheduler, context = world.plan, world.scheduler, link.context
    sources = replace(
        data.sources_of(
            scheduler,
            plan.training,
            plan.validation,
            plan.minibatch_size,
            plan.feed_s,
            plan.bad,
            world.may_hang,
        ),
        training_window=plan.spec.training_window,
    )
    metrics = data.MetricStep(
        scheduler, sum(one.records for one in plan.validation), plan.step_s, world.truth.violated
    )
    callbacks = data.Callbacks()
    step = _PsStep(scheduler, plan.step_s)
    staleness = plan.spec.training.max_staleness
    bounds = Bounds(adaptive=True) if staleness == "auto" else Bounds(staleness)
    trainer = worker.trainer = PsTrainer(
        step, link.parameters, context, bounds, Clock(scheduler), link.turns
    )
    tasks: Mapping[Task, TaskRunner] = {
        Task.TRAINING: TrainingTask(trainer, callbacks, context.watch),  # type: ignore[arg-type]
        Task.EVALUATION: EvaluationTask(metrics, context),
        Task.SUMMARY: SummaryTask(metrics, callbacks, context.outbox),
        Task.EXPORT: ExportTask(
            trainer,
            _NO_PARAMETERS,  # type: ignore[arg-type]
            data.unwritten,
            "out",
            data.Exports(),
            context.outbox,
        ),
    }
    reading = ShardReading(sources, context)
    feeding = Feeding(reading, sources, context)
    loading = Prefetch(feeding, trainer, context)
    loop = Loop(loading, trainer, tasks, context)

    def start() -> None:
        context.starting("weights")
        if trainer.start(_NO_PARAMETERS, np.empty(0, np.float32)):  # type: ignore[arg-type]
            context.starting(GIVING_PART)
        link.revival.start(trainer.revive)
        for stage in (reading, feeding, loading):
            stage.start()
        context.starting("")
        context.keeper.start()

    return _PsWorker(trainer, callbacks, loop, start)
