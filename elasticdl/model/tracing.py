"""Trace the functions of a step as TensorFlow graphs.

Each takes flat lists of tensors and returns one, so that a call of it is one call into TensorFlow.

Weights are not variables here. The flat vector is an argument, its pieces replace the Keras
variables (Keras's `StatelessScope`), and an assignment by a layer comes back as a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import keras
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator

from elasticdl.errors import UserError
from elasticdl.formatting import amount
from elasticdl.model import embedding_hooks
from elasticdl.model.building import outputs_of
from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.gradients import GradientLayout, LookedUp, StepGradients
from elasticdl.model.ids import LookupSite
from elasticdl.model.metrics import Metrics
from elasticdl.model.module import ModelModule
from elasticdl.model.ps_model import PsModel
from elasticdl.model.structure import Structure
from elasticdl.model.traced_function import TracedFunction, runs_python
from elasticdl.model.usercode import place, user_code

Function: TypeAlias = Callable[..., Any]
"""A concrete function of flat tensors."""


@final
@dataclass(frozen=True, slots=True)
class Batches:
    """The form of batches: type specs of features and labels (`()`: none), and the lookups."""

    features: Structure
    labels: Structure
    sites: tuple[LookupSite, ...]

    def arguments(self, ps_model: PsModel) -> list[tf.TensorSpec]:
        """Specs of dense, rows per table, positions per id array, version, features, labels."""
        shapes = {site.array: site.shape for site in self.sites}
        if sorted(shapes) != list(range(len(shapes))):
            raise ValueError(f"id arrays are not numbered from 0: {sorted(shapes)}")
        parameters = ps_model.parameters
        return [
            tf.TensorSpec(
                [parameters.trainable_size + parameters.additive_size], parameters.dtype.value
            ),
            *(
                tf.TensorSpec([None, table.dim], parameters.dtype.value)
                for table in parameters.tables
            ),
            *(tf.TensorSpec(shapes[array], tf.int32) for array in range(len(shapes))),
            tf.TensorSpec([], tf.int64),
            *tf.nest.flatten(self.features, expand_composites=True),
            *tf.nest.flatten(self.labels, expand_composites=True),
        ]


@final
@dataclass(slots=True)
class _Inputs:
    """The arguments of a call, and the intermediate values of one forward pass."""

    dense: Tensor
    rows: list[Tensor]
    positions: list[Tensor]
    version: Tensor
    features: Structure
    labels: Structure
    pieces: list[Tensor] = field(default_factory=list)
    looked_up: list[Tensor] = field(default_factory=list)


@final
class Tracer:
    """Makes the functions of one model for one form of batches."""

    def __init__(
        self, ps_model: PsModel, module: ModelModule, metrics: Metrics, batches: Batches
    ) -> None:
        self._ps_model = ps_model
        self._module = module
        self._metrics = metrics
        self._batches = batches

    def trained(
        self, schedule: keras.optimizers.schedules.LearningRateSchedule | None
    ) -> tuple[Function, GradientLayout]:
        """The training function, and where gradients are in its results.

        -> [loss, number of values in its mean, flat gradient and differences, what the layout says,
        learning rate if `schedule`].
        """
        layouts: list[GradientLayout] = []

        def step(*flat: Tensor) -> list[Tensor]:
            inputs = self._inputs(flat)
            # Weights are pieces of an argument, not variables, so they are watched explicitly.
            tape = tf.GradientTape(watch_accessed_variables=False)
            with tape:
                self._cut_dense(inputs)
                tape.watch(
                    [
                        *inputs.pieces[: self._trainable],
                        *(inputs.rows[table] for table in self._regularised),
                    ]
                )
                scope, outputs, losses = self._forward(inputs, training=True, watch=tape.watch)
                loss, examples = self._mean_loss(inputs, outputs, losses)
            trainable = inputs.pieces[: self._trainable]
            regularised = [inputs.rows[table] for table in self._regularised]
            sources = [*trainable, *inputs.looked_up, *regularised]
            connected = _connected(tape.gradient(loss, sources), sources, self._module)
            gradients, rows = self._gradients(inputs, connected, layouts)
            differences = [
                scope.get_current_value(self._ps_model.variables[index]) - piece
                for index, piece in list(enumerate(inputs.pieces))[self._trainable :]
            ]
            self._keep_local_state(scope)
            flat_gradient = tf.concat(
                [
                    tf.cast(tf.reshape(part, [-1]), self._dtype)
                    for part in [*gradients, *differences]
                ]
                or [inputs.dense],
                0,
            )
            rate = [tf.cast(schedule(inputs.version), self._dtype)] if schedule is not None else []
            return [loss, tf.cast(examples, tf.float32), flat_gradient, *rows, *rate]

        function = self._traced(step)
        return function, layouts[-1]

    def evaluated(self) -> Function:
        """The evaluation function. It adds a batch to the metrics; -> [loss]."""

        def step(*flat: Tensor) -> list[Tensor]:
            inputs = self._inputs(flat)
            self._cut_dense(inputs)
            _, outputs, losses = self._forward(inputs, training=False)
            loss, _ = self._mean_loss(inputs, outputs, losses)
            leaf = tf.nest.flatten(outputs, expand_composites=True)[0]
            self._metrics.update(
                inputs.labels, outputs, loss, tf.cast(tf.shape(leaf)[0], tf.float32)
            )
            return [loss]

        return self._traced(step)

    def predicted(self) -> tuple[Function, Structure]:
        """The prediction function (-> flat outputs).

        The second value is its outputs' specs, in the model's structure.
        """
        structure: list[Structure] = []

        def step(*flat: Tensor) -> list[Tensor]:
            inputs = self._inputs(flat)
            self._cut_dense(inputs)
            _, outputs, _ = self._forward(inputs, training=False)
            _check_keys(outputs, self._module)
            structure.append(outputs)
            return list(tf.nest.flatten(outputs))

        function = self._traced(step)
        self._check_dense(structure[-1])
        return function, tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), structure[-1]
        )

    def _check_dense(self, outputs: Structure) -> None:
        leaves, where = tf.nest.flatten(outputs), place(self._module.custom_model)
        if not leaves:
            raise UserError(f"{where}: the model of custom_model returns no outputs")
        for leaf in leaves:
            if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
                raise UserError(
                    f"{where}: the model of custom_model returns a {type(leaf).__name__}",
                    hint="return dense tensors: outputs.to_tensor(shape=[None, WIDTH]), or"
                    " tf.sparse.to_dense(outputs)",
                )

    @property
    def _dtype(self) -> str:
        """The type of the flat vectors, the rows and the loss."""
        return self._ps_model.parameters.dtype.value

    @property
    def _trainable(self) -> int:
        return sum(not spec.additive for spec in self._ps_model.parameters.dense)

    @property
    def _regularised(self) -> list[int]:
        return [
            table
            for table, layer in enumerate(self._ps_model.tables)
            if layer.embeddings_regularizer is not None
        ]

    def _traced(self, step: Callable[..., list[Tensor]]) -> Function:
        signature = self._batches.arguments(self._ps_model)
        # TensorFlow traces a function twice if the first trace makes a variable, as Keras does when
        # its generator is first used.
        global_seed_generator()
        function = tf.function(
            step, input_signature=signature, autograph=False
        ).get_concrete_function()
        traced = TracedFunction(function)
        if not runs_python(function):
            return traced
        pulled = 1 + len(self._ps_model.parameters.tables)

        def call(*flat: Tensor) -> Sequence[Tensor]:
            """Copy what was pulled: TensorFlow lets Python write to the arrays of its tensors."""
            with tf.device("CPU:0"):
                copies = [tf.raw_ops.DeepCopy(x=part) for part in flat[:pulled]]
            return traced(*copies, *flat[pulled:])

        return call

    def _inputs(self, flat: Sequence[Tensor]) -> _Inputs:
        tables = len(self._ps_model.parameters.tables)
        arrays = len({site.array for site in self._batches.sites})
        # The order of `Batches.arguments`: dense, rows, positions, version, features, labels.
        version = 1 + tables + arrays
        features_end = (
            version + 1 + len(tf.nest.flatten(self._batches.features, expand_composites=True))
        )
        return _Inputs(
            dense=flat[0],
            rows=list(flat[1 : 1 + tables]),
            positions=list(flat[1 + tables : version]),
            version=flat[version],
            features=tf.nest.pack_sequence_as(
                self._batches.features, flat[version + 1 : features_end], expand_composites=True
            ),
            labels=tf.nest.pack_sequence_as(
                self._batches.labels, flat[features_end:], expand_composites=True
            ),
        )

    def _cut_dense(self, inputs: _Inputs) -> None:
        """Split the flat vector into the pieces that replace the variables."""
        specs = self._ps_model.parameters.dense
        if specs:
            cut = tf.split(inputs.dense, [spec.size for spec in specs])
            # A float32 variable beside float64 ones is float64 on the servers.
            inputs.pieces = [
                tf.cast(tf.reshape(piece, spec.shape), variable.dtype)
                for piece, spec, variable in zip(cut, specs, self._ps_model.variables, strict=True)
            ]

    def _forward(
        self, inputs: _Inputs, *, training: bool, watch: Callable[[Tensor], None] | None = None
    ) -> tuple[keras.StatelessScope, Structure, list[Tensor]]:
        def look_up(table: int, _: Tensor) -> Tensor:
            number = len(inputs.looked_up)
            self._check_site(number, table)
            rows = tf.gather(
                # The gradient ends at the looked-up rows: through the gather it would be slices.
                tf.stop_gradient(inputs.rows[table]),
                inputs.positions[self._batches.sites[number].array],
            )
            if watch is not None:
                watch(rows)
            inputs.looked_up.append(rows)
            return rows

        mapping = list(zip(self._ps_model.variables, inputs.pieces, strict=True))
        mapping += self._kept_here()
        with (
            keras.StatelessScope(mapping, collect_losses=True) as scope,
            embedding_hooks.lookups(look_up),
        ):
            outputs = outputs_of(
                self._ps_model.model, inputs.features, self._module, training=training
            )
            losses = list(self._ps_model.model.losses)
        if len(inputs.looked_up) != len(self._batches.sites):
            raise UserError(
                f"the model looks up embeddings {amount(len(inputs.looked_up), 'time')} with"
                f" training={training}, but {amount(len(self._batches.sites), 'time')} while its"
                " ids are traced",
                hint="call the same embedding layers in the same order for any value of `training`",
            )
        losses += [
            tf.cast(
                self._ps_model.tables[table].embeddings_regularizer(inputs.rows[table]), self._dtype
            )
            for table in self._regularised
        ]
        return scope, outputs, losses

    def _kept_here(self) -> list[tuple[Any, Tensor]]:
        """Regularised weights that no server holds: Keras looks for them in the scope only."""
        held = {id(variable) for variable in self._ps_model.variables}
        kept = [
            variable
            for variable in self._ps_model.model.trainable_variables
            if id(variable) not in held and variable.regularizer is not None
        ]
        return [(variable, tf.convert_to_tensor(variable.value)) for variable in kept]

    def _check_site(self, number: int, table: int) -> None:
        sites = self._batches.sites
        if number >= len(sites) or sites[number].table != table:
            raise UserError(
                f"the model calls embedding layer {self._ps_model.tables[table].name!r} in another"
                " order than while its ids are traced",
                hint="call the same embedding layers in the same order for any value of `training`",
            )

    def _mean_loss(
        self, inputs: _Inputs, outputs: Structure, losses: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Mean of the user's loss, plus the losses of layers and regularizers.

        The second is the number of values in the mean; for a scalar loss, which hides it, that of
        the examples.
        """
        with user_code("loss", self._module.zoo, self._module.loss):
            value = tf.cast(self._module.loss(inputs.labels, outputs), self._dtype)
        if value.shape.rank != 0:
            value, count = tf.reduce_mean(value), tf.size(value)
        else:
            leaf = tf.nest.flatten(outputs, expand_composites=True)[0]
            count = tf.shape(leaf)[0]
        more = [tf.cast(tf.reduce_sum(loss), self._dtype) for loss in losses]
        return (tf.add_n([value, *more]) if more else value), count

    def _gradients(
        self, inputs: _Inputs, gradients: Sequence[Any], layouts: list[GradientLayout]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients of dense variables, and what follows them; notes the layout of the latter."""
        rows = LookedUp(inputs.rows, inputs.positions, self._batches.sites)
        dense, lookups = self._trainable, self._trainable + len(inputs.looked_up)
        made = StepGradients.of(
            self._ps_model,
            rows,
            gradients[:dense],
            gradients[dense:lookups],
            dict(zip(self._regularised, gradients[lookups:], strict=True)),
        )
        results, layout = made.results()
        layouts.append(layout)
        return made.sums(), results

    def _keep_local_state(self, scope: keras.StatelessScope) -> None:
        """Assign seeds and counters: they stay in this process."""
        theirs = {id(variable_served) for variable_served in self._ps_model.variables}
        # Layers without a seed draw from the global generator, which is not among the variables.
        for variable in (*self._ps_model.model.variables, global_seed_generator().state):
            value = None if id(variable) in theirs else scope.get_current_value(variable)
            if value is not None:
                variable.assign(value)


def _check_keys(outputs: Structure, module: ModelModule) -> None:
    """Raise UserError for a dict whose keys have no order; TensorFlow sorts the leaves by them."""
    if isinstance(outputs, Mapping):
        kinds = {type(key): key for key in outputs}
        if len(kinds) > 1:
            raise UserError(
                f"{place(module.custom_model)}: the model returns a dict with keys of several"
                f" types: {', '.join(map(repr, kinds.values()))}",
                hint="name all outputs with strings",
            )
        outputs = list(outputs.values())
    if isinstance(outputs, (list, tuple)):
        for part in outputs:
            _check_keys(part, module)


def _connected(
    gradients: Sequence[Tensor | None], sources: Sequence[Tensor], module: ModelModule
) -> list[Tensor]:
    """Replace gradients of sources that the loss does not depend on by zeros.

    Raises UserError if it depends on none.
    """
    if sources and all(gradient is None for gradient in gradients):
        raise UserError(
            f"{place(module.loss)}: no weight has a gradient: the loss does not depend on any"
            " trainable weight",
            hint=(
                "rounding, argmax, casts to integers and NumPy between weights and loss stop"
                " gradients"
            ),
        )
    return [
        tf.zeros_like(source) if gradient is None else gradient
        for gradient, source in zip(gradients, sources, strict=True)
    ]
