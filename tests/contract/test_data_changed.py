"""A worker that opens data which changed since its records were counted says so: file, and what changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elasticdl.data import Reader, open_custom_reader, open_reader
from elasticdl.data.base import Block, Metadata
from elasticdl.data.files import DataChanged
from elasticdl.shard import Shard, ShardId, Source
from elasticdl.worker.user_reader import UserReader

pytestmark = pytest.mark.contract


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


def write_csv(folder: Path, text: str = "a,b\n1,2\n3,4\n") -> Path:
    (folder / "data.csv").write_text(text)
    return folder / "data.csv"


def later(path: Path, seconds: int = 5) -> None:
    facts = path.stat()
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + seconds * 1_000_000_000))


def read_all(reader: Reader, source: Source) -> int:
    return sum(block.count for block in reader.read(Shard(ShardId(0), source.name, 0, source.records)))


def test_data_that_stayed_as_it_was_counted_is_read(tmp_path: Path) -> None:
    origin = str(write_csv(tmp_path))
    (source,) = counted = open_reader(origin, {}).sources()
    assert read_all(open_reader(origin, {}, counted=counted), source) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.write_text("a,b\n1,2\n3,4\n5,6\n"), r"data\.csv changed since .*: it had 12 bytes, now 16"),
        (lambda path: path.write_text("a,b\n1,2\n"), r"data\.csv changed since .*: it had 12 bytes, now 8"),
        (later, r"data\.csv changed since .*: it has 12 bytes as before, but was written at .* UTC, not at .* UTC"),
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
    with pytest.raises(DataChanged, match=r"data\.csv is not in the data any more"):
        read_all(open_reader(str(tmp_path), {}, counted=counted), source)


def test_numpy_files_side_by_side_are_compared_one_by_one(tmp_path: Path) -> None:
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", np.arange(10))
    counted = open_reader(str(tmp_path), {}).sources()
    later(tmp_path / "y.npy")
    with pytest.raises(DataChanged, match=r"y\.npy changed since .*, but was written"):
        open_reader(str(tmp_path), {}, counted=counted)
    np.save(tmp_path / "z.npy", np.arange(10))
    with pytest.raises(DataChanged, match="has 3 files, but 2 when its records were counted"):
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

    def read(self, shard: Shard):
        yield Block(np.arange(shard.begin, shard.end), shard.records)

    def close(self) -> None: ...


def test_a_reader_of_ones_own_is_compared_where_it_has_fingerprints() -> None:
    source = Source("table", 3, "version 1")
    assert read_all(UserReader(Own("version 1"), "/zoo", [source]), source) == 3
    with pytest.raises(
        DataChanged, match=r"table had 3 records \(fingerprint version 1\), now 3 records \(fingerprint version 2\)"
    ):
        read_all(UserReader(Own("version 2"), "/zoo", [source]), source)
    silent = Own("")
    assert read_all(UserReader(silent, "/zoo", [Source("table", 3)]), source) == 3
    assert silent.asked == 0  # it may cost a pass over the data, and there is nothing to compare


def test_a_table_of_ones_own_that_grew_is_told() -> None:
    class Theirs:
        def create_shards(self):
            return {"table": (0, 5)}

        def read_records(self, task):
            yield from range(task.start, task.end)

    reader = UserReader(open_custom_reader(lambda origin, records_per_task: Theirs(), "x", {}), "/zoo", [Source("table", 4)])
    with pytest.raises(DataChanged, match="table had 4 records, now 5 records"):
        read_all(reader, Source("table", 4))
