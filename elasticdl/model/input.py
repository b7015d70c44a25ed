"""Turn windows of records into batches of tensors with the user's `feed`.

Each window goes through `feed` as a dataset of exactly its records, inside one compiled function.
No Python runs per record, no tf.data thread outlives a window, and a minibatch is exactly what
`feed` makes of its window.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
import tensorflow as tf

from elasticdl.data.base import Metadata, Records
from elasticdl.errors import UserError
from elasticdl.model.bad_record_filter import RecordsRefused
from elasticdl.model.mode import Mode
from elasticdl.model.module import ModelModule
from elasticdl.model.structure import Structure, input_specs
from elasticdl.model.traced_function import TracedFunction
from elasticdl.model.usercode import described, innermost, place, summary, user_code, wrong_result
from elasticdl.shard import Task

_ALL = 1 << 30
"""A batch size that no window reaches: a window becomes one batch, even if `feed` adds to it."""

_PADDED_PER_RECORD = 64

_ENDLESS = "feed returned an infinite dataset"

_OF_RECORDS = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.DataLossError,
    tf.errors.OutOfRangeError,
    tf.errors.UnknownError,
)
"""What TensorFlow operations raise for bad values, but not for lack of memory, for example."""


@final
class Feeder:
    """`feed` of one task as a compiled function of one window; traced once for each type of window.

    Releases the GIL while it runs. Leaves are eager TensorFlow tensors; elements of unequal shape
    are padded with zeros (or "").

    Raises:
        RecordsRefused: an operation of `feed` fails on the records' contents.
        UserError: `feed` raises anything else, or does not return (features, labels).
    """

    def __init__(self, module: ModelModule, task: Task, metadata: Metadata) -> None:
        self._module = module
        self._mode = Mode.of(task)
        self._metadata = metadata
        self._traced: dict[tuple[Any, ...], TracedFunction] = {}

    def __call__(self, window: Records) -> tuple[Structure, Structure] | None:
        """(features, labels) of a window, or None if `feed` keeps nothing.

        Labels are None in prediction.
        """
        tensors = _tensors(window)
        with user_code(self._name(), self._module.zoo):
            traced = self._function(window, tensors)
            try:
                fed = traced.structured(tensors)
            except _OF_RECORDS as error:
                if "Dataset was empty" in str(error):
                    return None
                if _ENDLESS in str(error):
                    raise UserError(
                        f"{place(feed_of(self._module))}: {_ENDLESS}",
                        hint="remove repeat() from feed; --num-epochs repeats the data",
                    ) from error
                raise self._refused(error) from error
        return self._split(fed)

    def open_features(self) -> Structure | None:
        """Specs of the features of any window, or None before the first window.

        Lengths that `feed` leaves open are unknown.
        """
        if not self._traced:
            return None
        fed = next(iter(self._traced.values())).outputs
        return input_specs(fed[0] if isinstance(fed, tuple) and len(fed) == 2 else fed)

    def _refused(self, error: Exception) -> RecordsRefused:
        whole = described(error, self._name(), self._module.zoo)
        where = innermost(error, self._module.zoo) or place(feed_of(self._module))
        return RecordsRefused(
            whole.message, hint=whole.hint, reason=summary(error, self._name()), where=where
        )

    def _name(self) -> str:
        return "feed" if self._module.feed_batch is None else "feed_batch"

    def _function(self, window: Records, tensors: Structure) -> TracedFunction:
        """The function of windows like this one, which has been converted to `tensors`."""
        key = _form(window)
        traced = self._traced.get(key)
        if traced is not None:
            return traced
        specs = tf.nest.map_structure(
            # The number of records stays open: halves of a window must not cause a new trace.
            lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype),
            tensors,
        )
        body = (
            self._records_by_dataset if self._module.feed_batch is None else self._records_at_once
        )
        with warnings.catch_warnings():
            # Random operations of `feed` differ by window, as they should; TensorFlow warns
            # that they depend on the job's seed.
            warnings.filterwarnings("ignore", "Seed .* from outer graph", UserWarning)
            traced = TracedFunction(tf.function(body).get_concrete_function(specs))
        return self._traced.setdefault(key, traced)

    def _records_by_dataset(self, records: Structure) -> Structure:
        # AutoGraph takes 0.05 s in each process to convert what is not left out here.
        assert self._module.feed is not None
        dataset = tf.data.Dataset.from_tensor_slices(records)
        return self._one_batch(records, self._module.feed(dataset, self._mode, self._metadata))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _one_batch(self, records: Structure, dataset: object) -> Structure:
        """All elements that `feed` made of these records, as one batch."""
        if not isinstance(dataset, tf.data.Dataset):
            assert self._module.feed is not None
            raise wrong_result(self._module.feed, "feed", dataset, "a tf.data.Dataset")
        count = tf.shape(tf.nest.flatten(records)[0], tf.int64)[0]
        ends = tf.debugging.assert_none_equal(
            dataset.cardinality(),
            tf.constant(tf.data.INFINITE_CARDINALITY, tf.int64),
            message=_ENDLESS,
        )
        # An infinite dataset would fill the memory, so the check must run before the batch.
        with tf.control_dependencies([ends]):
            return _batched(dataset, count).get_single_element()

    def _records_at_once(self, records: Structure) -> Structure:
        assert self._module.feed_batch is not None
        return self._module.feed_batch(records, self._mode, self._metadata)

    def _split(self, fed: Structure) -> tuple[Structure, Structure] | None:
        pair = isinstance(fed, tuple) and len(fed) == 2
        if self._mode is not Mode.PREDICTION and not pair:
            shown = f"a tuple of {len(fed)}" if isinstance(fed, tuple) else type(fed).__name__
            raise UserError(
                f"{place(feed_of(self._module))}: {self._name()} returned {shown} in mode"
                f" {self._mode}, expected (features, labels)",
                hint=(
                    "sample weights are unsupported; put them into the labels, for example as a"
                    " dict, and use them in loss and metrics"
                    if isinstance(fed, tuple) and len(fed) == 3
                    else "return a pair for each example; only in mode prediction features alone"
                ),
            )
        features, labels = fed if pair else (fed, None)
        if _length(features) == 0:
            return None
        return features, None if self._mode is Mode.PREDICTION else labels


def _form(window: Records) -> tuple[Any, ...]:
    """What windows with one function have in common: names, types and shapes of records."""
    columns = window.items() if isinstance(window, Mapping) else [("", window)]
    return tuple(
        # Text of any length is one type of tensor. TensorFlow takes no other objects.
        (name, "text" if column.dtype.kind in "OSU" else column.dtype, column.shape[1:])
        for name, column in columns
    )


def feed_of(module: ModelModule) -> Callable[..., Any]:
    """The module's `feed_batch`, or its `feed` if it has no `feed_batch`."""
    feed = module.feed_batch or module.feed
    assert feed is not None
    return feed


def _batched(dataset: tf.data.Dataset, records: Structure) -> tf.data.Dataset:
    """All elements as one batch, padded where their shapes may differ.

    TensorFlow reserves memory for as many elements as a padded batch may have. The bound is a
    generous estimate of the elements that `feed` makes of one record.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    if all(
        isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None for spec in specs
    ) and not all(spec.shape.is_fully_defined() for spec in specs):
        return dataset.padded_batch(records * _PADDED_PER_RECORD)
    return dataset.batch(_ALL)


def _tensors(window: Records) -> Structure:
    if isinstance(window, Mapping):
        return {name: tf.constant(np.ascontiguousarray(column)) for name, column in window.items()}
    return tf.constant(window)


def grouping(batch: tuple[Structure, Structure], records: int) -> str:
    """A hint if `feed` seems to have batched these `records` records itself, else ''."""
    shapes = [leaf.shape.as_list() for leaf in tf.nest.flatten(batch) if leaf is not None]
    if not all(len(shape) > 1 and shape[:2] == shapes[0][:2] for shape in shapes):
        return ""
    examples, size = shapes[0][:2]
    batched = examples < records and (examples - 1) * size < records <= examples * size
    return (
        f"feed batched {records} records into {examples} x {size}: remove batch() from feed,"
        " since each element becomes one example of a minibatch"
        if batched
        else ""
    )


def _length(features: Structure) -> int | None:
    """Examples in a batch; None if there is no first axis."""
    leaves = tf.nest.flatten(features)
    return int(leaves[0].shape[0]) if leaves and leaves[0].shape.rank else None
