"""Callbacks of an evaluation round on a ring run on one member, so their changes are undone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

from elasticdl.model.ring_model import RingModel
from elasticdl.shard import Lease
from elasticdl.worker.tasks.callbacks import JobCallbacks
from elasticdl.worker.tasks.evaluation import PastRound


@final
class RingRounds:
    """A `RoundListener`.

    A learning rate that a callback sets counts: this is rank 0, whose rate all members use.
    """

    def __init__(self, callbacks: JobCallbacks, model: RingModel) -> None:
        self._callbacks = callbacks
        self._model = model

    def recall(self, rounds: Sequence[PastRound]) -> None:
        """Pass on earlier rounds; their effects are already in the state from another member."""
        with self._kept((*self._model.model.variables, *self._model.optimizer.variables)):
            self._callbacks.recall(rounds)

    def tested(self, lease: Lease, values: Mapping[str, float]) -> bool:
        """True if training should stop. Weights stay as before."""
        with self._kept(self._model.model.variables):
            return self._callbacks.tested(lease, values)

    @contextmanager
    def _kept(self, variables: Iterable[Any]) -> Iterator[None]:
        if not self._callbacks.any:
            yield
            return
        # Only one member runs these callbacks: a change that stays would make the weights differ.
        before = [(variable, variable.numpy().copy()) for variable in variables]
        yield
        for variable, value in before:
            variable.assign(value)
