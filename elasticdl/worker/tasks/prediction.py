"""Prediction leases: outputs go to the module's processor, or into files below `--output`.

A file holds the predictions of one attempt's part of a shard and is there only when it is whole;
only then is that part
reported. The next attempt begins where it ends, so each record is in exactly one file. What an
earlier attempt wrote but
could not report any more is replaced: a part removes those of its shard that begin where it does,
or later. A worker that
was given up and leaves later than its successor wrote takes nothing of that away: attempts are
numbered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from elasticdl.errors import PermanentError
from elasticdl.model.usercode import user_code
from elasticdl.rpc.parameters import Pulled
from elasticdl.shard import Lease
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.leases import HeldLease
from elasticdl.worker.pipeline.outbox import Advance
from elasticdl.worker.pipeline.trainer import Batch, Loaded

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.model.step import Lookups
    from elasticdl.model.structure import Structure

_PART = re.compile(r"predictions-(\d+)-(\d+)-(\d+)\.npz")


class PredictingStep(Protocol):
    """What of `model.step.CompiledStep` prediction needs."""

    def predict(self, features: Structure, lookups: Lookups, pulled: Pulled) -> Structure:
        """Outputs of the model as NumPy arrays."""


class Sink(Protocol):
    """Where predictions go."""

    def take(self, batch: Batch, outputs: Structure | None) -> None:
        """Predictions of a batch, None if it has no records; tells the outbox what counts as
        done.
        """

    def leave(self) -> None:
        """The worker drains: let count what is done of the current lease."""


@final
class PredictionTask:
    """Runs prediction leases."""

    def __init__(self, step: PredictingStep, sink: Sink, context: WorkerContext) -> None:
        self._step = step
        self._sink = sink
        self._context = context

    def run(self, loaded: Loaded) -> None:
        """Predict one batch."""
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
        """Predictions of one batch."""


@final
class ProcessorSink:
    """To the module's processor, batch by batch.

    A killed worker may have its last minibatch processed twice.
    """

    def __init__(
        self, processor: Processor, zoo: str, worker_id: int, context: WorkerContext
    ) -> None:
        self._processor = processor
        self._zoo = zoo
        self._worker_id = worker_id
        self._context = context

    def take(self, batch: Batch, outputs: Structure | None) -> None:
        """See `Sink.take`."""
        if outputs is not None:
            with user_code("PredictionOutputsProcessor.process", self._zoo):
                self._processor.process(outputs, self._worker_id)
        lease = batch.held.lease
        advance = Advance(
            batch.end, lease.version, None, batch.bad, batch.bad_examples, done=batch.last
        )
        self._context.outbox.advance(lease, advance)

    def leave(self) -> None:
        """All that was processed is told already."""


@final
class FileSink:
    """Into `predictions-SHARD-BEGIN-END.npz`, plain NumPy archives; files sorted by name have the
    examples in the data's order.

    A file has one array for each output of the model (`predictions`, or the outputs' own names;
    nested ones as `outer/inner`), its
    first axis the example, the rest as the model gave it; and of the records, without a unit axis:
    `source` (text), and with
    `first_record`, `begin` and `end` (int64) that they are records [first_record + begin,
    first_record + end) of it; `attempt`
    (int64) is the number of the one that wrote them. Examples are fewer than records where `feed`
    left some out or some could not be read.
    """

    def __init__(self, directory: Path, context: WorkerContext) -> None:
        self._directory = directory
        self._context = context
        self._held: HeldLease | None = None
        self._batches: list[Batch] = []
        self._outputs: list[dict[str, NDArray[Any]]] = []

    def take(self, batch: Batch, outputs: Structure | None) -> None:
        """See `Sink.take`. Raises PermanentError if a file cannot be written."""
        if batch.held is not self._held:
            self._held, self._batches, self._outputs = batch.held, [], []
        self._batches.append(batch)
        if outputs is not None:
            self._outputs.append(named_arrays(outputs))
        if batch.last:
            self._write(batch.held)

    def leave(self) -> None:
        """See `Sink.leave`."""
        if self._held is not None and self._batches and not self._is_replaced(self._held.lease):
            self._write(self._held)

    def _is_replaced(self, lease: Lease) -> bool:
        """A later attempt has written what this one was at, or more of it."""
        return any(
            _attempt_of(path) > lease.attempt for path in _parts_from(self._directory, lease)
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
        path = (
            self._directory
            / f"predictions-{lease.shard.id:06d}-{lease.offset:09d}-{last.end:09d}.npz"
        )
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            _write_whole(
                path,
                {**arrays, **{name: np.asarray(value) for name, value in about.items()}},
                lease.attempt,
            )
            _remove_replaced(path, lease)
        except OSError as error:
            raise PermanentError(
                f"cannot write {path}: {error.strerror or error}", hint="see --output"
            ) from error
        bad = sum(batch.bad for batch in self._batches)
        examples = tuple(text for batch in self._batches for text in batch.bad_examples)[:3]
        self._context.outbox.advance(
            lease, Advance(last.end, lease.version, None, bad, examples, done=last.last)
        )
        self._held, self._batches, self._outputs = None, [], []


def named_arrays(outputs: Structure) -> dict[str, NDArray[Any]]:
    """One name for each array of a model's outputs: `predictions`, a key, or `output_0`, …; nested
    ones with a slash.
    """
    if isinstance(outputs, Mapping):
        parts = {str(name): value for name, value in outputs.items()}
    elif isinstance(outputs, Sequence) and not isinstance(outputs, np.ndarray):
        parts = {f"output_{number}": value for number, value in enumerate(outputs)}
    else:
        return {"predictions": np.asarray(outputs)}
    named: dict[str, NDArray[Any]] = {}
    for name, value in parts.items():
        for inner, array in named_arrays(value).items():
            named[name if inner == "predictions" else f"{name}/{inner}"] = array
    return named


def _write_whole(path: Path, arrays: Mapping[str, NDArray[Any]], attempt: int) -> None:
    temporary = path.with_name(f".{path.name}.{attempt}")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **dict(arrays))  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_replaced(path: Path, lease: Lease) -> None:
    """Parts that `path` takes the place of, and what earlier attempts at the shard were writing
    when they were killed.
    """
    for other in _parts_from(path.parent, lease):
        if other != path:
            other.unlink(missing_ok=True)
    for half in path.parent.glob(f".{_of_shard(lease)}*.npz.*"):
        if half.suffix[1:].isdecimal() and int(half.suffix[1:]) < lease.attempt:
            half.unlink(missing_ok=True)


def _parts_from(directory: Path, lease: Lease) -> Iterator[Path]:
    """Those of the lease's shard that begin where it does, or later."""
    for path in directory.glob(f"{_of_shard(lease)}*.npz"):
        found = _PART.fullmatch(path.name)
        if found is not None and int(found[2]) >= lease.offset:
            yield path


def _of_shard(lease: Lease) -> str:
    assert lease.shard is not None
    return f"predictions-{lease.shard.id:06d}-"


def _attempt_of(path: Path) -> int:
    """Which attempt wrote a part; -1 if that cannot be read (any more)."""
    with suppress(OSError, ValueError, KeyError, BadZipFile), np.load(path) as part:
        return int(part["attempt"])
    return -1
