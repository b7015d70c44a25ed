"""One suite for every format: whatever holds the records, a reader gives each exactly once, in
order.
"""

from __future__ import annotations

import csv
import os
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data import Reader, Records, open_custom_reader, open_reader
from elasticdl.data.columns import ColumnsReader
from elasticdl.data.files import DataChanged
from elasticdl.errors import UserError
from elasticdl.shard import Shard, ShardId
from tests.archives import add_member
from tests.present import array
from tests.tfrecords import framed

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("own_cache")]
RECORDS = 10_007
IN_FILES = [
    "csv",
    "csv gz",
    "tfrecord",
    "tfrecord zst",
    "parquet",
    "arrow",
    "arrows",
    "npz",
    "npz compressed",
    "npy",
    "webdataset",
]
FORMATS = [*IN_FILES, "sqlite", "sqlite with gaps", "duckdb with gaps", "custom", "own"]


class Elsewhere:
    """A reader as ElasticDL's users write them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def create_shards(self) -> dict[str, tuple[int, int]]:
        return {"table": (5, self.count)}

    def read_records(self, task: Any) -> Iterator[bytes]:
        for i in range(task.start, task.end):
            yield b"%d" % (i - 5)


def write(kind: str, path: Path, numbers: range) -> str:
    """Records that hold these numbers; returns the origin."""
    match kind:
        case "csv":
            with open(path.with_suffix(".csv"), "w", newline="") as file:
                csv.writer(file).writerows(
                    [["number", "text"], *([i, f"a,\n{i}"] for i in numbers)]
                )
            return file.name
        case "tfrecord":
            path.with_suffix(".tfrecord").write_bytes(b"".join(framed(b"%d" % i) for i in numbers))
            return str(path.with_suffix(".tfrecord"))
        case "csv gz" | "tfrecord zst":
            plain = Path(write(kind.split()[0], path, numbers))
            packed = plain.with_name(f"{plain.name}.{kind.split()[1]}")
            codec: Any = "gzip" if kind == "csv gz" else "zstd"
            with pa.CompressedOutputStream(str(packed), codec) as out:
                out.write(plain.read_bytes())
            plain.unlink()
            return str(packed)
        case "parquet":
            pq.write_table(
                pa.table({"number": pa.array(list(numbers), pa.int64())}),
                path.with_suffix(".parquet"),
                row_group_size=977,
            )
            return str(path.with_suffix(".parquet"))
        case "arrow" | "arrows":
            table = pa.table({"number": pa.array(list(numbers), pa.int64())})
            new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
            with new(str(path.with_suffix(f".{kind}")), table.schema) as out:
                out.write_table(table, max_chunksize=977)
            return str(path.with_suffix(f".{kind}"))
        case "webdataset":
            with tarfile.open(path.with_suffix(".tar"), "w") as archive:
                for i in numbers:
                    add_member(archive, f"{i:06}.number", b"%d" % i)
            return str(path.with_suffix(".tar"))
        case "sqlite" | "sqlite with gaps":
            step = 3 if kind == "sqlite with gaps" else 1
            file_name = path.with_suffix(".sqlite")
            with closing(sqlite3.connect(file_name)) as database, database:
                database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, number INT)")
                database.executemany(
                    "INSERT INTO t VALUES (?, ?)", [(i * step, i) for i in numbers]
                )
            return f"sqlite:///{file_name}?table=t"
        case "duckdb with gaps":
            file_name = path.with_suffix(".duckdb")
            file_name.unlink(missing_ok=True)
            with duckdb.connect(str(file_name)) as connection:
                # Records are not in the order of their key.
                connection.execute(
                    f"CREATE TABLE t AS SELECT i * 3 AS id, i AS number"
                    f" FROM range({numbers.start}, {numbers.stop}) AS r(i) ORDER BY hash(i)"
                )
            return f"duckdb:///{file_name}?table=t"
        case "npz" | "npz compressed":
            save = np.savez if kind == "npz" else np.savez_compressed
            save(
                path.with_suffix(".npz"),
                number=np.array(numbers),
                image=np.zeros((len(numbers), 2, 3), np.float32),
            )
            return str(path.with_suffix(".npz"))
        case _:
            np.save(path.with_suffix(".npy"), np.array(numbers))
            return str(path.with_suffix(".npy"))


def open_kind(kind: str, tmp_path: Path, records: int = RECORDS) -> Reader:
    if kind == "custom":
        return open_custom_reader(
            lambda origin, records_per_task: Elsewhere(records), "db://table", {}
        )
    if kind == "own":
        arrays = {"number": np.arange(records)}
        return open_custom_reader(
            lambda origin, records_per_task: ColumnsReader.of_arrays(arrays), "memory", {}
        )
    return open_reader(write(kind, tmp_path / "number", range(records)), params_of(kind))


def params_of(kind: str) -> dict[str, Any]:
    return {"key": "id"} if kind.startswith("duckdb") else {}


def numbers_of(records: Records) -> list[int]:
    if isinstance(records, dict):
        return [int(i) for i in records["number"]]
    whole = array(records)
    first = whole if whole.ndim == 1 else whole[:, 0]
    return [int(i) for i in first]


def read(reader: Reader, source: str, begin: int, end: int) -> list[int]:
    found: list[int] = []
    for block in reader.read(Shard(ShardId(1), source, begin, end)):
        assert block.bad == 0
        numbers = numbers_of(block.records)
        assert len(numbers) == block.count
        found += numbers
    return found


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_any_cut_into_shards_gives_every_record_exactly_once(kind: Any, tmp_path: Path) -> None:
    reader = open_kind(kind, tmp_path)
    (source,) = reader.sources()
    assert source.records == RECORDS
    choose = np.random.default_rng(1)
    for pieces in (1, 2, 7, 40):
        cuts = [0, *sorted(choose.integers(0, RECORDS, pieces - 1).tolist()), RECORDS]
        shards = list(pairwise(cuts))
        choose.shuffle(shards)
        found = {
            begin: read(reader, source.name, begin, end) for begin, end in shards if begin < end
        }
        assert [i for begin in sorted(found) for i in found[begin]] == list(range(RECORDS))
    reader.close()


def test_another_process_s_reader_reads_a_shard_without_asking_for_sources(
    kind: Any, tmp_path: Path
) -> None:
    first = open_kind(kind, tmp_path)
    (source,) = first.sources()
    assert read(
        open_kind(kind, tmp_path)
        if kind in ("custom", "own")
        else open_reader(source.name, params_of(kind)),
        source.name,
        5000,
        5003,
    ) == [5000, 5001, 5002]


def test_blocks_come_lazily_and_are_small(kind: Any, tmp_path: Path) -> None:
    reader = open_kind(kind, tmp_path)
    (source,) = reader.sources()
    blocks = reader.read(Shard(ShardId(1), source.name, 3, RECORDS))
    assert next(blocks).count <= 4096
    assert sum(block.count for block in blocks) > 0


def test_an_empty_shard_has_no_records(kind: Any, tmp_path: Path) -> None:
    reader = open_kind(kind, tmp_path, 10)
    (source,) = reader.sources()
    assert read(reader, source.name, 4, 4) == []


def test_a_shard_of_a_source_that_is_not_there_is_refused(kind: Any, tmp_path: Path) -> None:
    reader = open_kind(kind, tmp_path, 10)
    reader.sources()
    # The error of a reader of the user's own is its own.
    with pytest.raises(UserError if kind == "custom" else DataChanged):
        read(reader, "elsewhere", 0, 1)


@pytest.mark.parametrize("kind", [*IN_FILES, "own"])
def test_a_shard_behind_the_end_is_refused(kind: Any, tmp_path: Path) -> None:
    reader = open_kind(kind, tmp_path, 10)
    (source,) = reader.sources()
    with pytest.raises(DataChanged, match="10"):
        read(reader, source.name, 5, 11)


@pytest.mark.parametrize("kind", IN_FILES)
@pytest.mark.parametrize("change", ["touched", "grown", "cut", "removed", "replaced"])
def test_a_file_that_changes_during_the_job_is_named(
    kind: Any, change: str, tmp_path: Path
) -> None:
    reader = open_kind(kind, tmp_path)
    (source,) = reader.sources()
    path = Path(source.name)
    match change:
        case "touched":
            os.utime(path, ns=(1, 1))
        case "grown":
            path.write_bytes(path.read_bytes() + b"x")
        case "cut":
            os.truncate(path, path.stat().st_size // 2)
        case "removed":
            path.unlink()
        case "replaced":
            other = path.with_name("other")
            other.write_bytes(path.read_bytes() + b"xy")
            other.replace(path)
    with pytest.raises(UserError, match=path.name):
        read(reader, source.name, 0, 10)


@pytest.mark.parametrize("kind", IN_FILES)
def test_a_file_that_is_cut_between_two_blocks_is_named(kind: Any, tmp_path: Path) -> None:
    reader = open_kind(kind, tmp_path)
    (source,) = reader.sources()
    blocks = reader.read(Shard(ShardId(1), source.name, 0, RECORDS))
    next(blocks)
    os.truncate(source.name, 100)
    with pytest.raises(UserError, match="number"):
        list(blocks)


@pytest.mark.parametrize("kind", IN_FILES)
def test_the_fingerprint_tells_that_a_file_changed(kind: Any, tmp_path: Path) -> None:
    reader = open_kind(kind, tmp_path, 10)
    (before,) = reader.sources()
    assert before.fingerprint
    again = open_reader(before.name, {})
    assert again.sources() == (before,)
    os.utime(before.name, ns=(1, 1))
    (after,) = open_reader(before.name, {}).sources()
    assert after.fingerprint != before.fingerprint


@pytest.mark.parametrize("kind", IN_FILES)
def test_a_missing_file_is_an_error_with_its_name(kind: Any, tmp_path: Path) -> None:
    path = Path(write(kind, tmp_path / "number", range(3)))
    path.unlink()
    with pytest.raises(UserError, match=path.name):
        open_reader(str(path), {}).sources()


@pytest.mark.parametrize("kind", IN_FILES)
def test_an_empty_file_is_an_error_with_its_name(kind: Any, tmp_path: Path) -> None:
    path = Path(write(kind, tmp_path / "number", range(3)))
    path.write_bytes(b"")
    with pytest.raises(UserError, match=rf"{path.name} is empty"):
        open_reader(str(path), {}).sources()


@pytest.mark.parametrize("kind", [kind for kind in IN_FILES if kind != "tfrecord"])
def test_a_file_without_records_is_an_error_with_its_name(kind: Any, tmp_path: Path) -> None:
    path = Path(write(kind, tmp_path / "number", range(0)))
    with pytest.raises(UserError, match="no records"):
        open_reader(str(path), {}).sources()


# The end of a tar file is padding.
@pytest.mark.parametrize("kind", [kind for kind in IN_FILES if kind not in ("csv", "webdataset")])
def test_a_truncated_file_is_an_error_with_its_name(kind: Any, tmp_path: Path) -> None:
    path = Path(write(kind, tmp_path / "number", range(1000)))
    os.truncate(path, path.stat().st_size - 7)
    with pytest.raises(UserError, match=path.name):
        reader = open_reader(str(path), {})
        read(reader, reader.sources()[0].name, 0, 1000)


@pytest.mark.parametrize("kind", [kind for kind in IN_FILES if kind != "npy"])
def test_a_directory_and_a_glob_give_a_source_for_each_file_in_order(
    kind: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in (2, 0, 1):
        write(kind, folder / f"part-{part}", range(part * 100, part * 100 + 100))
    (folder / "_SUCCESS").write_text("")
    (folder / ".part-0.crc").write_text("x")
    for origin in (str(folder), str(folder / "part-*")):
        reader = open_reader(origin, {})
        sources = reader.sources()
        stems = [Path(source.name).name.partition(".")[0] for source in sources]
        assert stems == ["part-0", "part-1", "part-2"]
        assert [i for source in sources for i in read(reader, source.name, 0, 100)] == list(
            range(300)
        )
