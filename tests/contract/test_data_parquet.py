"""Parquet: types, nulls, lists, row groups."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data import open_reader
from elasticdl.data.record_index import BLOCK_RECORDS
from elasticdl.errors import UserError
from elasticdl.shard import Shard, ShardId

pytestmark = pytest.mark.contract


def blocks_of(path: Path, params: Any = None, begin: int = 0, end: int | None = None) -> Any:
    reader = open_reader(str(path), params or {})
    (source,) = reader.sources()
    return list(
        reader.read(Shard(ShardId(1), source.name, begin, source.records if end is None else end))
    )


def write(tmp_path: Path, columns: Any, **options: Any) -> Any:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_columns_keep_their_types(tmp_path: Path) -> None:
    day = datetime.date(1970, 1, 3)
    columns = {
        "i8": pa.array([1, 2], pa.int8()),
        "u64": pa.array([1, 2**63], pa.uint64()),
        "f32": pa.array([0.5, 1.5], pa.float32()),
        "flag": [True, False],
        "text": ["ü", ""],
        "raw": [b"\xff", b"\0"],
        "word": pa.array(["a", "b"]).dictionary_encode(),
        "day": [day, day],
        "time": pa.array([7, 8], pa.timestamp("us")),
        "price": [Decimal("1.5"), Decimal("2.5")],
    }
    path = write(tmp_path, columns)
    (block,) = blocks_of(path)
    found = {name: column.tolist() for name, column in block.records.items()}
    assert found == {
        "i8": [1, 2], "u64": [1, 2**63], "f32": [0.5, 1.5], "flag": [True, False],
        "text": ["ü".encode(), b""], "raw": [b"\xff", b"\0"],
        "word": [b"a", b"b"], "day": [2, 2], "time": [7, 8], "price": [1.5, 2.5],
    }  # fmt: skip
    dtypes = {name: str(column.dtype) for name, column in block.records.items()}
    assert open_reader(str(path), {}).metadata.column_dtypes == dtypes
    assert dtypes["i8"] == "int8"
    assert dtypes["f32"] == "float32"


def test_nulls_are_empty_text_and_nan_and_else_bad_records(tmp_path: Path) -> None:
    path = write(tmp_path, {"text": ["a", None, "c"], "x": [None, 1.0, 2.0], "n": [1, 2, None]})
    (block,) = blocks_of(path)
    assert (block.count, block.bad) == (3, 1)
    assert block.records["text"].tolist() == [b"a", b""]
    assert np.isnan(block.records["x"][0])
    assert block.records["n"].dtype == np.int64
    assert block.bad_examples == (f"{path}: record 2: column 'n' is null",)


def test_a_value_can_be_given_for_nulls(tmp_path: Path) -> None:
    path = write(tmp_path, {"x": [None, 1.0], "n": [1, None]})
    (block,) = blocks_of(path, {"fill_null": -1})
    assert block.records["x"].tolist() == [-1, 1]
    assert block.records["n"].tolist() == [1, -1]
    assert block.bad == 0


def test_lists_of_one_length_are_rows_of_a_matrix_and_others_are_bad(tmp_path: Path) -> None:
    columns = {
        "v": pa.array([[1, 2], [3], None, [4, 5], [6, None]]),
        "w": pa.array([[1.0]] * 5, pa.list_(pa.float32(), 1)),
    }
    path = write(tmp_path, columns)
    (block,) = blocks_of(path)
    assert block.records["v"].tolist() == [[1, 2], [4, 5]]
    assert block.records["w"].shape == (2, 1)
    assert block.bad == 3
    assert blocks_of(path, {}, 1, 3)[0].records["v"].shape == (0, 2)


def test_rows_are_found_across_row_groups(tmp_path: Path) -> None:
    path = write(tmp_path, {"n": list(range(1000))}, row_group_size=7)
    for begin, end in [(0, 1000), (6, 8), (13, 29), (999, 1000)]:
        assert [
            int(n) for block in blocks_of(path, {}, begin, end) for n in block.records["n"]
        ] == list(range(begin, end))


@pytest.mark.parametrize("rows", [1, 3, BLOCK_RECORDS - 1])
def test_small_row_groups_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Each file that is opened costs the time to parse what its footer says of all groups."""
    count = 3 * BLOCK_RECORDS
    path = write(tmp_path, {"n": list(range(count))}, row_group_size=rows)
    reads: list[list[int]] = []
    read = pq.ParquetFile.read_row_groups

    def counted(file: pq.ParquetFile, groups: list[int], **options: Any) -> pa.Table:
        reads.append(groups)
        return read(file, groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted)
    reader = open_reader(str(path), {})
    (source,) = reader.sources()
    found = [
        int(n)
        for begin in range(0, count, 100)
        for block in reader.read(Shard(ShardId(1), source.name, begin, min(count, begin + 100)))
        for n in block.records["n"]
    ]
    assert found == list(range(count))
    assert len(reads) == -(-count // (BLOCK_RECORDS // rows * rows))
    assert [group for groups in reads for group in groups] == list(range(-(-count // rows)))


def test_empty_row_groups_are_passed_over(tmp_path: Path) -> None:
    path, table = tmp_path / "data.parquet", pa.table({"n": list(range(10_000))})
    with pq.ParquetWriter(path, table.schema) as writer:
        for begin, end in [(0, 0), (0, 5000), (5000, 5000), (5000, 5001), (5001, 10_000)]:
            writer.write_table(table.slice(begin, end - begin))
        writer.write_table(table.slice(0, 0))
    assert [int(n) for block in blocks_of(path) for n in block.records["n"]] == list(range(10_000))
    assert [int(n) for block in blocks_of(path, {}, 4999, 5002) for n in block.records["n"]] == [
        4999,
        5000,
        5001,
    ]


def test_only_the_named_columns_are_read_in_their_order(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": [1], "b": [2], "c": [{"x": 1}]})
    reader = open_reader(str(path), {"columns": "b,a"})
    assert reader.metadata.column_names == ("b", "a")
    assert list(blocks_of(path, {"columns": "b,a"})[0].records) == ["b", "a"]


def test_columns_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": [1], "c": [{"x": 1}]})
    with pytest.raises(UserError, match="column 'c' has type struct"):
        open_reader(str(path), {}).sources()
    with pytest.raises(UserError, match=r"no column 'z'; available: a, c"):
        open_reader(str(path), {"columns": "z"}).sources()


def test_a_damaged_row_group_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, {"n": list(range(10_000))}, compression="snappy", use_dictionary=False)
    with path.open("r+b") as file:
        file.seek(30)
        file.write(b"\xff" * 2000)
    with pytest.raises(UserError, match=r"data\.parquet: cannot read row group 0"):
        blocks_of(path)
