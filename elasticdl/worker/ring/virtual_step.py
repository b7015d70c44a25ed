"""A step of the ring whose result has the same bits for any number of members.

The minibatch is always cut into the parts of V virtual workers, and members share these. Each part
is computed alone, by one thread for each operation. The parts are summed in a fixed tree.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Final, final

import tensorflow as tf

from elasticdl.model.contribution import Contribution, Contributions, Part, PartFunctions
from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.packing import Reducer
from elasticdl.model.ring_model import RingModel
from elasticdl.model.ring_step import RingOutcome, Update
from elasticdl.model.usercode import user_code
from elasticdl.worker.ring.reading import slice_of
from elasticdl.worker.ring.sum_tree import Node, nodes_within, sum_of

_VECTOR, _ROWS, _LOCAL = "vector", "rows", "local"


def use_one_thread() -> None:
    """Keep the order of additions within operations: it depends on their number of threads.

    Call it before TensorFlow runs anything.
    """
    tf.config.threading.set_intra_op_parallelism_threads(1)


@final
class VirtualStep:
    """A `MemberStep`. Compiles at the first batch. It belongs to one thread at a time."""

    def __init__(self, model: RingModel, ring: Reducer, virtual_workers: int) -> None:
        self._model = model
        self._ring = ring
        self._root: Final = (0, virtual_workers)
        self._contributions = Contributions(model)
        self._update = Update(model, self._contributions)
        self._kinds: list[tuple[str, str]] = []
        """Kind and name of each tensor that `_tensors` returns; known after the first trace."""
        self._functions = PartFunctions(self._contributions, self._tensors)
        self._gather: Callable[..., list[Tensor]] | None = None
        self._apply: Callable[..., list[Tensor]] | None = None
        # Operations have one thread, so parts run beside each other.
        self._pool = ThreadPoolExecutor(os.cpu_count(), "virtual worker")
        self._waits = False

    def waits(self) -> bool:
        """In `train`: this member has done its parts and waits for the others'. From any thread."""
        return self._waits

    def train(
        self, parts: Sequence[Part], *, rank: int, size: int, iteration: int, wish: bool = False
    ) -> RingOutcome:
        """Run one step on this member's parts of the minibatch: those of its virtual workers.

        `iteration` counts applied steps; random numbers depend only on it and on the virtual
        worker. `wish` asks all members for a pause.
        """
        first, _ = slice_of(*self._root, rank, size)
        # More members than virtual workers: the others only take part in the exchange.
        parts = parts or (None,)
        controls = [
            tf.constant([first + index, iteration, int(wish and index == 0), 0], tf.int64)
            for index in range(len(parts))
        ]
        with user_code("the training step", self._model.module.zoo):
            # Traced here: a trace belongs to one thread.
            functions = [self._functions.of(part) for part in parts]
            contributions = list(self._pool.map(_call, functions, controls))
            begin_s = time.monotonic()
            totals = self._summed(contributions, rank, size)
            waited_s = time.monotonic() - begin_s
            local = [
                tensor
                for (kind, _), tensor in zip(self._kinds, contributions[0], strict=True)
                if kind == _LOCAL
            ]
            return self._update.outcome(self._applied(controls[0], [*totals, *local]), waited_s)

    def _tensors(self, control: Tensor, mine: Contribution) -> list[Tensor]:
        recorder = _Recorder()
        self._update.reduced(control, mine, recorder)
        self._kinds = [*recorder.kinds, *((_LOCAL, "") for _ in mine.local)]
        return [*recorder.tensors, *(value for _, value in mine.local)]

    def _summed(self, contributions: Sequence[list[Tensor]], rank: int, size: int) -> list[Tensor]:
        """The sum over all members of each vector; rows in the order of virtual workers."""
        first, end = slice_of(*self._root, rank, size)
        mine = nodes_within(first, end, self._root)
        brought = []
        for (kind, _), column in zip(self._kinds, zip(*contributions, strict=True), strict=True):
            if kind == _VECTOR:
                leaves = {
                    (first + index, first + index + 1): leaf for index, leaf in enumerate(column)
                }
                sums = [sum_of(node, leaves, tf.add) for node in mine]
                brought.append(tf.stack(sums) if sums else tf.stack(column)[:0])
            elif kind == _ROWS:
                brought.append(tf.concat(column, 0))
        everything = self._gathered(brought)
        nodes = [
            node
            for each in range(size)
            for node in nodes_within(*slice_of(*self._root, each, size), self._root)
        ]
        shared = [kind for kind, _ in self._kinds if kind != _LOCAL]
        return [
            self._total(nodes, tensor) if kind == _VECTOR else tensor
            for kind, tensor in zip(shared, everything, strict=True)
        ]

    def _total(self, nodes: Sequence[Node], sums: Tensor) -> Tensor:
        return sum_of(self._root, dict(zip(nodes, tf.unstack(sums), strict=True)), tf.add)

    def _gathered(self, brought: Sequence[Tensor]) -> list[Tensor]:
        if self._gather is None:
            names = [name for kind, name in self._kinds if kind != _LOCAL]

            def gather(*tensors: Tensor) -> list[Tensor]:
                return [
                    self._ring.gathered(f"virtual.{name}", tensor)
                    for name, tensor in zip(names, tensors, strict=True)
                ]

            signature = [
                tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in brought
            ]
            self._gather = tf.function(gather, input_signature=signature, autograph=False)
        self._waits = True
        try:
            with self._ring.guarded():
                return list(self._gather(*brought))
        finally:
            self._waits = False

    def _applied(self, control: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
        if self._apply is None:

            def apply(control: Tensor, *flat: Tensor) -> list[Tensor]:
                totals, values = flat[: len(names)], flat[len(names) :]
                sums = self._update.reduced(
                    control,
                    self._contributions.nothing(),
                    _Totals(dict(zip(names, totals, strict=True))),
                )
                local = list(zip(self._contributions.local, values, strict=True))
                return self._update.applied(sums, local)

            names = [name for kind, name in self._kinds if kind != _LOCAL]
            rows = {index for index, (kind, _) in enumerate(self._kinds) if kind == _ROWS}
            signature = [
                tf.TensorSpec(
                    [None, *tensor.shape[1:]] if index in rows else tensor.shape, tensor.dtype
                )
                for index, tensor in enumerate(tensors)
            ]
            self._apply = tf.function(
                apply,
                input_signature=[tf.TensorSpec([4], tf.int64), *signature],
                autograph=False,
            )
        return list(self._apply(control, *tensors))


def _call(function: Callable[[Tensor], list[Tensor]], control: Tensor) -> list[Tensor]:
    return function(control)


@final
class _Recorder:
    """A `Reducer` that only notes what is to be reduced."""

    def __init__(self) -> None:
        self.kinds: list[tuple[str, str]] = []
        self.tensors: list[Tensor] = []

    def reduced(self, name: str, tensor: Tensor) -> Tensor:
        return self._noted(_VECTOR, name, tensor)

    def gathered(self, name: str, tensor: Tensor) -> Tensor:
        return self._noted(_ROWS, name, tensor)

    def guarded(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _noted(self, kind: str, name: str, tensor: Tensor) -> Tensor:
        self.kinds.append((kind, name))
        self.tensors.append(tensor)
        return tensor


@final
class _Totals:
    """A `Reducer` whose results are known."""

    def __init__(self, totals: dict[str, Tensor]) -> None:
        self._totals = totals

    def reduced(self, name: str, tensor: Tensor) -> Tensor:
        return self._totals[name]

    def gathered(self, name: str, tensor: Tensor) -> Tensor:
        return self._totals[name]

    def guarded(self) -> AbstractContextManager[None]:
        return nullcontext()
