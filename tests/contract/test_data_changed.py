"""A worker that opens data which changed since its records were counted says so: file, and what
changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.data import Reader, open_custom_reader, open_reader
from elasticdl.data.base import Block, Metadata
from elasticdl.data.files import DataChanged
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action, Strategy
from elasticdl.model.module import load_module
from elasticdl.rpc.conversation import Attached
from elasticdl.shard import Shard, ShardId, Source, Task, same_data
from elasticdl.worker.pipeline.assignment import Assignment, sources_of
from elasticdl.worker.pipeline.user_reader import UserReader

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("own_cache")]


def write_csv(folder: Path, text: str = "a,b\n1,2\n3,4\n") -> Path:
    (folder / "data.csv").write_text(text)
    return folder / "data.csv"


def rewritten_later(path: Path) -> None:
    path.write_text("a,b\n1,2\n3,5\n")
    later(path)


def later(path: Path, seconds: int = 5) -> None:
    facts = path.stat()
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + seconds * 1_000_000_000))


def read_all(reader: Reader, source: Source) -> int:
    return sum(
        block.count for block in reader.read(Shard(ShardId(0), source.name, 0, source.records))
    )


def test_data_that_stayed_as_it_was_counted_is_read(tmp_path: Path) -> None:
    origin = str(write_csv(tmp_path))
    (source,) = counted = open_reader(origin, {}).sources()
    assert read_all(open_reader(origin, {}, counted=counted), source) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda path: path.write_text("a,b\n1,2\n3,4\n5,6\n"),
            r"data\.csv changed since .*: it had 12 bytes, now 16",
        ),
        (
            lambda path: path.write_text("a,b\n1,2\n"),
            r"data\.csv changed since .*: it had 12 bytes, now 8",
        ),
        (
            rewritten_later,
            (
                r"data\.csv changed since .*: it still has 12 bytes, but their content differs,"
                r" written at .* UTC"
            ),
        ),
    ],
)
def test_a_file_that_changed_before_a_worker_opened_it_is_named(
    tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    path = write_csv(tmp_path)
    (source,) = counted = open_reader(str(path), {}).sources()
    change(path)
    for use in (lambda reader: reader.metadata, lambda reader: read_all(reader, source)):
        with pytest.raises(DataChanged, match=words) as caught:
            use(open_reader(str(path), {}, counted=counted))
    assert "new file" in caught.value.hint


def test_the_same_bytes_at_another_time_are_the_same_data(tmp_path: Path) -> None:
    path = write_csv(tmp_path)
    (source,) = counted = open_reader(str(path), {}).sources()
    path.unlink()
    later(write_csv(tmp_path), -3600)
    assert read_all(open_reader(str(path), {}, counted=counted), source) == 2
    assert same_data(source, open_reader(str(path), {}).sources()[0])


def test_of_more_data_than_digests_are_taken_of_the_times_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticdl.data.files.DIGESTED_BYTES", 12)
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("a,b\n1,2\n3,4\n")
    counted = open_reader(str(tmp_path), {}).sources()
    for name in ("a", "b"):
        later(tmp_path / f"{name}.csv")
    reader = open_reader(str(tmp_path), {}, counted=counted)
    assert read_all(reader, counted[0]) == 2
    with pytest.raises(
        DataChanged,
        match=(
            r"b\.csv changed since .*: it still has 12 bytes, but was written at .* UTC, not at"
        ),
    ):
        read_all(reader, counted[1])


def test_a_file_with_one_other_byte_in_its_middle_is_other_data(tmp_path: Path) -> None:
    values = np.zeros(3_000_000)
    np.save(tmp_path / "x.npy", values)
    counted = open_reader(str(tmp_path / "x.npy"), {}).sources()
    values[1_500_000] = 1
    np.save(tmp_path / "x.npy", values)
    later(tmp_path / "x.npy")
    with pytest.raises(DataChanged, match=r"x\.npy changed since .* content differs"):
        open_reader(str(tmp_path / "x.npy"), {}, counted=counted)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("12:1:blake2b=aa", "12:2:blake2b=aa", True),
        ("12:1:blake2b=aa", "12:1:blake2b=bb", False),
        ("12:1:blake2b=aa", "12:1", True),  # counted by an earlier version
        ("12:1:blake2b=aa", "12:2", False),
        ("12:1:blake2b=aa+3:1", "12:2:blake2b=aa+3:1", True),
        ("12:1:blake2b=aa+3:1", "12:2:blake2b=aa+3:2", False),
        ("table:1:etag", "table:2:etag", False),
        ("12:1:etag=aa", "12:2:etag=aa", True),
        ("12:1:etag=aa", "12:1:etag=bb", False),
        ("", "", True),
        ("12:1:blake2b=aa", "", False),
    ],
)
def test_fingerprints_are_compared_by_their_digests_where_both_have_them(
    one: str, other: str, same: bool
) -> None:
    assert same_data(Source("x", 1, one), Source("x", 1, other)) is same
    assert same_data(Source("x", 1, other), Source("x", 1, one)) is same
    assert not same_data(Source("x", 1, one), Source("x", 2, other))


def test_files_that_came_later_are_left_alone(tmp_path: Path) -> None:
    write_csv(tmp_path)
    (source,) = counted = open_reader(str(tmp_path), {}).sources()
    (tmp_path / "a-later-one.csv").write_text("other,columns,here\n1,2,3\n")
    (tmp_path / "notes.parquet").touch()
    reader = open_reader(str(tmp_path), {}, counted=counted)
    assert reader.metadata.column_names == ("a", "b")
    assert read_all(reader, source) == 2


def test_a_file_that_was_taken_away_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("a,b\n1,2\n")
    gone = write_csv(tmp_path)
    counted = open_reader(str(tmp_path), {}).sources()
    gone.unlink()
    source = next(source for source in counted if source.name == str(gone))
    with pytest.raises(DataChanged, match=r"data\.csv is no longer in the data"):
        read_all(open_reader(str(tmp_path), {}, counted=counted), source)


def test_numpy_files_side_by_side_are_compared_one_by_one(tmp_path: Path) -> None:
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", np.arange(10))
    counted = open_reader(str(tmp_path), {}).sources()
    np.save(tmp_path / "y.npy", np.arange(1, 11))
    later(tmp_path / "y.npy")
    with pytest.raises(DataChanged, match=r"y\.npy changed since .* content differs"):
        open_reader(str(tmp_path), {}, counted=counted)
    np.save(tmp_path / "z.npy", np.arange(10))
    with pytest.raises(DataChanged, match="has 3 files, but had 2 when its records were counted"):
        open_reader(str(tmp_path), {}, counted=counted)


class Own:
    """A reader of this package's kind."""

    metadata = Metadata()

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.asked = 0

    def sources(self) -> tuple[Source, ...]:
        self.asked += 1
        return (Source("table", 3, self.fingerprint),)

    def read(self, shard: Shard) -> Any:
        yield Block(np.arange(shard.begin, shard.end), shard.records)

    def close(self) -> None: ...


def test_a_reader_of_ones_own_is_compared_where_it_has_fingerprints() -> None:
    source = Source("table", 3, "version 1")
    assert read_all(UserReader(Own("version 1"), "/zoo", [source]), source) == 3
    with pytest.raises(
        DataChanged,
        match=(
            r"table had 3 records \(fingerprint version 1\), now 3 records \(fingerprint"
            r" version 2\)"
        ),
    ):
        read_all(UserReader(Own("version 2"), "/zoo", [source]), source)
    silent = Own("")
    assert read_all(UserReader(silent, "/zoo", [Source("table", 3)]), source) == 3
    assert silent.asked == 0  # it may cost a pass over the data, and there is nothing to compare


def test_a_table_of_ones_own_that_grew_is_reported() -> None:
    class Theirs:
        def create_shards(self) -> Any:
            return {"table": (0, 5)}

        def read_records(self, task: Any) -> Any:
            yield from range(task.start, task.end)

    reader = UserReader(
        open_custom_reader(lambda origin, records_per_task: Theirs(), "x", {}),
        "/zoo",
        [Source("table", 4)],
    )
    with pytest.raises(DataChanged, match="table had 4 records, now 5 records"):
        read_all(reader, Source("table", 4))


@pytest.mark.parametrize("strategy", Strategy)
def test_a_worker_compares_data_with_what_the_master_counted(
    tmp_path: Path, strategy: Strategy
) -> None:
    path = write_csv(tmp_path)
    flags = {
        "model_zoo": str(tmp_path),
        "model_def": "model",
        "training_data": str(path),
        "distribution_strategy": strategy,
    }
    spec = JobSpec.from_flags(Action.TRAIN, flags)
    (source,) = counted = open_reader(str(path), {}).sources()
    (tmp_path / "model.py").write_text(
        "def f(*_): ...\nloss = optimizer = custom_model = feed = f\n"
    )
    attached = Attached(1, 1.0, spec, (), "", sources=counted)
    assignment = Assignment.of(ProcessName(Role.WORKER, 0), tmp_path, attached)
    read_all(sources_of(assignment, load_module(spec.model)).reader(Task.TRAINING), source)
    rewritten_later(path)
    with pytest.raises(DataChanged, match=r"data\.csv changed since"):
        read_all(sources_of(assignment, load_module(spec.model)).reader(Task.TRAINING), source)


class OfDatabase:
    """A table of a name that training and validation data both have, each in a database of its
    own.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def create_shards(self) -> Any:
        return {"table": (0, self.count)}

    def read_records(self, task: Any) -> Any:
        yield from range(task.start, task.end)


def test_training_and_validation_tables_of_one_name_are_not_taken_for_one_that_changed() -> None:
    counted = [Source("table", 5), Source("table", 3)]
    for count in (5, 3):
        inner = open_custom_reader(
            lambda origin, records_per_task, count=count: OfDatabase(count), "x", {}
        )
        assert read_all(UserReader(inner, "/zoo", counted), Source("table", count)) == count
    inner = open_custom_reader(lambda origin, records_per_task: OfDatabase(4), "x", {})
    with pytest.raises(DataChanged, match="table had 5 records or 3 records, now 4 records"):
        read_all(UserReader(inner, "/zoo", counted), Source("table", 3))
