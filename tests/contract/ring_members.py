"""Members of a ring in one process: a step hears from variables what other members bring."""

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
    """A ring whose other members have been asked before: what they bring is in variables.

    Keeps what this member brings.
    """

    def __init__(self) -> None:
        self.before: dict[str, tf.Variable] = {}
        self.after: dict[str, tf.Variable] = {}
        self.mine: dict[str, tf.Variable] = {}
        self.breaks = False

    def reduced(self, name: str, tensor: Any) -> Any:
        self._make(name, tensor, np.zeros(tensor.shape, tensor.dtype.as_numpy_dtype), tensor.shape)
        self.mine[name].assign(tensor)
        return self.before[name] + tensor + self.after[name]

    def gathered(self, name: str, tensor: Any) -> Any:
        self._make(
            name,
            tensor,
            np.zeros([0, *tensor.shape[1:]], tensor.dtype.as_numpy_dtype),
            [None, *tensor.shape[1:]],
        )
        self.mine[name].assign(tensor)
        return tf.concat([self.before[name], tensor, self.after[name]], 0)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        yield
        if self.breaks:
            raise RingBroken("a peer is gone")

    def leave(self) -> None:
        """Nobody but this member brings anything."""
        for place in (self.before, self.after):
            for one in place.values():
                one.assign(tf.zeros_like(one) if one.shape.is_fully_defined() else one[:0])

    def _make(self, name: str, tensor: Any, value: Any, shape: Any) -> None:
        if name not in self.mine:
            with tf.init_scope():
                for place in (self.before, self.after, self.mine):
                    place[name] = tf.Variable(value, shape=shape, trainable=False)

    def tell(self, brought: Sequence[Mapping[str, Any]], rank: int) -> None:
        """What the others bring; `brought` has what each member brings, by rank."""
        for name, mine in self.mine.items():
            for place, others in (
                (self.before, [one[name] for one in brought[:rank]]),
                (self.after, [one[name] for one in brought[rank + 1 :]]),
            ):
                nothing = np.zeros_like(place[name].numpy())
                if mine.shape.is_fully_defined():
                    place[name].assign(sum(others, nothing))
                else:
                    place[name].assign(np.concatenate([nothing[:0], *others]))


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
        return {name: one.numpy() for name, one in self.others.mine.items()}

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
