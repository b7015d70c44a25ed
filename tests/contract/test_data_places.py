"""A record is told by file and line, or offset, or number, whatever format it is in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data import Reader, open_custom_reader, open_reader
from elasticdl.data.places import place_of
from elasticdl.worker.pipeline.user_reader import UserReader
from tests.tfrecords import framed

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("own_cache")]


def place(reader: Reader, number: int) -> str:
    return place_of(reader, reader.sources()[0].name, number)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("header", [True, False])
def test_a_csv_record_is_reported_by_its_line(tmp_path: Path, end: str, header: bool) -> None:
    path = tmp_path / "data.csv"
    lines, expected = (["a,b"] if header else []), []
    for number in range(1000):
        if number % 100 == 7:
            lines.append("")  # no record
        expected.append(len(lines) + 1)
        if number % 10 == 3 and end != "\r":  # a record of two lines
            lines += [f'"{number}', 'more",1']
        else:
            lines.append(f"{number},1")
    path.write_bytes(("﻿" + end.join(lines)).encode())
    reader = open_reader(str(path), {"header": header})
    assert [place(reader, number) for number in range(1000)] == [
        f"{path}:{line}" for line in expected
    ]


def test_a_bad_csv_row_is_reported_by_its_line_too(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\n1,2,3\n1\n3,4\n")
    reader = open_reader(str(path), {}, max_bad_records=2)
    assert [place(reader, number) for number in (0, 2, 3)] == [
        f"{path}:{line}" for line in (2, 4, 5)
    ]


def test_a_tfrecord_is_reported_by_its_number_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    frames = []
    for number in range(600):
        data = b"x" * (number % 5)
        frames.append(framed(data))
    path.write_bytes(b"".join(frames))
    reader = open_reader(str(path), {})
    assert place(reader, 0) == f"{path}: record 0 at offset 0"
    assert place(reader, 599) == f"{path}: record 599 at offset {len(b''.join(frames[:599]))}"


def test_a_record_without_lines_is_reported_by_its_number(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": list(range(10))}), tmp_path / "x.parquet")
    np.savez(tmp_path / "x.npz", x=np.arange(10))
    np.save(tmp_path / "x.npy", np.arange(10))
    for name in ("x.parquet", "x.npz", "x.npy"):
        assert place(open_reader(str(tmp_path / name), {}), 7) == f"{tmp_path / name}: record 7"


def test_a_reader_of_ones_own_may_tell_places_and_need_not() -> None:
    class Plain:
        def create_shards(self) -> Any:
            return {"table": (0, 10)}

        def read_records(self, task: Any) -> Any:
            yield from (str(number) for number in range(task.start, task.end))

    plain = UserReader(
        open_custom_reader(lambda origin, records_per_task: Plain(), "x", {}), "/zoo"
    )
    assert place(plain, 7) == "table: record 7"

    class WithPlaces:
        metadata = None

        def sources(self) -> Any:
            return ()

        def read(self, shard: Any) -> Any:
            yield from ()

        def place(self, source: Any, number: Any) -> Any:
            return f"row {number} of {source}"

    with_places = UserReader(
        open_custom_reader(lambda origin, records_per_task: WithPlaces(), "x", {}), "/zoo"
    )
    assert place_of(with_places, "t", 3) == "row 3 of t"
