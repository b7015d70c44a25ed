"""How fast files are indexed and read: `python -m bench.data_files`.

MB/s of file, one process, data in the page cache.
"""

from __future__ import annotations

import csv
import os
import random
import sqlite3
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from elasticdl.data import open_reader
from elasticdl.native._native import crc32c
from elasticdl.shard import Shard, ShardId

SIZE_BYTES = 100 << 20


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def write_csv(path: Path, quoting: Literal[0, 1]) -> None:
    choose = random.Random(1)
    words = [
        *(f"{choose.random():.3f}" for _ in range(50)),
        "abc",
        "hello world",
        *(str(choose.randrange(10**6)) for _ in range(50)),
    ]
    rows = [[choose.choice(words) for _ in range(10)] for _ in range(5000)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=quoting)
        writer.writerow([f"c{i}" for i in range(10)])
        while file.tell() < SIZE_BYTES:
            writer.writerows(rows)


def write_tfrecord(path: Path, record_bytes: int) -> None:
    record = random.Random(1).randbytes(record_bytes)
    length = struct.pack("<Q", record_bytes)
    frame = length + masked(length) + record + masked(record)
    path.write_bytes(frame * (SIZE_BYTES // len(frame)))


def write_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    columns = {f"x{i}": rng.random(1_200_000) for i in range(10)}
    pq.write_table(
        pa.table(columns), path, row_group_size=100_000, compression="none", use_dictionary=False
    )


def write_arrow(path: Path) -> None:
    import pyarrow as pa

    rng = np.random.default_rng(1)
    table = pa.table({f"x{i}": rng.random(1_200_000) for i in range(10)})
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)


def write_sqlite(path: Path) -> None:
    rng = np.random.default_rng(1)
    names = [f"x{i}" for i in range(10)]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"CREATE TABLE t ({' REAL, '.join(names)} REAL)")
        rows = rng.random((1_100_000, 10)).tolist()
        database.executemany(f"INSERT INTO t VALUES ({', '.join('?' * 10)})", rows)


def write_npz(path: Path) -> None:
    np.savez(
        path,
        x=np.zeros((SIZE_BYTES // 400, 100), np.float32),
        y=np.zeros(SIZE_BYTES // 400, np.int64),
    )


def files(folder: Path) -> Iterator[tuple[str, Path, Callable[[Path], None]]]:
    yield (
        "CSV, 10 short fields",
        folder / "plain.csv",
        lambda path: write_csv(path, csv.QUOTE_MINIMAL),
    )
    yield (
        "CSV, every field quoted",
        folder / "quoted.csv",
        lambda path: write_csv(path, csv.QUOTE_ALL),
    )
    for size in (100, 1000, 100_000):
        yield (
            f"TFRecord, {size} bytes",
            folder / f"{size}.tfrecord",
            partial(write_tfrecord, record_bytes=size),
        )
    yield "Parquet, 10 float64", folder / "a.parquet", write_parquet
    yield "Arrow, 10 float64", folder / "a.arrows", write_arrow
    yield "SQLite, 10 REAL", folder / "a.sqlite", write_sqlite
    yield "npz, 100 float32", folder / "a.npz", write_npz


def main() -> None:
    print(f"{'file':26}{'index MB/s':>12}{'read MB/s':>12}{'records/s':>14}")
    with tempfile.TemporaryDirectory() as name:
        os.environ["ELASTICDL_CACHE_DIR"] = f"{name}/cache"
        for title, path, write in files(Path(name)):
            write(path)
            megabytes = path.stat().st_size / 1e6
            origin = f"sqlite:///{path}" if path.suffix == ".sqlite" else str(path)
            reader = open_reader(origin, {})
            began_s = time.perf_counter()
            (source,) = reader.sources()
            indexed_s = time.perf_counter()
            records = sum(
                block.count
                for block in reader.read(Shard(ShardId(1), source.name, 0, source.records))
            )
            done_s = time.perf_counter()
            read_s = done_s - indexed_s
            print(
                f"{title:26}{megabytes / (indexed_s - began_s):12,.0f}"
                f"{megabytes / read_s:12,.0f}{records / read_s:14,.0f}"
            )
            path.unlink()


if __name__ == "__main__":
    main()
