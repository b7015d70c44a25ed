"""Calls of traced functions without a check of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.structure import Structure

_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


@final
class TracedFunction:
    """A concrete function, called without TensorFlow's check of its arguments.

    That check takes as long as a small step, and longer than most functions `feed_batch`.
    """

    def __init__(self, function: Any) -> None:  # noqa: ANN401 - TensorFlow has no types
        self.outputs: Structure = function.structured_outputs
        self._compiled = function.inference_fn
        self._captured = list(function.captured_inputs)

    def __call__(self, *flat: Tensor) -> Sequence[Tensor]:
        """The flat outputs for these leaves of its arguments."""
        outputs: Sequence[Tensor] = self._compiled.call_flat(*flat, *self._captured)
        return outputs

    def structured(self, tensors: Structure) -> Structure:
        """The outputs for these tensors, which must be of the structure that was traced."""
        return self._compiled.call_preflattened([*tf.nest.flatten(tensors), *self._captured])


def runs_python(function: Any) -> bool:  # noqa: ANN401 - TensorFlow has no types
    """Whether a concrete function calls Python (`tf.numpy_function`, `tf.py_function`)."""
    graph = function.graph.as_graph_def()
    nodes = [graph.node, *(called.node_def for called in graph.library.function)]
    return any(node.op in _PYTHON for part in nodes for node in part)
