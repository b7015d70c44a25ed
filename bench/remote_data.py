"""How fast data is read from S3 on loopback with latency: `python -m bench.remote_data`.

First MB/s of file in one process: local from the page cache, and remote from a server in a process
of its own. Shards are read one after another, as one worker's reader thread does. Then records/s of
two jobs that train a small model on the same data, alternating.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from bench.data_files import write_csv, write_parquet, write_tfrecord
from bench.jobs import ROOT, running
from elasticdl.data import open_reader
from elasticdl.data.base import Reader
from elasticdl.shard import Shard, ShardId
from tests.object_store import serving

LATENCY_S = 0.02
SHARDS = 24
ROWS = 600_000
JOBS = 2


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
    for number, (begin, end) in enumerate(itertools.pairwise(cuts)):
        for _ in reader.read(Shard(ShardId(number), name, begin, end)):
            pass
    return size_mb / (indexed_s - begun_s), size_mb / (time.monotonic() - indexed_s)


def write_iris(path: Path) -> None:
    choose = random.Random(1)
    rows = [
        ",".join([*(f"{choose.random():.1f}" for _ in range(4)), str(choose.randrange(3))])
        for _ in range(10_000)
    ]
    head = "sepal_length,sepal_width,petal_length,petal_width,species\n"
    path.write_text(head + ("\n".join(rows) + "\n") * (ROWS // len(rows)))


def trained_per_s(data: str) -> float:
    """Records/s between the first and the last loss of a job."""
    with running(
        model_zoo=ROOT / "model_zoo", model_def="iris", training_data=data, minibatch_size=512
    ) as job:
        job.finish(300)
        rows = [json.loads(row) for row in (job.directory / "metrics.jsonl").open()]
    measured = [row for row in rows if "records" in row]
    first, last = measured[0], measured[-1]
    return float((last["records"] - first["records"]) / (last["at_s"] - first["at_s"]))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ELASTICDL_CACHE_DIR"] = f"{folder}/cache"
        data = Path(folder) / "data"
        data.mkdir()
        write_csv(data / "short.csv", 0)
        write_tfrecord(data / "kilobytes.tfrecord", 1000)
        write_parquet(data / "numbers.parquet")
        iris = data / "iris.csv"
        write_iris(iris)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        server = context.Process(target=serve, args=(str(data), theirs), daemon=True)
        server.start()
        os.environ.update(ours.recv())
        print(f"latency {1000 * LATENCY_S:.0f} ms, {SHARDS} shards a file")
        for path in sorted(set(data.iterdir()) - {iris}):
            size_mb = path.stat().st_size / 1e6
            address = f"s3://bucket/{path.name}"
            local = timed(open_reader(str(path), {}), str(path), size_mb)
            remote = timed(open_reader(address, {}), address, size_mb)
            print(
                f"{path.name:20} index {local[0]:7.0f} {remote[0]:6.0f} MB/s"
                f"   read {local[1]:6.0f} {remote[1]:6.0f} MB/s   ratio {remote[1] / local[1]:.2f}"
            )
        rates: dict[str, list[float]] = {}
        for _ in range(JOBS):
            for data_of in (str(iris), "s3://bucket/iris.csv"):
                rates.setdefault(data_of.partition(":")[0], []).append(trained_per_s(data_of))
        local_rate, remote_rate = (statistics.median(each) for each in rates.values())
        print(
            f"a job trains {local_rate:.0f} records/s locally, {remote_rate:.0f} from S3:"
            f" ratio {remote_rate / local_rate:.2f} (medians of {JOBS})"
        )
        ours.send(None)
        server.join()


if __name__ == "__main__":
    main()
