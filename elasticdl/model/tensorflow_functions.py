"""Have TensorFlow functions take Keras' symbolic tensors, as in Keras 2: import this in a module.

Keras 3 refuses them: `tf.reshape(keras.Input((4,)), [-1])` needs a layer around it, or `keras.ops`.
After `import elasticdl.model.tensorflow_functions` such a call adds a node to the functional model,
which calls the same function. Calls without a symbolic tensor are as before.

Only functions without side effects do: those of arrays, mathematics, neural networks and strings. A
model from a file may name no other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, final

import keras
import tensorflow as tf

from elasticdl.model.structure import Structure

_MODULES: Final = frozenset(
    f"tensorflow.python.ops.{name}"
    for name in (
        "array_ops",
        "array_ops_stack",
        "clip_ops",
        "gen_array_ops",
        "gen_math_ops",
        "gen_nn_ops",
        "gen_string_ops",
        "linalg_ops",
        "math_ops",
        "nn_impl",
        "nn_ops",
        "special_math_ops",
        "string_ops",
    )
)
"""Where TensorFlow has functions without side effects."""


def _public() -> Mapping[str, Callable[..., Any]]:
    """These functions by their names below `tf`."""
    spaces = {"": tf, "math.": tf.math, "nn.": tf.nn, "linalg.": tf.linalg, "strings.": tf.strings}
    return {
        f"{prefix}{name}": function
        for prefix, space in spaces.items()
        for name, function in vars(space).items()
        if inspect.isfunction(function) and inspect.unwrap(function).__module__ in _MODULES
    }


_FUNCTIONS: Final = _public()
_NAMES: Final = {inspect.unwrap(function): name for name, function in _FUNCTIONS.items()}
"""By the function without decorators: a dispatcher gets another one than `tf` has."""


@keras.saving.register_keras_serializable("elasticdl")
@final
class TensorFlowFunction(keras.Operation):  # type: ignore[misc]  # Keras has no types
    """A node of a functional model that calls `tf.FUNCTION`. Raises ValueError for other names."""

    def __init__(self, function: str, name: str | None = None) -> None:
        super().__init__(name=name)
        if function not in _FUNCTIONS:
            raise ValueError(f"tf.{function} is not one of the functions that a model may call")
        self.function = function

    def call(self, *args: Structure, **kwargs: Structure) -> Structure:
        return _FUNCTIONS[self.function](*args, **kwargs)

    def compute_output_spec(self, *args: Structure, **kwargs: Structure) -> Structure:
        """Shapes and types, found by a call in a graph that is thrown away.

        A function that takes no sparse tensor refuses one here.
        """

        def dense(leaf: Structure) -> Structure:
            if not isinstance(leaf, keras.KerasTensor) or _is_sparse(leaf):
                return leaf
            return keras.KerasTensor(leaf.shape, leaf.dtype)

        args, kwargs = keras.tree.map_structure(dense, (args, kwargs))
        return super().compute_output_spec(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Keras's config."""
        return {"function": self.function, "name": self.name}


def _is_sparse(tensor: keras.KerasTensor) -> bool:
    """Whether an input or a layer made it sparse, or what it is computed of.

    Keras marks the product of a number and a dense tensor as sparse, too.
    """
    todo, seen = [tensor], set()
    while todo:
        node = todo.pop()
        if not node.sparse or id(node) in seen:
            continue
        seen.add(id(node))
        history = getattr(node, "_keras_history", None)
        if history is None or isinstance(history.operation, keras.layers.Layer):
            return True
        todo += history.operation._inbound_nodes[history.node_index].input_tensors
    return False


@final
class _OfSymbolicTensors(tf.__internal__.dispatch.GlobalOpDispatcher):  # type: ignore[misc]
    """TensorFlow asks it after a function has refused its arguments."""

    def handle(
        self, op: Callable[..., Any], args: tuple[Structure, ...], kwargs: dict[str, Structure]
    ) -> Structure:
        """A symbolic tensor, or NOT_SUPPORTED."""
        function = _NAMES.get(inspect.unwrap(op))
        leaves = tf.nest.flatten((args, kwargs))
        if function is None or not any(isinstance(leaf, keras.KerasTensor) for leaf in leaves):
            return self.NOT_SUPPORTED
        return TensorFlowFunction(function)(*args, **kwargs)


_OfSymbolicTensors().register()
