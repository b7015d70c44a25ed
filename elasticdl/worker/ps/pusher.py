"""The last stage of a step: push gradients to the servers, then report progress to the outbox.

One thread pushes, in the order of the steps. It numbers the pushes from 1 without gaps, so that
servers apply each once. It alone decides whether a batch of a revoked lease is still pushed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, final

from elasticdl.clock import Clock
from elasticdl.rpc.parameters import Parameters, Pushed, Update
from elasticdl.shard import Applied
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.leases import HeldLease
from elasticdl.worker.pipeline.outbox import Advance
from elasticdl.worker.pipeline.trainer import Batch, Loaded
from elasticdl.worker.process.shutdown import Failed
from elasticdl.worker.process.thread_queue import LOOK_AGAIN_S, Ended, ThreadQueue
from elasticdl.worker.ps.server_times import ServerTimes
from elasticdl.worker.ps.staleness_limit import StalenessLimit
from elasticdl.worker.ps.turns import Turns

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.model.step import StepOutcome

_DEPTH = 64
"""More than steps can be in flight, so that only leases without computation ever wait here."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A batch and its step's outcome; None if nothing was computed."""

    loaded: Loaded
    outcome: StepOutcome | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    call: Callable[[], None]


_Item: TypeAlias = Trained | _Call


@final
class Pusher:
    """Thread-safe. It ends with the worker, after it has pushed what was handed over."""

    def __init__(
        self,
        parameters: Parameters,
        context: WorkerContext,
        staleness_limit: StalenessLimit,
        clock: Clock,
        server_times: ServerTimes,
        turns: Turns | None = None,
    ) -> None:
        """`turns`: pushes are gradients of synchronous steps."""
        self._turns = turns
        self._parameters = parameters
        self._context = context
        self._staleness_limit = staleness_limit
        self._clock = clock
        self._server_times = server_times
        self._queue: ThreadQueue[_Item] = ThreadQueue(_DEPTH)
        self._sequence = 0
        self._version = 0
        self._broken = threading.Event()

    @property
    def version(self) -> int:
        """The model's version in the last acknowledgement."""
        return self._version if self._turns is None else self._turns.version

    def start(self) -> None:
        threading.Thread(target=self._run, name="pusher", daemon=True).start()

    def push(self, trained: Trained) -> None:
        """Hand over; does not wait for the servers. Raises Ended if pushing has failed."""
        self._queue.put(trained)

    def after_all(self, call: Callable[[], None]) -> None:
        """Call `call` from the pushing thread once everything before it is settled.

        It is dropped if pushing has failed.
        """
        try:
            self._queue.put(_Call(call))
        except Ended:
            return

    def settle(self, timeout_s: float) -> bool:
        """Wait until everything handed over is acknowledged."""
        settled = threading.Event()
        self.after_all(settled.set)
        return settled.wait(timeout_s) and not self._broken.is_set()

    def _run(self) -> None:
        try:
            while True:
                match self._queue.get():
                    case _Call(call) if self._turns is not None:
                        self._turns.after_all(call)
                    case _Call(call):
                        call()
                    case Trained() as trained:
                        self._settle_one(trained)
        except Ended:
            # Before the close: `settle` wakes up with the close and must see it.
            self._broken.set()
            self._queue.close()
        except Exception as error:  # noqa: BLE001 - the top of a thread: it ends the worker visibly
            self._broken.set()
            self._context.shutdown.fail(error)
            self._queue.close()

    def _settle_one(self, trained: Trained) -> None:
        batch = trained.loaded.batch
        held = batch.held
        try:
            if batch.bad:
                self._foretell_bad(held, batch)
            # Decided here, as late as possible: a revocation may have come since the step was
            # computed.
            if self._turns is not None:
                self._push_in_turn(trained, self._turns)
            elif not self._context.keeper.is_void(held):
                if trained.outcome is not None:
                    self._push(trained, trained.outcome)
                self._tell(trained)
        finally:
            if trained.outcome is not None and self._turns is None:
                self._staleness_limit.leave()

    def _push_in_turn(self, trained: Trained, turns: Turns) -> None:
        """Push a gradient of a synchronous step; its records count when the step is applied."""
        batch, outcome = trained.loaded.batch, trained.outcome
        void = self._context.keeper.is_void(batch.held) or turns.has_failed(batch.held)
        if outcome is None and not void:
            turns.after_all(partial(self._tell, trained), batch)
        elif outcome is not None and void:
            turns.give_up(trained.loaded.turn, batch.held)
        elif outcome is not None:
            self._push(trained, outcome)
            turns.end(
                trained.loaded.turn,
                self._sequence,
                outcome.examples,
                batch,
                partial(self._tell, trained),
            )

    def _foretell_bad(self, held: HeldLease, batch: Batch) -> None:
        """Tell the master first, and wait until it knows.

        So it can tell bad records from trained ones in whatever a server has of this worker, at a
        checkpoint or after the worker's end. Raises Ended if this worker fails meanwhile.
        """
        self._context.outbox.foretell_bad(held.lease, batch.bad, batch.end - batch.records)
        known = self._context.outbox.arrival()
        while not known.wait(LOOK_AGAIN_S) and not self._context.keeper.is_void(held):
            if isinstance(self._context.shutdown.reason, Failed):
                raise Ended

    def _push(self, trained: Trained, outcome: StepOutcome) -> None:
        batch = trained.loaded.batch
        lookups, pulled = trained.loaded.ready
        shard = batch.held.lease.shard
        assert shard is not None
        update = Update(
            sequence=self._sequence + 1,
            applied=Applied(shard.id, batch.held.lease.attempt, batch.end),
            versions=pulled.versions,
            learning_rate=outcome.learning_rate,
            dense=outcome.dense,
            ids=lookups.ids,
            gradients=outcome.gradients,
            squares=outcome.squares,
            dense_squares=outcome.dense_squares,
        )

        def attempt(timeout_s: float) -> Pushed:
            return self._parameters.push(update, timeout_s=timeout_s)

        begin_s = self._clock.now_s()
        with self._context.gauges.timed("push_ms"):
            pushed = self._context.retry.call(attempt, "push")
        self._staleness_limit.pushed(self._clock.now_s() - begin_s)
        self._server_times.pushed(pushed.seconds)
        if self._turns is None:
            self._context.outbox.pushed(self._sequence + 1, pushed.met, crowded=pushed.crowded)
        # Only after all servers have it: a retry must carry the same number, so that servers that
        # applied it already skip it.
        self._sequence += 1
        # The lowest: the update is in the model once every server has it.
        self._version = min(pushed.versions)
        if self._turns is None:
            self._context.gauges.add("staleness", max(pushed.staleness))

    def _tell(self, trained: Trained) -> None:
        batch = trained.loaded.batch
        loss = trained.outcome.loss if trained.outcome is not None else None
        advance = Advance(
            batch.end, self.version, loss, batch.bad, batch.bad_examples, done=batch.last
        )
        self._context.gauges.count_records(batch.records)
        self._context.outbox.advance(batch.held.lease, advance)
