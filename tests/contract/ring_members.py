"""Members of a ring in one process: a step is given what other members bring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.model.module import ModelModule
from elasticdl.model.ring_model import RingModel
from elasticdl.model.ring_step import RingStep
from elasticdl.worker.ring.base import RingBroken
from elasticdl.worker.ring.reading import slice_of
from elasticdl.worker.ring.virtual_step import VirtualStep

RATE = 0.1


class Others:
    """A ring whose other members have been asked before: it has what they bring.

    Keeps what this member brings.
    """

    def __init__(self) -> None:
        self.before: Sequence[Mapping[str, np.ndarray]] = []
        self.after: Sequence[Mapping[str, np.ndarray]] = []
        self.mine: dict[str, np.ndarray] = {}
        self.breaks = False

    def reduced(self, name: str, tensor: Any) -> Any:
        return self._met(name, tensor, lambda every: np.sum(every, 0), tensor.shape)

    def gathered(self, name: str, tensor: Any) -> Any:
        return self._met(name, tensor, np.concatenate, [None, *tensor.shape[1:]])

    @contextmanager
    def guarded(self) -> Iterator[None]:
        yield
        if self.breaks:
            raise RingBroken("a peer is gone")

    def leave(self) -> None:
        """Nobody but this member brings anything."""
        self.before, self.after = [], []

    def tell(self, brought: Sequence[Mapping[str, np.ndarray]], rank: int) -> None:
        """What the others bring; `brought` has what each member brings, by rank."""
        self.before, self.after = brought[:rank], brought[rank + 1 :]

    def _met(self, name: str, tensor: Any, join: Callable[[Any], Any], shape: Any) -> Any:
        def met(mine: np.ndarray) -> Any:
            # TensorFlow takes its memory back.
            self.mine[name] = mine.copy()
            before, after = ([one[name] for one in side] for side in (self.before, self.after))
            return join([*before, self.mine[name], *after])

        # A variable made here would have the step traced a second time.
        made = tf.numpy_function(met, [tensor], tensor.dtype)
        made.set_shape(shape)
        return made


def sgd() -> keras.Optimizer:
    return keras.optimizers.SGD(RATE, momentum=0.9)


def module_of(loss: Any, build: Any, optimizer: Callable[[], Any] = sgd) -> ModelModule:
    return ModelModule("m.py", ".", build, loss, optimizer, feed_batch=lambda *_: None)


def part_of(whole: Any, rank: int, size: int) -> Any:
    count = len(whole[1])
    begin, end = slice_of(0, count, rank, size)
    if begin == end:
        return None
    return tf.nest.map_structure(lambda one: one[begin:end], whole)


class Member:
    """A member of a ring of any size. `first`: the batch at which it compiles, as a joiner does."""

    def __init__(self, module: ModelModule, first: Any, virtual: int = 0) -> None:
        self.others = Others()
        self.model = RingModel.build(module, {}, seed=5)
        self._virtual = virtual
        self.step: Any = (
            VirtualStep(self.model, self.others, virtual)
            if virtual
            else RingStep(self.model, self.others)
        )
        self.values = self.state()
        self.run(first)
        self.reset(self.values)

    def run(self, whole: Any, rank: int = 0, size: int = 1, iteration: int = 0) -> Any:
        """A step on this member's part of a minibatch."""
        parts = [None if whole is None else part_of(whole, rank, size)]
        if self._virtual:
            begin, end = slice_of(0, self._virtual, rank, size)
            parts = [part_of(whole, worker, self._virtual) for worker in range(begin, end)]
        return self.step.train(parts, rank=rank, size=size, iteration=iteration)

    def brings(self, whole: Any, rank: int, size: int, iteration: int) -> dict[str, Any]:
        """What it contributes to a step, which it does not keep."""
        kept = self.state()
        self.others.leave()
        # With virtual workers, a step cannot end without what the others bring.
        self.others.breaks = True
        with pytest.raises(RingBroken):
            self.run(whole, rank, size, iteration)
        self.others.breaks = False
        self.reset(kept)
        return dict(self.others.mine)

    def reset(self, values: Any) -> None:
        for one, value in zip(self.model.state().values(), values, strict=True):
            one.assign(value)

    def state(self) -> Any:
        return [one.numpy() for one in self.model.state().values()]


def step_of_all(members: Sequence[Member], whole: Any, iteration: int) -> list[Any]:
    """First each alone, to learn what it brings; then all, each with what the others bring."""
    size = len(members)
    brought = [member.brings(whole, rank, size, iteration) for rank, member in enumerate(members)]
    outcomes = []
    for rank, member in enumerate(members):
        member.others.tell(brought, rank)
        outcomes.append(member.run(whole, rank, size, iteration))
    return outcomes
