"""SGD through parameter servers; pull, step and push of successive batches overlap.

A pull is issued while at most `max_staleness` of this worker's own updates are in flight, so 0 is
plain sequential SGD. With `adaptive` that many are allowed only while it saves enough time, and
none otherwise. Updates of others are not waited for. But a step that took unusually long (it traced
the model, or the machine was busy) is recomputed on newer parameters, since its gradients would be
hundreds of versions stale.

In synchronous steps a worker first takes a turn, then pulls, computes and pushes (`turns.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, final

import numpy as np

from elasticdl.clock import Clock, SystemClock
from elasticdl.embedding.spec import ParametersSpec
from elasticdl.errors import TransientError
from elasticdl.rpc.parameters import Floats, Int64s, Parameters, Pulled, RowsPage
from elasticdl.shard import Lease, SnapshotId, Task
from elasticdl.time_use import TimeUse
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.leases import HeldLease
from elasticdl.worker.pipeline.retry import NoLongerNeeded
from elasticdl.worker.pipeline.trainer import Batch, Loaded
from elasticdl.worker.process.shutdown import NonFinite
from elasticdl.worker.process.thread_queue import Ended
from elasticdl.worker.ps.pusher import Pusher, Trained
from elasticdl.worker.ps.server_times import ServerTimes
from elasticdl.worker.ps.staleness_limit import StalenessLimit
from elasticdl.worker.ps.turns import Turns

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.model.step import Lookups, StepOutcome
    from elasticdl.model.structure import Structure

_log = logging.getLogger(__name__)

_MAX_LOSSES = 10
"""How often a table may have to be read again from its first row."""


class PsStep(Protocol):
    """The methods of `model.step.CompiledStep` that training needs."""

    def prepare(self, features: Structure, *, training: bool = False) -> Lookups:
        """The rows that a batch needs."""

    def train(
        self, features: Structure, labels: Structure, lookups: Lookups, pulled: Pulled
    ) -> StepOutcome:
        """Loss and gradients."""


_OLD_S = 1.0
_OLD_STEPS = 5.0
"""When parameters are too stale for a gradient, in this worker's shortest steps.

The limit is this, or `_OLD_S` if that is more.
"""


@dataclass(frozen=True, slots=True)
class _PullRequest:
    """What to pull besides rows, and whether the result is still needed."""

    snapshot: SnapshotId | None = None
    dense: bool = True
    exact: bool = False
    wanted: Callable[[], bool] = lambda: True


_LIVE = _PullRequest()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of staleness and of consecutive steps with NaN or infinity."""

    max_staleness: int = 1
    adaptive: bool = False
    """Whether `max_staleness` applies only while pull and push take a large share of a step."""
    max_nonfinite_steps: int = 3


@final
class PsTrainer:
    """A `Trainer`. Call `start` first."""

    def __init__(
        self,
        step: PsStep,
        parameters: Parameters,
        context: WorkerContext,
        bounds: Bounds,
        clock: Clock | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`turns`: train in synchronous steps."""
        self._turns = turns
        self._step = step
        self._parameters = parameters
        self._context = context
        self._bounds = bounds
        self._clock = clock or SystemClock()
        self._shortest_s = 0.0
        self._staleness_limit = StalenessLimit(
            context.shutdown, context.gauges, bounds.max_staleness, adaptive=bounds.adaptive
        )
        if turns is not None:
            # Nothing is stale in synchronous steps.
            context.gauges.level("staleness_limit", None)
        self._server_times = ServerTimes(context.gauges)
        self._pusher = Pusher(
            parameters, context, self._staleness_limit, self._clock, self._server_times, turns
        )
        # A repeated step pulls from the loop's thread, while the loader may pull for the next one.
        self._one_pull = threading.Lock()
        self._tables = 0
        self._frozen: tuple[SnapshotId, Floats] | None = None

    @property
    def version(self) -> int:
        """The model's version in the last acknowledgement."""
        return self._pusher.version

    def start(self, spec: ParametersSpec, dense: Floats) -> bool:
        """Give the servers their initial values; False if they already have values.

        Raises as `load`.
        """
        self._tables = len(spec.tables)
        initialised = False

        def attempt(timeout_s: float) -> None:
            nonlocal initialised
            initialised = (
                self._parameters.initialise(spec, dense, timeout_s=timeout_s) or initialised
            )
            # With the servers' present values this worker can revive one that comes back empty.
            self._parameters.pull(self._no_ids(), exact=True, timeout_s=timeout_s)

        self._context.retry.call(attempt, "initialise")
        if initialised:
            _log.info("gave the parameter servers their initial values")
        self._pusher.start()
        return initialised

    def revive(self) -> None:
        """Give servers that came back what they lack. Raises as `load`.

        An empty one gets the last pulled dense values, one with an older state the pushes since.
        """
        self._pull(self._no_ids(), _PullRequest(dense=False))
        if self._turns is None:
            retry, parameters = self._context.retry, self._parameters
            met = retry.call(lambda timeout_s: parameters.meet(timeout_s=timeout_s), "greeting")
            self._context.outbox.met(met)

    def load(self, batch: Batch) -> Loaded:
        if not batch.computes:
            return Loaded(batch)
        lease = batch.held.lease
        training = lease.task is Task.TRAINING
        with self._context.gauges.timed("prepare_ms"):
            lookups = self._step.prepare(batch.features, training=training)
        held = batch.held
        wish = _PullRequest(lease.snapshot, wanted=lambda: not self._context.keeper.is_void(held))
        if not training:
            return Loaded(batch, lookups, self._frozen_pull(lookups.ids, wish))
        if self._turns is not None:
            # The step decides which version it needs: pulled when it is this worker's turn.
            return Loaded(batch, lookups)
        with self._context.gauges.timed("staleness_wait_ms", TimeUse.ACKNOWLEDGEMENT):
            self._staleness_limit.enter()
        try:
            asked_at_s = self._clock.now_s()
            pulled = self._pull(lookups.ids, wish)
            self._staleness_limit.pulled(self._clock.now_s() - asked_at_s)
            return Loaded(batch, lookups, pulled, asked_at_s)
        except BaseException:
            # Every `enter` needs its `leave`: otherwise a few failed pulls would block the worker.
            self._staleness_limit.leave()
            raise

    def drop(self, loaded: Loaded) -> None:
        # In synchronous steps nothing is pulled ahead.
        if loaded.pulled is not None and loaded.batch.held.lease.task is Task.TRAINING:
            self._staleness_limit.leave()

    def train(self, loaded: Loaded) -> float | None:
        if not loaded.batch.computes:
            self._pusher.push(Trained(loaded))
            return None
        if self._turns is not None:
            return self._train_in_turn(loaded, self._turns)
        batch, nonfinite = loaded.batch, ""
        for again in range(self._bounds.max_nonfinite_steps):
            if again:
                loaded = self._reloaded(loaded)
            loaded, outcome = self._computed(loaded, TimeUse.NONFINITE if again else TimeUse.STEP)
            if not outcome.nonfinite:
                self._pusher.push(Trained(loaded, outcome))
                return outcome.loss
            nonfinite = outcome.nonfinite
            self._tell_nonfinite(batch, outcome)
        raise self._nonfinite(batch, nonfinite)

    def _train_in_turn(self, loaded: Loaded, turns: Turns) -> float:
        """Compute a gradient of a synchronous step, at the version that all of it has."""
        batch = loaded.batch
        gauges = self._context.gauges
        with gauges.timed("turn_wait_ms", turns.waits_for), self._context.watch.waiting():
            turn = turns.take(batch)
        try:
            assert loaded.lookups is not None
            wish = _PullRequest(wanted=lambda: not self._context.keeper.is_void(batch.held))
            pulled = self._pull(loaded.lookups.ids, wish)
            loaded = replace(loaded, pulled=pulled, turn=turn)
            nonfinite = ""
            for again in range(self._bounds.max_nonfinite_steps):
                outcome = self._timed(loaded, TimeUse.NONFINITE if again else TimeUse.STEP)
                nonfinite = outcome.nonfinite
                if not nonfinite:
                    self._pusher.push(Trained(loaded, outcome))
                    return outcome.loss
                self._tell_nonfinite(batch, outcome)
            raise self._nonfinite(batch, nonfinite)
        except Exception:
            turns.give_up(turn, batch.held)
            raise

    @staticmethod
    def _tell_nonfinite(batch: Batch, outcome: StepOutcome) -> None:
        _log.warning(
            "step not applied: %s is not finite at %s (loss %r)",
            outcome.nonfinite,
            place_of(batch),
            outcome.loss,
        )

    def _nonfinite(self, batch: Batch, nonfinite: str) -> NonFinite:
        return NonFinite(
            f"{nonfinite} is NaN or infinite, {self._bounds.max_nonfinite_steps} times in a row, at"
            f" {place_of(batch)}",
            hint=(
                "lower the learning rate, clip gradients, or check these records; none of these"
                " steps was applied"
            ),
        )

    def after_all(self, call: Callable[[], None]) -> None:
        self._pusher.after_all(call)

    def settle(self, timeout_s: float) -> bool:
        return self._pusher.settle(timeout_s)

    def dense_of(self, lease: Lease) -> Floats:
        """The dense weights that this lease reads, [trainable_size + additive_size].

        Raises NoLongerNeeded if the lease became void: its view may be gone.
        """
        return self._dense(
            _PullRequest(lease.snapshot, exact=True, wanted=lambda: not self._is_void(lease))
        )

    def rows_of(self, lease: Lease, table: int) -> Iterator[tuple[Int64s, Floats]]:
        """All rows of a table, some at a time: ids int64[n], weights [n, dim].

        The order is the servers' own. If a connection breaks, rows of its server come again; the
        last of each id counts. Raises as `dense_of`, and Ended if the worker ends while the job
        trains: another one exports instead, and a large table takes longer than a drain may.
        """
        servers = self._parameters.servers
        for server in range(servers):
            begin, losses, total = 0, 0, 1
            while begin < total:
                if self._is_void(lease):
                    raise NoLongerNeeded
                if lease.snapshot is not None and self._context.shutdown:
                    raise Ended
                page = self._page(lease, table, server, begin)
                if page.lost:
                    losses += 1
                    if losses > _MAX_LOSSES:
                        raise TransientError(
                            f"ps-{server} lost the connection {losses} times while table {table}"
                            " was read"
                        )
                    begin = 0
                    continue
                yield page.ids, page.weights
                begin, total = begin + len(page.ids), page.total
        if self._parameters.servers != servers:
            raise TransientError(f"the servers changed while table {table} was read")

    def _is_void(self, lease: Lease) -> bool:
        return self._context.keeper.is_void(HeldLease(lease))

    def _page(self, lease: Lease, table: int, server: int, begin: int) -> RowsPage:
        def attempt(timeout_s: float) -> RowsPage:
            return self._parameters.rows(
                table, server, begin, snapshot=lease.snapshot, timeout_s=timeout_s
            )

        # Whoever reads whole tables exports: no step waits for this pull.
        with self._one_pull, self._context.gauges.times.spending(TimeUse.EXPORT):
            return self._context.retry.call(
                attempt, "read rows", wanted=lambda: not self._is_void(lease)
            )

    def _dense(self, wish: _PullRequest) -> Floats:
        pulled = self._pull(self._no_ids(), wish)
        assert pulled.dense is not None
        return pulled.dense

    def _no_ids(self) -> tuple[Int64s, ...]:
        return tuple(np.empty(0, dtype=np.int64) for _ in range(self._tables))

    def _computed(self, loaded: Loaded, use: TimeUse) -> tuple[Loaded, StepOutcome]:
        """Run a step, and once more if its parameters were too stale at its end."""
        limit_s = max(_OLD_S, _OLD_STEPS * self._shortest_s)
        outcome = self._timed(loaded, use)
        age_s = self._clock.now_s() - loaded.asked_at_s
        if age_s <= limit_s:
            return loaded, outcome
        _log.info(
            "recomputing a step: its parameters were %.1f s stale, at %s",
            age_s,
            place_of(loaded.batch),
        )
        loaded = self._reloaded(loaded)
        return loaded, self._timed(loaded, TimeUse.STALE)

    def _timed(self, loaded: Loaded, use: TimeUse) -> StepOutcome:
        begin_s = self._clock.now_s()
        # The first step traces and compiles.
        use = use if self._shortest_s else TimeUse.COMPILE
        with self._context.gauges.timed("step_ms", use):
            outcome = self._step.train(loaded.batch.features, loaded.batch.labels, *loaded.ready)
        took_s = self._clock.now_s() - begin_s
        # The shortest, not the mean, since the first step takes longer.
        self._shortest_s = min(self._shortest_s or took_s, took_s)
        self._staleness_limit.computed(took_s)
        return outcome

    def _reloaded(self, loaded: Loaded) -> Loaded:
        """The same batch with newer parameters, which have all of this worker's earlier updates."""
        # Otherwise the new pull could still miss this worker's own update, and be just as stale.
        with self._context.gauges.times.spending(TimeUse.ACKNOWLEDGEMENT):
            self._pusher.settle(timeout_s=60.0)
        asked_at_s = self._clock.now_s()
        return replace(loaded, pulled=self._pull(loaded.ready[0].ids), asked_at_s=asked_at_s)

    def _pull(self, ids: Sequence[Int64s], wish: _PullRequest = _LIVE) -> Pulled:
        def attempt(timeout_s: float) -> Pulled:
            return self._parameters.pull(
                ids,
                dense=wish.dense,
                snapshot=wish.snapshot,
                exact=wish.exact,
                timeout_s=timeout_s,
            )

        watch, gauges = self._context.watch, self._context.gauges
        with self._one_pull, gauges.timed("pull_ms", TimeUse.PULL), watch.waiting():
            pulled = self._context.retry.call(attempt, "pull", wish.wanted)
            self._server_times.pulled(pulled.seconds)
            return pulled

    def _frozen_pull(self, ids: Sequence[Int64s], wish: _PullRequest) -> Pulled:
        """Pull from a frozen view; its dense weights travel only once."""
        if wish.snapshot is None:
            return self._pull(ids, wish)
        if self._frozen is not None and self._frozen[0] == wish.snapshot:
            return replace(self._pull(ids, replace(wish, dense=False)), dense=self._frozen[1])
        pulled = self._pull(ids, wish)
        assert pulled.dense is not None
        self._frozen = (wish.snapshot, pulled.dense)
        return pulled


def place_of(batch: Batch) -> str:
    """The records of a batch, for people."""
    lease = batch.held.lease
    if lease.shard is None:
        return f"the {lease.task} task"
    order = (
        "in file order" if lease.order_seed is None else f"in the order of seed {lease.order_seed}"
    )
    return (
        f"{lease.shard.source}, records {lease.shard.begin}:{lease.shard.end}, "
        f"of these {batch.end - batch.records}:{batch.end} {order} (epoch {lease.epoch + 1})"
    )
