"""Files of records with the ids 0, 1, 2 …, in any format and cut into files anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.tfrecords import framed

BAD_ROW = "one,field,too,many,by,far"
BAD_CELL = "no number"


def write(path: Path, style: str, ids: Sequence[int], *, group: int = 128) -> None:
    """One file; `style` is one of those of `flags.STYLES`.

    `group`: records in a row group of Parquet.
    """
    {
        "csv": _csv,
        "csv-plain": _csv_plain,
        "tsv": _tsv,
        "tfrecord": _tfrecord,
        "npz": _npz,
        "npz-packed": _npz_packed,
        "npy": _npy,
        "parquet": lambda path, ids: _parquet(path, ids, group),
        "lines": _lines,
    }[style](path, ids)


def spoil(path: Path, line: str, after: Sequence[int]) -> None:
    """Put a bad line into a CSV file with a header: behind each of so many of its lines."""
    lines = path.read_text().splitlines(keepends=True)
    for place in sorted(after, reverse=True):
        lines.insert(place + 1, line + "\n")
    path.write_text("".join(lines))


def _csv(path: Path, ids: Sequence[int]) -> None:
    path.write_text("".join(["note,id\n", *(f"row {one},{one}\n" for one in ids)]))


def _csv_plain(path: Path, ids: Sequence[int]) -> None:
    """Without a header, with quotes where none are needed, newlines and delimiters within them, and
    \\r\\n.
    """
    path.write_bytes("".join(f'"{one}","a ""note"";\nof two lines"\r\n' for one in ids).encode())


def _tsv(path: Path, ids: Sequence[int]) -> None:
    path.write_text("".join(["id\tnote\n", *(f"{one}\t\n" for one in ids)]).removesuffix("\n"))


def _tfrecord(path: Path, ids: Sequence[int]) -> None:
    path.write_bytes(b"".join(framed(str(number).encode()) for number in ids))


def _npz(path: Path, ids: Sequence[int]) -> None:
    np.savez(path, id=np.array(ids, np.int64), other=np.zeros((len(ids), 3), np.float32))


def _npz_packed(path: Path, ids: Sequence[int]) -> None:
    np.savez_compressed(path, id=np.array(ids, np.int32))


def _npy(path: Path, ids: Sequence[int]) -> None:
    table = np.zeros(len(ids), [("id", np.int64), ("other", np.float32)])
    table["id"] = ids
    np.save(path, table)


def _parquet(path: Path, ids: Sequence[int], group: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"id": pa.array(list(ids), pa.int64()), "note": [f"row {one}" for one in ids]})
    pq.write_table(table, path, row_group_size=group)


def _lines(path: Path, ids: Sequence[int]) -> None:
    path.write_text("".join(f"{one}\n" for one in ids))
