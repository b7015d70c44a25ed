"""Evaluation leases add up metric states; a SUMMARY lease turns all states into values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from elasticdl.errors import PermanentError
from elasticdl.rpc.conversation import MetricState, Summary
from elasticdl.rpc.parameters import Pulled
from elasticdl.shard import Lease
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.leases import HeldLease
from elasticdl.worker.pipeline.outbox import Advance, Outbox
from elasticdl.worker.pipeline.trainer import Loaded

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.model.step import Lookups, States
    from elasticdl.model.structure import Structure


class MetricStep(Protocol):
    """The methods of `model.step.CompiledStep` that evaluation needs."""

    def evaluate(
        self, features: Structure, labels: Structure, lookups: Lookups, pulled: Pulled
    ) -> None:
        """Add a batch to the metrics."""

    def metric_states(self) -> dict[str, MetricState]:
        """States since the last reset."""

    def reset_metrics(self) -> None:
        """Reset all states."""

    def metric_values(self, states: States) -> dict[str, float]:
        """Values of merged states."""


@dataclass(frozen=True, slots=True)
class PastRound:
    """A round that some worker summarised before.

    `loss` is the newest training loss at that time.
    """

    round: int
    epoch: int
    values: Mapping[str, float]
    loss: float | None = None


class RoundListener(Protocol):
    """Receives the values of a round: the module's callbacks."""

    def recall(self, rounds: Sequence[PastRound]) -> None:
        """All earlier rounds; those that were not passed on here are passed on now."""

    def tested(self, lease: Lease, values: Mapping[str, float]) -> bool:
        """True if training should stop."""


@final
class EvaluationTask:
    """Runs evaluation leases.

    A lease counts only when all of it is done, since states of its parts cannot be separated.
    """

    def __init__(self, step: MetricStep, context: WorkerContext) -> None:
        self._step = step
        self._context = context
        self._held: HeldLease | None = None
        self._bad = 0
        self._bad_examples: tuple[str, ...] = ()

    def run(self, loaded: Loaded) -> None:
        """Add one batch; after the last one of its lease, report the states."""
        batch = loaded.batch
        if batch.held is not self._held:
            self._begin(batch.held)
        if batch.computes:
            with self._context.gauges.timed("evaluate_ms"):
                self._step.evaluate(batch.features, batch.labels, *loaded.ready)
        self._context.gauges.count_records(batch.records)
        self._bad += batch.bad
        self._bad_examples = (*self._bad_examples, *batch.bad_examples)[:3]
        if batch.last:
            self._finish(batch.held.lease, batch.end)

    def leave(self) -> None:
        """The worker drains: the whole lease goes back."""
        self._held = None

    def _begin(self, held: HeldLease) -> None:
        self._step.reset_metrics()
        self._held, self._bad, self._bad_examples = held, 0, ()

    def _finish(self, lease: Lease, end: int) -> None:
        states = self._step.metric_states()
        advance = Advance(
            end, lease.version, None, self._bad, self._bad_examples, done=True, metrics=states
        )
        self._context.outbox.advance(lease, advance)
        self._held = None


@final
class SummaryTask:
    """Runs once per round on one worker, with the callbacks of the epoch."""

    def __init__(self, step: MetricStep, listener: RoundListener, outbox: Outbox) -> None:
        self._step = step
        self._listener = listener
        self._outbox = outbox

    def run(self, loaded: Loaded) -> None:
        """Compute values from the merged states in the lease's payload.

        Raises PermanentError if the payload is invalid.
        """
        lease = loaded.batch.held.lease
        values = self._step.metric_values(states_of(lease.payload))
        self._listener.recall(past_of(lease.payload))
        stop = self._listener.tested(lease, values)
        self._outbox.summarise(Summary(lease.round or 0, values, stop))

    def leave(self) -> None:
        """Do nothing: a summary is never partially done."""


def states_of(payload: str) -> dict[str, MetricState]:
    """Merged metric states from a SUMMARY lease.

    The payload is {"metrics": {name: [[number, ...] for each of its variables]}, ...}.
    """
    try:
        states = json.loads(payload)["metrics"]
        return {
            str(name): tuple(tuple(float(value) for value in array) for array in arrays)
            for name, arrays in states.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PermanentError(
            f"a summary lease came with {payload[:80]!r}, expected JSON of metric states: {error}"
        ) from error


def past_of(payload: str) -> tuple[PastRound, ...]:
    """The earlier rounds from a SUMMARY lease.

    The payload is {"history": [{"round", "epoch", "values": {name: number}, "loss"}, ...]}.
    """
    try:
        rounds = json.loads(payload).get("history", ())
        return tuple(
            PastRound(
                int(entry["round"]),
                int(entry["epoch"]),
                {str(name): float(value) for name, value in entry["values"].items()},
                None if entry["loss"] is None else float(entry["loss"]),
            )
            for entry in rounds
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PermanentError(
            f"a summary lease came with {payload[:80]!r}, expected JSON of earlier rounds: {error}"
        ) from error
