"""How long workers wait when the number of parameter servers changes, by the size of the rows.

`python -m bench resizing` runs two jobs on this machine for each of RESIZING_MIB (63,252): one that
makes all rows of a table, and one that begins with its checkpoint. The second trains with 2 workers
at full speed, 26 ids an example by Zipf 1.05, and its servers change from 2 to 3 and back
RESIZING_TIMES (2) times.

- waited_s: from the cut after which the servers admit no push until the map changes, by the master;
- of_it_s: to cut and seal, to save the last checkpoint, and to restore it;
- still_s: the longest time without a step of any worker around it, by the workers;
- usual_s: the longest one in the 5 s before;
- took_s: the whole change, with the start of the new servers.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.jobs import RunningJob, running
from bench.step_log import steps_of, still_s

MIB = tuple(int(one) for one in os.environ.get("RESIZING_MIB", "63,252").split(","))
TIMES = int(os.environ.get("RESIZING_TIMES", "2"))
ROW_BYTES = 72
FIELDS, BATCH, WORKERS = 26, 512, 2
ZIPF = 1.05
REST_S, LIMIT_S = 5.0, 180.0


def measure() -> dict[str, Any]:
    figures = {}
    for mib in MIB:
        figures[str(mib)] = [*_changes(mib * 2**20 // ROW_BYTES)]
        for one in figures[str(mib)]:
            print(f"{mib} MiB  {one}", flush=True)
    return figures


def _changes(rows: int) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder, _training(Path(folder), rows) as job:
        for number, servers in enumerate((3, 2) * TIMES, 1):
            time.sleep(REST_S)
            asked_s = time.time()
            job.scale_servers(servers)
            moved = job.until(f"{servers} servers", partial(_moved, job, number), LIMIT_S)
            time.sleep(REST_S)
            details, done_s = moved["details"], moved["at"]
            waited_s = details["waited_s"]
            yield {
                "servers": servers,
                "waited_s": round(waited_s, 3),
                "of_it_s": [round(details[part], 3) for part in ("seal_s", "save_s", "restore_s")],
                "still_s": still_s(job.directory, done_s - waited_s - 1.0, done_s + 2.0),
                "usual_s": still_s(job.directory, asked_s - REST_S, asked_s),
                "took_s": round(done_s - asked_s, 1),
            }


@contextmanager
def _training(folder: Path, rows: int) -> Iterator[RunningJob]:
    """A job whose servers have all rows, and that trains."""
    flags: dict[str, Any] = {
        "model_def": "wide",
        "minibatch_size": BATCH,
        "records_per_task": 16 * BATCH,
        "num_workers": WORKERS,
        "num_ps_pods": 2,
    }
    first = folder / "first"
    first.mkdir()
    every, some = first / "ids.npy", folder / "ids.npy"
    np.save(every, np.resize(np.arange(rows), (-(-rows // FIELDS), FIELDS)))
    np.save(some, _zipf(rows, 200_000))
    with running(first, training_data=every, checkpoint_steps=10**6, **flags) as job:
        job.finish(LIMIT_S)
    begun = first / "job" / "checkpoints"
    flags |= {"training_data": some, "num_epochs": 10_000, "checkpoint_dir_for_init": begun}
    with running(folder, **flags) as job:
        job.until("all workers train", lambda: _train(job) or None)
        yield job


def _zipf(rows: int, examples: int) -> Any:
    """int64[examples, FIELDS]: ids in an order that has nothing to do with how often they come."""
    choose = np.random.default_rng(0)
    shares = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -ZIPF)
    ranks = np.searchsorted(shares / shares[-1], choose.random((examples, FIELDS)))
    return choose.permutation(rows)[np.minimum(ranks, rows - 1)]


def _train(job: RunningJob) -> bool:
    return sum(len(times_s) > 10 for times_s in steps_of(job.directory).values()) >= WORKERS


def _moved(job: RunningJob, number: int) -> dict[str, Any] | None:
    """The event of the change of that number, from 1."""
    lines = (job.directory / "events.jsonl").read_text().splitlines()
    moves = [one for one in map(json.loads, lines) if "waited_s" in one["details"]]
    return moves[number - 1] if len(moves) >= number else None


if __name__ == "__main__":
    measure()
