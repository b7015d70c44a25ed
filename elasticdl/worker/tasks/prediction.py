"""Prediction leases: outputs go to the module's processor, or into files below `--output`.

A file holds the predictions of one attempt's part of a shard. It appears only when it is complete,
and only then is that part reported. The next attempt begins where it ends, so that each record is
in exactly one file. A part that an earlier attempt wrote but could not report is replaced: a new
part removes those of its shard that begin at or after its own beginning. A worker that was given up
and writes after its successor removes nothing, since attempts are numbered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from elasticdl.errors import PermanentError
from elasticdl.model.output_arrays import file_arrays, for_processor
from elasticdl.model.usercode import user_code
from elasticdl.rpc.parameters import Pulled
from elasticdl.shard import Lease
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.leases import HeldLease
from elasticdl.worker.pipeline.outbox import Advance
from elasticdl.worker.pipeline.trainer import Batch, Loaded
from elasticdl.worker.tasks.prediction_files import PartName, PredictionFiles, parts_from

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.model.step import Lookups
    from elasticdl.model.structure import Structure


class PredictingStep(Protocol):
    """The methods of `model.step.CompiledStep` that prediction needs."""

    def predict(self, features: Structure, lookups: Lookups, pulled: Pulled) -> Structure:
        """The model's outputs as NumPy arrays."""


class Sink(Protocol):
    """The destination of predictions."""

    def take(self, batch: Batch, outputs: Structure | None) -> None:
        """Take the predictions of a batch, None if it has no records.

        Reports progress to the outbox.
        """

    def leave(self) -> None:
        """The worker drains: report what is done of the current lease."""


@final
class PredictionTask:
    """Runs prediction leases."""

    def __init__(self, step: PredictingStep, sink: Sink, context: WorkerContext) -> None:
        self._step = step
        self._sink = sink
        self._context = context

    def run(self, loaded: Loaded) -> None:
        batch = loaded.batch
        outputs = None
        if batch.computes:
            with self._context.gauges.timed("predict_ms"):
                outputs = self._step.predict(batch.features, *loaded.ready)
        self._context.gauges.count_records(batch.records)
        self._sink.take(batch, outputs)

    def leave(self) -> None:
        """The worker drains."""
        self._sink.leave()


class Processor(Protocol):
    """`PredictionOutputsProcessor` of a model module."""

    def process(self, predictions: Structure, worker_id: int) -> Any:  # noqa: ANN401 - the user's; it is not used
        """Process the predictions of one batch."""


@final
class ProcessorSink:
    """Passes predictions to the module's processor, batch by batch.

    After a worker is killed, its last minibatch may be processed twice.
    """

    def __init__(
        self, processor: Processor, zoo: str, worker_id: int, context: WorkerContext
    ) -> None:
        self._processor = processor
        self._zoo = zoo
        self._worker_id = worker_id
        self._context = context

    def take(self, batch: Batch, outputs: Structure | None) -> None:
        if outputs is not None:
            with user_code("PredictionOutputsProcessor.process", self._zoo):
                self._processor.process(for_processor(outputs), self._worker_id)
        lease = batch.held.lease
        advance = Advance(
            batch.end, lease.version, None, batch.bad, batch.bad_examples, done=batch.last
        )
        self._context.outbox.advance(lease, advance)

    def leave(self) -> None:
        """Do nothing: everything processed is already reported."""


@final
class FileSink:
    """Writes `predictions-SHARD-BEGIN-END.npz`; the files' names sort in the data's order.

    A file is a plain NumPy archive. It has one array for each output of the model (`predictions`,
    or the outputs' own names; nested ones as `outer/inner`), with the example as first axis. It
    also describes the records: `source` (text), and `first_record`, `begin` and `end` (int64),
    which say that they are records [first_record + begin, first_record + end) of it. `attempt`
    (int64) is the number of the attempt. There are fewer examples than records if `feed` dropped
    some, or if some were unreadable.
    """

    def __init__(self, files: PredictionFiles, context: WorkerContext) -> None:
        self._files = files
        self._context = context
        self._held: HeldLease | None = None
        self._batches: list[Batch] = []
        self._outputs: list[dict[str, NDArray[Any]]] = []

    def take(self, batch: Batch, outputs: Structure | None) -> None:
        """See `Sink.take`.

        Raises PermanentError if a file cannot be written, or cannot hold the outputs, and
        TransientError if the object store stays unavailable.
        """
        if batch.held is not self._held:
            self._held, self._batches, self._outputs = batch.held, [], []
        self._batches.append(batch)
        if outputs is not None:
            arrays = file_arrays(outputs, batch.features)
            if self._outputs:
                _check_shapes(self._outputs[0], arrays)
            self._outputs.append(arrays)
        if batch.last:
            self._write(batch.held)

    def leave(self) -> None:
        """See `Sink.leave`. Raises as `take`."""
        if self._held is not None and self._batches and not self._is_replaced(self._held.lease):
            self._write(self._held)

    def _is_replaced(self, lease: Lease) -> bool:
        """Whether a later attempt has written this part, or more of it."""
        return any(
            self._files.attempt(name) > lease.attempt for name in parts_from(self._files, lease)
        )

    def _write(self, held: HeldLease) -> None:
        lease, last = held.lease, self._batches[-1]
        assert lease.shard is not None
        names = self._outputs[0] if self._outputs else {}
        arrays = {
            name: np.concatenate([outputs[name] for outputs in self._outputs]) for name in names
        }
        of_records = {
            "first_record": lease.shard.begin,
            "begin": lease.offset,
            "end": last.end,
            "attempt": lease.attempt,
        }
        about = {"source": lease.shard.source, **of_records}
        name = PartName(lease.shard.id, lease.offset, last.end)
        values = {**arrays, **{name: np.asarray(value) for name, value in about.items()}}
        self._files.write(name, values, lease.attempt)
        try:
            for other in parts_from(self._files, lease):
                if other != name:
                    self._files.remove(other)
            self._files.remove_unfinished(lease.shard.id, lease.attempt)
        except OSError as error:
            raise PermanentError(
                f"cannot replace earlier parts of {name}: {error.strerror or error}",
                hint="check --output",
            ) from error
        bad = sum(batch.bad for batch in self._batches)
        examples = tuple(text for batch in self._batches for text in batch.bad_examples)[:3]
        self._context.outbox.advance(
            lease, Advance(last.end, lease.version, None, bad, examples, done=last.last)
        )
        self._held, self._batches, self._outputs = None, [], []


def _check_shapes(before: Mapping[str, NDArray[Any]], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise PermanentError if examples of this batch differ in shape from those before."""
    for name, array in arrays.items():
        shape, earlier = array.shape[1:], before[name].shape[1:]
        if shape != earlier:
            raise PermanentError(
                f"the output {name!r} has examples of shape {shape}, after {earlier} in another"
                " batch: a file needs one shape",
                hint="return the same shape for each batch",
            )
