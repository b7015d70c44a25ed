"""Predictions: each record in exactly one file, over drained and killed attempts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from elasticdl.clock import SystemClock
from elasticdl.errors import PermanentError, UserError
from elasticdl.model.output_arrays import named_arrays
from elasticdl.rpc.conversation import Finished
from elasticdl.shard import Lease, Shard, ShardId, Task
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.leases import HeldLease, LeaseKeeper
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.retry import ServerRetry
from elasticdl.worker.pipeline.trainer import Batch
from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.hang_watch import HangWatch
from elasticdl.worker.process.shutdown import Shutdown
from elasticdl.worker.tasks.prediction import FileSink, ProcessorSink
from elasticdl.worker.tasks.prediction_files import LocalFiles
from tests.present import present

pytestmark = pytest.mark.core

LEASE = Lease(Task.PREDICTION, Shard(ShardId(3), "data.csv", 100, 110), 1)


class NoLeases:
    def request_lease(self, wait_s: float) -> Finished:
        return Finished()


def worker_context() -> WorkerContext:
    clock, shutdown, outbox = SystemClock(), Shutdown(), Outbox()
    gauges = Gauges(clock)
    return WorkerContext(
        LeaseKeeper(NoLeases(), outbox, shutdown),
        outbox,
        gauges,
        ServerRetry(shutdown, gauges, clock),
        HangWatch(clock),
        shutdown,
    )


def predict(
    sink: FileSink, context: WorkerContext, lease: Lease, until: int, size: int = 3
) -> list[tuple[int, bool]]:
    """Batches of an attempt up to record `until`; what was reported, as (offset, done)."""
    context.outbox.hold(lease)
    held = HeldLease(lease)
    for begin in range(lease.offset, until, size):
        end = min(begin + size, present(lease.shard).records)
        outputs = np.arange(begin, end, dtype=np.float32).reshape(-1, 1)
        sink.take(
            Batch(held, end, end - begin, last=end == present(lease.shard).records, computes=True),
            outputs,
        )
    return [
        (progress.applied.offset, progress.done) for progress in context.outbox.take({}).progress
    ]


def written(directory: Path) -> list[float]:
    return [
        value
        for path in sorted(directory.glob("predictions-*.npz"))
        for value in np.load(path)["predictions"][:, 0]
    ]


def test_a_shard_becomes_one_file_that_says_of_which_records(tmp_path: Path) -> None:
    context = worker_context()
    assert predict(FileSink(LocalFiles(tmp_path / "out"), context), context, LEASE, 10) == [
        (10, True)
    ]
    (path,) = (tmp_path / "out").iterdir()
    content = np.load(path)
    assert content["predictions"][:, 0].tolist() == list(range(10))
    assert (
        str(content["source"]),
        int(content["first_record"]),
        int(content["begin"]),
        int(content["end"]),
    ) == ("data.csv", 100, 0, 10)


def test_files_sorted_by_name_have_the_examples_in_the_order_of_the_data_as_the_docs_say(
    tmp_path: Path,
) -> None:
    context = worker_context()
    sink = FileSink(LocalFiles(tmp_path), context)
    shards = [
        Shard(ShardId(number), "data.csv", number * 10, number * 10 + 10) for number in (10, 2, 0)
    ]
    for shard in shards:  # whoever was faster
        predict(sink, context, Lease(Task.PREDICTION, shard, 1), 10)
    parts = [np.load(path) for path in sorted(tmp_path.glob("*.npz"))]
    firsts = [int(part["first_record"]) for part in parts]
    assert firsts == [0, 20, 100]
    assert set(parts[0].files) == {
        "predictions",
        "source",
        "first_record",
        "begin",
        "end",
        "attempt",
    }
    for part in parts:
        assert len(part["predictions"]) == part["end"] - part["begin"]


def test_nothing_is_reported_before_it_is_written(tmp_path: Path) -> None:
    context = worker_context()
    assert predict(FileSink(LocalFiles(tmp_path), context), context, LEASE, 6) == []
    assert list(tmp_path.iterdir()) == []


def test_a_drained_part_and_the_rest_are_two_files(tmp_path: Path) -> None:
    context = worker_context()
    sink = FileSink(LocalFiles(tmp_path), context)
    predict(sink, context, LEASE, 6)
    sink.leave()
    ((offset, done),) = [(one.applied.offset, one.done) for one in context.outbox.take({}).progress]
    assert (offset, done) == (6, False)
    sink.leave()
    assert len(list(tmp_path.iterdir())) == 1, "there is nothing more to write"
    again = worker_context()
    predict(FileSink(LocalFiles(tmp_path), again), again, replace(LEASE, attempt=2, offset=6), 10)
    assert written(tmp_path) == list(range(10))


def test_what_a_killed_worker_wrote_but_did_not_report_is_replaced(tmp_path: Path) -> None:
    """Attempt 1 is killed between file and report, 2 drains, 3 is killed like 1, 4 ends the
    shard.
    """
    for attempt, (offset, until) in enumerate([(0, 6), (0, 3), (3, 9), (3, 10)], 1):
        context = worker_context()
        sink = FileSink(LocalFiles(tmp_path), context)
        predict(sink, context, replace(LEASE, attempt=attempt, offset=offset), until)
        sink.leave()
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "predictions-000003-000000000-000000003.npz",
        "predictions-000003-000000003-000000010.npz",
    ]
    assert written(tmp_path) == list(range(10))


def test_a_worker_that_was_given_up_and_drains_late_takes_nothing_of_the_next_one_away(
    tmp_path: Path,
) -> None:
    """It stood still, another did its shard, and then it was told to leave: its part took the place
    of the whole shard's.
    """
    late, context = worker_context(), worker_context()
    sink = FileSink(LocalFiles(tmp_path), late)
    predict(sink, late, LEASE, 6)
    predict(FileSink(LocalFiles(tmp_path), context), context, replace(LEASE, attempt=2), 10)
    sink.leave()
    assert late.outbox.take({}).progress == (), "what it has is not told, since it is not written"
    assert written(tmp_path) == list(range(10))


def test_a_worker_that_was_given_up_and_ends_its_shard_late_changes_nothing(tmp_path: Path) -> None:
    late, context = worker_context(), worker_context()
    sink = FileSink(LocalFiles(tmp_path), late)
    predict(sink, late, LEASE, 6)
    first = FileSink(LocalFiles(tmp_path), context)
    predict(first, context, replace(LEASE, attempt=2), 6)
    first.leave()
    predict(
        FileSink(LocalFiles(tmp_path), context), context, replace(LEASE, attempt=3, offset=6), 10
    )
    sink.take(
        Batch(present(sink._held), 10, 4, last=True, computes=True),
        np.arange(6, 10, dtype=np.float32).reshape(-1, 1),
    )
    assert written(tmp_path) == list(range(10))


def test_what_a_worker_was_writing_when_it_was_killed_goes_when_the_next_has_written_it(
    tmp_path: Path,
) -> None:
    for name in (
        ".predictions-000003-000000000-000000010.npz.1",
        ".predictions-000004-000000000-000000010.npz.1",
    ):
        (tmp_path / name).write_bytes(b"half")
    context = worker_context()
    predict(FileSink(LocalFiles(tmp_path), context), context, replace(LEASE, attempt=2), 10)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        ".predictions-000004-000000000-000000010.npz.1",
        "predictions-000003-000000000-000000010.npz",
    ]


def test_other_shards_are_left_alone(tmp_path: Path) -> None:
    context = worker_context()
    predict(
        FileSink(LocalFiles(tmp_path), context),
        context,
        replace(LEASE, shard=Shard(ShardId(30), "data.csv", 0, 3)),
        3,
    )
    predict(FileSink(LocalFiles(tmp_path), context), context, LEASE, 10)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_shard_of_which_nothing_is_left_is_done_with_a_file_without_predictions(
    tmp_path: Path,
) -> None:
    context = worker_context()
    context.outbox.hold(LEASE)
    FileSink(LocalFiles(tmp_path), context).take(
        Batch(HeldLease(LEASE), 10, 10, bad=10, last=True), None
    )
    (progress,) = context.outbox.take({}).progress
    assert (progress.done, progress.bad_records) == (True, 10)
    (path,) = tmp_path.iterdir()
    assert "predictions" not in np.load(path)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    context = worker_context()
    with pytest.raises(PermanentError, match="file"):
        predict(FileSink(LocalFiles(tmp_path / "file"), context), context, LEASE, 10)


def test_a_processor_gets_each_batch_and_its_worker(tmp_path: Path) -> None:
    class Processor:
        got: list[Any] = []  # noqa: RUF012

        def process(self, predictions: NDArray[Any], worker_id: int) -> None:
            self.got.append((predictions.tolist(), worker_id))

    context = worker_context()
    context.outbox.hold(LEASE)
    sink = ProcessorSink(Processor(), str(tmp_path), 7, context)
    sink.take(Batch(HeldLease(LEASE), 5, 5, last=False, computes=True), np.arange(2))
    assert context.outbox.take({}).progress[0].applied.offset == 5
    sink.take(Batch(HeldLease(LEASE), 10, 5, bad=5, last=True), None)
    assert context.outbox.take({}).progress[0].done
    assert Processor.got == [([0, 1], 7)]


def test_an_error_of_the_processor_is_the_users(tmp_path: Path) -> None:
    class Processor:
        def process(self, predictions: NDArray[Any], worker_id: int) -> None:
            raise KeyError("no such column")

    with pytest.raises(UserError, match=r"PredictionOutputsProcessor.process raised KeyError"):
        ProcessorSink(Processor(), str(tmp_path), 0, worker_context()).take(
            Batch(HeldLease(LEASE), 5, 5), np.arange(2)
        )


def test_outputs_of_any_structure_get_names() -> None:
    one = np.arange(2)
    assert set(named_arrays(one)) == {"predictions"}
    assert set(named_arrays({"a": one, "b": {"c": one}})) == {"a", "b/c"}
    assert set(named_arrays((one, [one, one]))) == {
        "output_0",
        "output_1/output_0",
        "output_1/output_1",
    }
    assert set(named_arrays({"a": {"predictions": one}})) == {"a/predictions"}


def test_strings_are_bytes_that_numpy_reads_without_pickle(tmp_path: Path) -> None:
    context = worker_context()
    context.outbox.hold(LEASE)
    sink = FileSink(LocalFiles(tmp_path), context)
    held = HeldLease(LEASE)
    for end, word in [(5, "ü"), (10, "a longer one")]:
        words = np.array([word.encode(), b"", b"x", b"y", b"z"], object)
        texts = words.astype(str) if word.isascii() else words
        outputs = {"file": words, "allow_pickle": np.asarray(texts, object)}
        sink.take(Batch(held, end, 5, last=end == 10, computes=True), outputs)
    (path,) = tmp_path.iterdir()
    content = np.load(path, allow_pickle=False)
    expected = ["ü".encode(), b"", b"x", b"y", b"z", b"a longer one", b"", b"x", b"y", b"z"]
    assert content["file"].tolist() == expected
    assert content["allow_pickle"].tolist() == expected


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ({"attempt": np.arange(10)}, "an output named 'attempt'"),
        (np.array([{}] * 10), "'predictions' holds objects"),
        (np.array([b"x\0"] * 10, object), "zero byte"),
        ({"a/b": np.arange(10), "a": {"b": np.arange(10)}}, "two outputs named 'a/b'"),
        ({"1": np.arange(10), 1: np.arange(10)}, "two outputs named '1'"),
        ({"attempt\0": np.arange(10)}, "zero byte in its name"),
        ({"n" * 70_000: np.arange(10)}, "70,000 characters"),
        ({"a": np.arange(10), "b": np.float32(1)}, "'b' has no axis of examples"),
    ],
)
def test_an_output_that_a_file_cannot_hold_is_named(
    tmp_path: Path, output: Any, problem: str
) -> None:
    context = worker_context()
    context.outbox.hold(LEASE)
    sink = FileSink(LocalFiles(tmp_path), context)
    with pytest.raises(PermanentError, match=problem):
        sink.take(Batch(HeldLease(LEASE), 10, 10, last=True, computes=True), output)
    assert list(tmp_path.iterdir()) == []


def test_batches_with_examples_of_different_shapes_are_refused(tmp_path: Path) -> None:
    context = worker_context()
    context.outbox.hold(LEASE)
    sink, held = FileSink(LocalFiles(tmp_path), context), HeldLease(LEASE)
    sink.take(Batch(held, 5, 5, last=False, computes=True), np.zeros((5, 2)))
    with pytest.raises(PermanentError, match=r"'predictions' .* shape \(3,\), after \(2,\)"):
        sink.take(Batch(held, 10, 5, last=True, computes=True), np.zeros((5, 3)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("count", "said"), [(4, "4 predictions"), (1, "1 prediction ")])
def test_a_batch_with_another_number_of_predictions_than_examples_is_refused(
    tmp_path: Path, count: int, said: str
) -> None:
    context = worker_context()
    context.outbox.hold(LEASE)
    features = {"ids": np.zeros((5, 2)), "x": (np.zeros(5),)}
    batch = Batch(HeldLease(LEASE), 10, 10, computes=True, features=features)
    FileSink(LocalFiles(tmp_path / "whole"), context).take(batch, {"y": np.zeros((5, 1))})
    with pytest.raises(PermanentError, match=f"'y' has {said}.*for 5 examples"):
        FileSink(LocalFiles(tmp_path / "part"), context).take(batch, {"y": np.zeros((count, 1))})
    assert not (tmp_path / "part").exists()
