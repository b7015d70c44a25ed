"""One member of a ring, for tests: the worker's own loop on records in memory. It reads generations
from stdin and reports on stdout.

Its process is forked from one that has imported all this and done nothing else yet: to import takes
as long as twenty steps.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import horovod.tensorflow  # noqa: F401 - so that it is there before members are forked
import numpy as np
import tensorflow as tf

from elasticdl.clock import SystemClock
from elasticdl.data.base import Block, Metadata
from elasticdl.job_flags import ModelSection
from elasticdl.model.input import Feeder
from elasticdl.model.module import load_module
from elasticdl.model.ring_model import RingModel
from elasticdl.model.ring_step import RingStep
from elasticdl.rpc.conversation import Finished, RingGeneration
from elasticdl.shard import Barrier, Lease, Shard, ShardId, Source, Task, WorkItem
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.first_batch import first_batch
from elasticdl.worker.pipeline.leases import LeaseKeeper
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.reading import Sources
from elasticdl.worker.pipeline.retry import ServerRetry
from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.hang_watch import HangWatch
from elasticdl.worker.process.os_process import leave
from elasticdl.worker.process.shutdown import Shutdown
from elasticdl.worker.process.thread_queue import Ended
from elasticdl.worker.ring.exchange import Exchange
from elasticdl.worker.ring.generations import Generations
from elasticdl.worker.ring.reading import RingReading
from elasticdl.worker.ring.ring import HorovodRing
from elasticdl.worker.ring.trainer import RingTrainer
from elasticdl.worker.ring.trainer_deps import RingDeps
from elasticdl.worker.ring.virtual_step import VirtualStep

ZOO = Path(__file__).parent / "ring_zoo"
# A member's collections would otherwise look through all that was imported, and copy its pages.
gc.freeze()
_tell_lock = threading.Lock()


def tell(**what: object) -> None:
    with _tell_lock:
        print(json.dumps(what), flush=True)


class MemoryReader:
    """Five numbers a record, always the same ones."""

    metadata = Metadata(())

    def __init__(self, records: int) -> None:
        self._rows = np.random.default_rng(1).normal(size=(records, 5))

    def sources(self) -> tuple[Source, ...]:
        return (Source("memory", len(self._rows)),)

    def read(self, shard: Shard) -> Iterator[Block]:
        yield Block(self._rows[shard.begin : shard.end], shard.records)

    def close(self) -> None: ...


class Items:
    """Two shards an epoch, in a seeded order of records, and pauses between epochs."""

    def __init__(self, setting: dict[str, Any]) -> None:
        self._setting = setting

    def request_item(
        self, number: int, wait_s: float, *, at_mark: bool = False
    ) -> WorkItem | Finished:
        records, epochs, batch = (self._setting[name] for name in ("records", "epochs", "batch"))
        if number > 3 * epochs:
            return Finished()
        epoch, place = divmod(number - 1, 3)
        if place == 2:
            return WorkItem(number, None, mark=Barrier.PAUSE)
        half = records // 2
        shard = Shard(ShardId(place), "memory", place * half, half if place == 0 else records)
        return WorkItem(
            number,
            Lease(Task.TRAINING, shard, epoch, epoch=epoch, order_seed=7 * number),
            batch=batch,
        )


class StepReporter:
    """Tells of each step as it is done.

    `long`: {name of a member: [steps done, s that its next one then takes]}.
    """

    def __init__(self, delay_s: float, long: tuple[int, float] | None) -> None:
        self._delay_s = delay_s
        self._long = long
        self._steps = 0

    def before_step(self, item: WorkItem) -> None:
        self._steps += 1
        delay_s = self._delay_s
        if self._long is not None and self._steps == self._long[0]:
            delay_s = self._long[1]
        threading.Event().wait(delay_s)

    def after_step(self, loss: float | None, version: int) -> None:
        tell(step=version, loss=loss, time=time.monotonic())

    def rate(self, version: int, scale: float) -> None: ...

    def at_mark(self, item: WorkItem, version: int, rank: int, stop: Callable[[], bool]) -> bool:
        return not stop()

    def restore(self, directory: str) -> int:
        return 0


def report(outbox: Outbox, shutdown: Shutdown) -> None:
    while True:
        outbox.urgent.wait(0.2)
        made = outbox.take({})
        outbox.arrived()
        for one in made.progress:
            tell(
                shard=one.applied.shard,
                attempt=one.applied.attempt,
                offset=one.applied.offset,
                version=one.version,
            )
        word = made.ring
        if word is not None:
            tell(
                ready=word.ready,
                entered=word.entered,
                broken=word.broken,
                leaving=word.leaving,
                problem=word.problem,
            )


def main(name: str, setting: dict[str, Any]) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(3)
    module = load_module(ModelSection(model_zoo=str(ZOO), model_def=setting["model"]))
    reader = MemoryReader(setting["records"])
    feeder = Feeder(module, Task.TRAINING, reader.metadata)
    sources = Sources(lambda task: reader, lambda task: feeder, setting["batch"])
    model = RingModel.build(module, {}, seed=3)
    shutdown, outbox, clock = Shutdown(), Outbox(), SystemClock()
    gauges, watch = Gauges(clock), HangWatch(clock, long_s=0.5, hung_s=setting["hung_s"])
    watch.start(shutdown, lambda: leave(shutdown))
    context = WorkerContext(
        LeaseKeeper(None, outbox, shutdown),  # type: ignore[arg-type]  # a ring asks for no lease
        outbox,
        gauges,
        ServerRetry(shutdown, gauges, clock),
        watch,
        shutdown,
    )
    ring = HorovodRing()
    exchange = Exchange(ring, list(model.state().values()))
    generations = Generations(shutdown, clock)
    virtual = setting["virtual_workers"]
    reading = RingReading(
        Items(setting), sources, watch, shutdown, generations.changed, gauges.times, virtual
    )
    parts = RingDeps(
        ring,
        exchange,
        VirtualStep(model, ring, virtual) if virtual else RingStep(model, ring),
        reading,
        StepReporter(setting["delay_s"], setting["long"].get(name)),
        virtual,
    )
    trainer = RingTrainer(name, "127.0.0.1", parts, context, generations)
    trainer.warm_up(first_batch(sources, Task.TRAINING))
    reading.start()

    def hear() -> None:
        for line in sys.stdin:
            generation = json.loads(line)
            generations.put(
                RingGeneration(
                    **{
                        **generation,
                        "members": tuple(generation["members"]),
                        "holders": tuple(generation["holders"]),
                    }
                )
            )

    for run in (hear, lambda: report(outbox, shutdown)):
        threading.Thread(target=run, daemon=True).start()
    try:
        trainer.run()
    except Ended:
        tell(failed=str(shutdown.reason), error=repr(getattr(shutdown.reason, "error", "")))
        os._exit(1)
    threading.Event().wait(0.3)
    digest = hashlib.sha256(b"".join(value.tobytes() for value in exchange.copied())).hexdigest()
    tell(end=trainer.version, digest=digest)
    sys.stdout.flush()
    os._exit(0)


def run(
    name: str, setting: dict[str, Any], hears: Connection, tells: Connection, errors_at: str
) -> None:
    """The process: its standard streams are those that a program of its own would have been
    given.
    """
    os.dup2(hears.fileno(), 0)
    os.dup2(tells.fileno(), 1)
    os.dup2(os.open(errors_at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    for connection in (hears, tells):
        connection.close()
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode) for number, mode in enumerate(("r", "w", "w"))
    )
    main(name, setting)
