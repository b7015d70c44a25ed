"""NumPy files: in place where they lie plainly, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.data import open_reader
from elasticdl.data.columns import StoredColumn
from elasticdl.data.numpy_files import NpzFormat
from elasticdl.data.origins import look_at
from elasticdl.errors import UserError
from elasticdl.shard import Shard, ShardId

pytestmark = pytest.mark.contract


def block_of(origin: Any, begin: int, end: int, params: Any = None) -> Any:
    reader = open_reader(str(origin), params or {})
    (source,) = reader.sources()
    (block,) = reader.read(Shard(ShardId(1), source.name, begin, end))
    return block.records


def test_npy_files_of_a_directory_are_columns_of_one_source(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(20, dtype=np.float32).reshape(10, 2))
    np.save(tmp_path / "y.npy", np.arange(10))
    records = block_of(tmp_path, 3, 5)
    assert records["x"].tolist() == [[6, 7], [8, 9]]
    assert records["y"].tolist() == [3, 4]
    assert open_reader(str(tmp_path), {}).metadata.column_dtypes == {"x": "float32", "y": "int64"}


def test_fields_of_a_structured_array_are_columns(tmp_path: Path) -> None:
    np.save(
        tmp_path / "table.npy",
        np.array([(1, b"ab", [1.0, 2.0]), (2, b"c", [3.0, 4.0])], "i4,S3,(2,)f4"),
    )
    records = block_of(tmp_path / "table.npy", 1, 2)
    assert {name: column.tolist() for name, column in records.items()} == {
        "f0": [2],
        "f1": [b"c"],
        "f2": [[3, 4]],
    }


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_many_kinds_come_back_as_they_were(tmp_path: Path, save: Any) -> None:
    arrays = {
        "f": np.random.default_rng(1).random((50, 3, 2)).astype(np.float16),
        "fortran": np.asfortranarray(np.arange(200).reshape(50, 4)),
        "text": np.array([f"wörd {i}" for i in range(50)]),
        "big": np.arange(50, dtype=">i8"),
        "flag": np.arange(50) % 3 == 0,
        "nothing": np.zeros((50, 0), np.float32),
    }
    save(tmp_path / "a.npz", **arrays)
    records = block_of(tmp_path / "a.npz", 11, 44)
    assert records.keys() == arrays.keys()
    for name, array in arrays.items():
        assert records[name].dtype == array.dtype
        assert np.array_equal(records[name], array[11:44])


def test_plain_arrays_stay_in_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(10))
    columns = NpzFormat()._open(look_at(str(tmp_path / "a.npz")))
    assert isinstance(columns["x"], StoredColumn)


def test_named_arrays_only(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(10), classes=np.array(["a", "b"]))
    assert list(block_of(tmp_path / "a.npz", 0, 1, {"columns": "x"})) == ["x"]
    with pytest.raises(UserError, match="no array 'z'; available:"):
        open_reader(str(tmp_path / "a.npz"), {"columns": "z"}).sources()


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.arange(3), "y": np.arange(4)}, "differ in their number of records: 'x' 3, 'y' 4"),
        ({"x": np.array(["a", 1], object)}, "'x' holds Python objects"),
        ({"x": np.array(3)}, "'x' is a single value"),
        ({}, "no arrays"),
    ],
)
def test_arrays_that_cannot_be_used_are_named(
    tmp_path: Path, arrays: dict[str, Any], words: str
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match=words):
        open_reader(str(tmp_path / "a.npz"), {}).sources()


def test_objects_in_a_npy_file_are_refused_too(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array(["a", 1], object))
    with pytest.raises(UserError, match="holds Python objects"):
        open_reader(str(tmp_path / "x.npy"), {})


def test_a_flipped_bit_in_a_compressed_array_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.random.default_rng(1).random(10_000))
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"a\.npz: not a complete"):
        open_reader(str(path), {}).sources()
