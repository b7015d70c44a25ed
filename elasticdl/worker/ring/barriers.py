"""A ring member's work between steps: callbacks, evaluation, export and copies for checkpoints."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol, final

import numpy as np

from elasticdl.addresses import is_address
from elasticdl.checkpoint import ring_file
from elasticdl.checkpoint.object_store import upload_part
from elasticdl.errors import ElasticDLError, PermanentError, TransientError
from elasticdl.rpc.conversation import (
    Finished,
    RingCut,
    RingDrop,
    RingSave,
    RingSaved,
    Wait,
    WrittenFile,
)
from elasticdl.rpc.parameters import Pulled
from elasticdl.shard import Lease, SnapshotId, Task, WorkItem
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.leases import HeldLease
from elasticdl.worker.pipeline.loop import TASK_USES, TaskRunner
from elasticdl.worker.pipeline.reading import Sources
from elasticdl.worker.pipeline.record_order import LoadedShard, order_of
from elasticdl.worker.pipeline.trainer import Batch, Loaded
from elasticdl.worker.process.thread_queue import Ended, ThreadQueue
from elasticdl.worker.ring.reading import ItemSource

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.model.ring_rate import Rate
    from elasticdl.model.step import Lookups
    from elasticdl.model.structure import Structure
    from elasticdl.worker.ring.exchange import Exchange
    from elasticdl.worker.tasks.callbacks import JobCallbacks

_log = logging.getLogger(__name__)

_WAIT_S = 1.0
"""How long the master may hold a request at a mark; a newer ring has to wait for the answer."""

_LEAST_S = 0.02
_GIVE_UP_S = 600.0
_UPLOAD_S = 600.0
"""As long as the master waits for a file of a checkpoint."""


class Preparing(Protocol):
    """The method of `model.step.CompiledStep` that is needed to call it on a batch."""

    def prepare(self, features: Structure, *, training: bool = False) -> Lookups:
        """Look up nothing: a ring has no tables."""


@final
class BarrierTasks:
    """A `Listener` of the trainer. Belongs to the loop's thread."""

    def __init__(
        self,
        source: ItemSource,
        sources: Sources,
        tasks: Mapping[Task, TaskRunner],
        step: Preparing,
        context: WorkerContext,
    ) -> None:
        self._source = source
        self._sources = sources
        self._tasks = tasks
        self._step = step
        self._context = context
        self._version = 0

    def work(self, number: int, version: int, stop: Callable[[], bool]) -> bool:
        """Run single leases before item `number` until it is available. False if `stop()` first."""
        self._version = version
        tries = 0
        while not stop():
            try:
                answer = self._source.request_item(number, _WAIT_S, at_mark=True)
            except TransientError as error:
                tries += 1
                if tries * error.retry_after_s > _GIVE_UP_S:
                    raise
                _log.warning("waiting for work at a barrier: %s", error)
                threading.Event().wait(error.retry_after_s)
                continue
            match answer:
                case Lease():
                    self._run(answer)
                case Wait(reason):
                    _log.debug("nothing to do at a barrier: %s", reason)
                    # The master may answer at once with Wait; do not turn that into a busy loop.
                    threading.Event().wait(_LEAST_S)
                case WorkItem() | Finished():
                    return True
        return False

    def _run(self, lease: Lease) -> None:
        context = self._context
        # Before any work: the first report on a lease must find it in the outbox.
        context.outbox.hold(lease)
        with (
            context.shutdown.failing_for(lease),
            context.watch.doing(f"a {lease.task} task"),
            context.gauges.times.spending(TASK_USES[lease.task]),
        ):
            for loaded in self._loaded(HeldLease(lease)):
                self._tasks[lease.task].run(loaded)

    def _loaded(self, held: HeldLease) -> Iterator[Loaded]:
        """All batches of a lease, with empty parameters: the variables here are the model."""
        lease = held.lease
        pulled = Pulled((self._version,), np.empty(0, np.float32), ())
        if lease.shard is None:
            yield Loaded(Batch(held))
            return
        loaded = LoadedShard.read(lease.shard, self._sources.reader(lease.task).read(lease.shard))
        order = order_of(lease.shard.records, lease.order_seed)
        feed = self._sources.feed(lease.task)
        for window in loaded.windows(order, lease.offset, self._sources.minibatch_size):
            pair = feed(window.records) if window.good else None
            last = window.end == lease.shard.records
            records, bad = window.end - window.begin, window.bad
            if pair is None:
                yield Loaded(Batch(held, window.end, records, bad, window.bad_examples, last))
                continue
            batch = Batch(held, window.end, records, bad, window.bad_examples, last, True, *pair)
            yield Loaded(batch, self._step.prepare(pair[0]), pulled)


@final
class Copies:
    """Copies of the state for checkpoints, kept until they are written or dropped. Thread-safe."""

    def __init__(
        self,
        exchange: Exchange,
        names: Sequence[str],
        orders: ThreadQueue[RingSave | RingDrop],
        context: WorkerContext,
    ) -> None:
        """`names` of the arrays, in the order of `exchange`."""
        self._exchange = exchange
        self._orders = orders
        self._names = tuple(names)
        self._context = context
        self._lock = threading.Lock()
        self._kept: dict[SnapshotId, tuple[int, list[np.ndarray]]] = {}

    def start(self) -> None:
        """Start to follow orders to write or drop copies, beside the steps."""
        threading.Thread(target=self._run, name="saver", daemon=True).start()

    def cut(self, snapshot: SnapshotId, version: int) -> None:
        """Copy the state now, and report it."""
        # On the loop's thread: no step can change the variables during the copy.
        values = self._exchange.copied()
        with self._lock:
            self._kept[snapshot] = (version, values)
        # After the copy exists: the master's answer is an order to write it.
        self._context.outbox.cut(RingCut(snapshot, version))

    def _run(self) -> None:
        try:
            while True:
                order = self._orders.get()
                if isinstance(order, RingSave):
                    self._save(order)
                else:
                    with self._lock:
                        self._kept.pop(order.snapshot, None)
        except Ended:
            return
        except Exception as error:  # noqa: BLE001 - the top of a thread: it ends the worker visibly
            self._context.shutdown.fail(error)

    def _save(self, order: RingSave) -> None:
        """Write a copy. An error of the disk or the store costs only this checkpoint."""
        try:
            version, values = self.kept(order.snapshot)
            arrays = dict(zip(self._names, values, strict=True))
            part, paused_s = _written(order.directory, version, arrays)
        except (OSError, ElasticDLError) as error:
            problem = f"cannot write to {order.directory}: {error}"
            self._context.outbox.saved(RingSaved(order.snapshot, order.directory, problem=problem))
            return
        self._context.outbox.saved(
            RingSaved(order.snapshot, order.directory, version, (part,), paused_s=paused_s)
        )

    def kept(self, snapshot: SnapshotId) -> tuple[int, list[np.ndarray]]:
        """Version and values. Raises PermanentError if there is no such copy."""
        with self._lock:
            if snapshot not in self._kept:
                raise PermanentError(f"this worker has no copy for snapshot {snapshot}")
            return self._kept[snapshot]


def _written(
    where: str, version: int, arrays: Mapping[str, np.ndarray]
) -> tuple[WrittenFile, float]:
    """Write the file of a checkpoint below a directory or an address.

    Also returns the seconds of the upload, in which training continues. Raises OSError, UserError,
    TransientError.
    """
    if not is_address(where):
        part = ring_file.write(Path(where), version, arrays)
        return WrittenFile(part.name, part.bytes, part.checksum), 0.0
    until_s = time.monotonic() + _UPLOAD_S
    with TemporaryDirectory(prefix="elasticdl-") as folder:
        part = ring_file.write(Path(folder), version, arrays)
        begin_s = time.monotonic()
        name = upload_part(Path(folder, part.name), where, lambda: time.monotonic() < until_s)
        uploaded_s = time.monotonic() - begin_s
    return WrittenFile(name, part.bytes, part.checksum), uploaded_s


@final
class RingListener:
    """The `Listener` that connects a trainer's steps with callbacks, learning rate and marks."""

    def __init__(
        self,
        marks: BarrierTasks,
        copies: Copies,
        callbacks: JobCallbacks,
        rate: Rate,
        restore: Callable[[str], int],
    ) -> None:
        self._marks = marks
        self._copies = copies
        self._callbacks = callbacks
        self._rate = rate
        self._restore = restore

    def before_step(self, item: WorkItem) -> None:
        """Run the module's callbacks."""
        assert item.lease is not None
        self._callbacks.before_step(item.lease)

    def after_step(self, loss: float | None, version: int) -> None:
        """Run the module's callbacks."""
        self._callbacks.after_step(loss, version)

    def rate(self, version: int, scale: float) -> None:
        """Set the learning rate of the next step."""
        self._rate.set(version, scale)

    def at_mark(self, item: WorkItem, version: int, rank: int, stop: Callable[[], bool]) -> bool:
        if item.mark == "checkpoint":
            # All members have equal weights here, so one copy is enough.
            if rank == 0 and item.snapshot is not None:
                self._copies.cut(item.snapshot, version)
            return True
        return self._marks.work(item.number + 1, version, stop)

    def restore(self, directory: str) -> int:
        return self._restore(directory)
