"""Arrow IPC: batches, dictionaries, structs, damage; and folders that `datasets` saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from elasticdl.data import open_reader
from elasticdl.data.arrow_messages import END_MARK
from elasticdl.errors import UserError
from elasticdl.shard import Shard, ShardId

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("own_cache")]


def write(path: Path, *tables: pa.Table, options: Any = None, close: bool = True) -> Path:
    """A file of the format of its suffix, with a record batch for each table."""
    new = pa.ipc.new_stream if path.suffix == ".arrows" else pa.ipc.new_file
    writer = new(str(path), tables[0].schema, options=options)
    for table in tables:
        writer.write_table(table)
    writer.close()
    if not close:
        path.write_bytes(path.read_bytes().removesuffix(END_MARK))
    return path


def blocks_of(
    path: Path | str, params: Any = None, begin: int = 0, end: int | None = None
) -> list[Any]:
    reader = open_reader(str(path), params or {})
    (source,) = reader.sources()
    last = source.records if end is None else end
    return list(reader.read(Shard(ShardId(1), source.name, begin, last)))


def column(blocks: list[Any], name: str) -> list[Any]:
    return [value for block in blocks for value in block.records[name].tolist()]


@pytest.mark.parametrize("suffix", [".arrow", ".arrows"])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_values_of_many_types_are_those_that_were_written(
    tmp_path: Path, suffix: str, compression: Any
) -> None:
    table = pa.table(
        {
            "i8": pa.array([1, -2], pa.int8()),
            "f32": pa.array([0.5, None], pa.float32()),
            "text": ["ü", None],
            "view": pa.array(["a", "b"], pa.string_view()),
            "fixed": pa.array([b"ab", b"cd"], pa.binary(2)),
            "word": pa.array(["x", "y"]).dictionary_encode(),
            "sort": pa.DictionaryArray.from_arrays([1, 0], pa.array(["p", "q"], pa.string_view())),
            "pair": [[1, 2], [3, 4]],
            "image": [{"bytes": b"\xff", "path": "a.png"}, {"bytes": b"\0", "path": None}],
        }
    )
    options = pa.ipc.IpcWriteOptions(compression=compression)
    path = write(tmp_path / f"data{suffix}", table, options=options)
    (block,) = blocks_of(path)
    found = {name: values.tolist() for name, values in block.records.items()}
    assert np.isnan(found["f32"].pop())
    assert found == {
        "i8": [1, -2], "f32": [0.5], "text": ["ü".encode(), b""], "view": [b"a", b"b"],
        "fixed": [b"ab", b"cd"], "word": [b"x", b"y"], "sort": [b"q", b"p"],
        "pair": [[1, 2], [3, 4]],
        "image.bytes": [b"\xff", b"\0"], "image.path": [b"a.png", b""],
    }  # fmt: skip
    reader = open_reader(str(path), {"columns": "image.bytes,i8"})
    assert reader.metadata.column_names == ("image.bytes", "i8")
    assert reader.metadata.column_dtypes == {"image.bytes": "object", "i8": "int8"}
    assert open_reader(str(path), {}).metadata.column_dtypes["pair"] == "int64[2]"


def test_batches_of_any_size_are_found(tmp_path: Path) -> None:
    sizes = [0, 5, 1, 0, 9000, 3, 4096, 0]
    starts = np.cumsum([0, *sizes]).tolist()
    tables = [
        pa.table({"n": pa.array(range(a, a + size), pa.int64())})
        for a, size in zip(starts, sizes, strict=False)
    ]
    schema = tables[0].schema
    with pa.ipc.new_stream(str(tmp_path / "data.arrows"), schema) as writer:
        for table in tables:
            # A table without rows would be written without a batch.
            writer.write_batch(table.combine_chunks().to_batches()[0] if table.num_rows
                               else pa.RecordBatch.from_pydict({"n": []}, schema))  # fmt: skip
    total = sum(sizes)
    for begin, end in [(0, total), (4, 7), (5, 6), (6, 6), (5000, 9010), (total - 1, total)]:
        blocks = blocks_of(tmp_path / "data.arrows", {}, begin, end)
        assert column(blocks, "n") == list(range(begin, end))
        assert all(block.count <= 4096 for block in blocks)


def test_a_null_without_a_value_makes_a_bad_record(tmp_path: Path) -> None:
    path = write(tmp_path / "data.arrow", pa.table({"n": [1, None, 3]}))
    (block,) = blocks_of(path)
    assert (block.count, block.bad, block.records["n"].tolist()) == (3, 1, [1, 3])
    assert block.bad_examples == (f"{path}: record 1: column 'n' is null",)
    assert column(blocks_of(path, {"fill_null": 7}), "n") == [1, 7, 3]


def test_the_first_bytes_tell_the_format(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2]})
    for suffix in (".arrow", ".arrows"):
        write(tmp_path / f"data{suffix}", table).rename(tmp_path / "data")
        assert column(blocks_of(tmp_path / "data"), "n") == [1, 2]


def test_a_dictionary_in_mid_stream_is_refused(tmp_path: Path) -> None:
    words = [pa.table({"w": pa.array(values).dictionary_encode()}) for values in ("ab", "cd")]
    with pytest.raises(UserError, match=r"data\.arrows: at offset \d+: a dictionary") as caught:
        blocks_of(write(tmp_path / "data.arrows", *words))
    assert "unify_dictionaries" in caught.value.hint
    assert column(blocks_of(write(tmp_path / "one.arrows", words[0], words[0])), "w") == [
        b"a", b"b", b"a", b"b",
    ]  # fmt: skip


def test_what_is_cut_off_damaged_or_other_is_refused(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(100)), "text": ["word"] * 100})
    whole = write(tmp_path / "whole.arrows", table, table).read_bytes()
    write(tmp_path / "open.arrows", table, close=False)
    (tmp_path / "two.arrows").write_bytes(whole + whole)
    (tmp_path / "old.arrow").write_bytes(b"FEA1" + bytes(100))
    for name, words in (
        ("open.arrows", "ends without its end mark"),
        ("two.arrows", "the stream ends, but the file continues"),
        ("old.arrow", "not a message of Arrow IPC"),
    ):
        with pytest.raises(UserError, match=rf"{name}: .*{words}"):
            blocks_of(tmp_path / name)
    for size in range(1, len(whole), 13):
        (tmp_path / "cut.arrows").write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"cut\.arrows"):
            blocks_of(tmp_path / "cut.arrows")


def test_random_damage_is_read_as_other_values_or_refused(tmp_path: Path) -> None:
    """Never a crash: offsets of strings in a file are claims."""
    table = pa.table({"n": list(range(50)), "text": [f"word {i}" for i in range(50)]})
    choose = np.random.default_rng(5)
    for suffix in (".arrow", ".arrows"):
        whole = bytearray(write(tmp_path / f"whole{suffix}", table, table).read_bytes())
        refused = 0
        for number in range(300):
            damaged = whole.copy()
            for at in choose.integers(0, len(damaged), 4):
                damaged[at] = int(choose.integers(0, 256))
            path = tmp_path / f"{number}{suffix}"
            path.write_bytes(damaged)
            try:
                blocks_of(path)
            except UserError as error:
                assert path.name in error.message
                refused += 1
        assert 20 < refused < 300


def test_columns_without_a_numpy_form_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "data.arrow", pa.table({"a": [1], "deep": [[[1]]]}))
    with pytest.raises(UserError, match="column 'deep' has type list"):
        blocks_of(path)
    assert column(blocks_of(path, {"columns": "a"}), "a") == [1]
    with pytest.raises(UserError, match="no column 'z'; available: a, deep"):
        blocks_of(path, {"columns": "z"})


def save(folder: Path, names: list[str], **state: Any) -> Path:
    """A folder as `save_to_disk` writes it."""
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        table = pa.table({"n": [10 * number, 10 * number + 1]})
        write(folder / "part.arrows", table).rename(folder / name)
    (folder / "dataset_info.json").write_text("{}")
    content = {"_data_files": [{"filename": name} for name in names], **state}
    (folder / "state.json").write_text(json.dumps(content))
    return folder


def test_a_saved_dataset_is_read_in_the_order_that_it_lists(tmp_path: Path) -> None:
    folder = save(tmp_path / "data", ["b.arrow", "a.arrow"])
    write(folder / "cache-1.arrow", pa.table({"other": [1]}))
    reader = open_reader(f"{folder}/", {})
    sources = reader.sources()
    assert [Path(source.name).name for source in sources] == ["b.arrow", "a.arrow"]
    records = [
        value
        for source in sources
        for block in reader.read(Shard(ShardId(1), source.name, 0, 2))
        for value in column([block], "n")
    ]
    assert records == [0, 1, 10, 11]


def test_a_saved_dataset_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "all" / "train", ["a.arrow"])
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    save(tmp_path / "lost", ["a.arrow", "b.arrow"]).joinpath("b.arrow").unlink()
    save(tmp_path / "picked", ["a.arrow"], _indices_data_files=[{"filename": "indices.arrow"}])
    save(tmp_path / "cache", ["a.arrow"]).joinpath("state.json").unlink()
    save(tmp_path / "odd", ["a.arrow"]).joinpath("state.json").write_text("{")
    save(tmp_path / "empty", [])
    for name, words in (
        ("all", "splits of a data set: train, test"),
        ("lost", r"lacks b\.arrow"),
        ("picked", "selects records by a file of indices"),
        ("cache", r"no state\.json"),
        ("odd", r"state\.json is not JSON"),
        ("empty", "no records"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            open_reader(str(tmp_path / name), {})
        assert name in caught.value.message
    assert open_reader(str(tmp_path / "all" / "train"), {}).sources()[0].records == 2
    assert open_reader(str(tmp_path / "cache" / "*.arrow"), {}).sources()[0].records == 2
