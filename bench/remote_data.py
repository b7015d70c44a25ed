"""How fast data is read from S3 on loopback with latency: `python -m bench.remote_data`.

MB/s of file in one process: local from the page cache, and remote from a server in a process of its
own. Shards are read one after another, as one worker's reader thread does.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from bench.data_files import write_csv, write_parquet, write_tfrecord
from elasticdl.data import open_reader
from elasticdl.data.base import Reader
from elasticdl.shard import Shard, ShardId
from tests.object_store import serving

LATENCY_S = 0.02
SHARDS = 24


def serve(folder: str, pipe: Connection) -> None:
    with serving() as store:
        for path in Path(folder).iterdir():
            store.put(path.name, path.read_bytes())
        store.faults.latency_s = LATENCY_S
        pipe.send(store.environment())
        pipe.recv()


def timed(reader: Reader, name: str, size_mb: float) -> tuple[float, float]:
    """MB/s of the index, and of reading."""
    begun_s = time.monotonic()
    (source,) = reader.sources()
    indexed_s = time.monotonic()
    cuts = [source.records * part // SHARDS for part in range(SHARDS + 1)]
    for number, (begin, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
        for _ in reader.read(Shard(ShardId(number), name, begin, end)):
            pass
    return size_mb / (indexed_s - begun_s), size_mb / (time.monotonic() - indexed_s)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ELASTICDL_CACHE_DIR"] = f"{folder}/cache"
        data = Path(folder) / "data"
        data.mkdir()
        write_csv(data / "short.csv", 0)
        write_tfrecord(data / "kilobytes.tfrecord", 1000)
        write_parquet(data / "numbers.parquet")
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        server = context.Process(target=serve, args=(str(data), theirs), daemon=True)
        server.start()
        os.environ.update(ours.recv())
        print(f"latency {1000 * LATENCY_S:.0f} ms, {SHARDS} shards a file")
        for path in sorted(data.iterdir()):
            size_mb = path.stat().st_size / 1e6
            address = f"s3://bucket/{path.name}"
            local = timed(open_reader(str(path), {}), str(path), size_mb)
            remote = timed(open_reader(address, {}), address, size_mb)
            print(
                f"{path.name:20} index {local[0]:7.0f} {remote[0]:6.0f} MB/s"
                f"   read {local[1]:6.0f} {remote[1]:6.0f} MB/s   ratio {remote[1] / local[1]:.2f}"
            )
        ours.send(None)
        server.join()


if __name__ == "__main__":
    main()
