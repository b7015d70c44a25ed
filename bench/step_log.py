"""Log when each step was applied, from user code: a line `TIME LOSS` a step in the
job's directory, a file a worker.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import keras


class StepLog(keras.callbacks.Callback):  # type: ignore[misc]
    """Unbuffered, so that the log of a killed worker has all its steps."""

    def on_train_begin(self, logs: Any = None) -> None:
        folder = os.environ["ELASTICDL_JOB_DIR"]
        # The check runs callbacks, too, and is no process of the job.
        process = os.environ.get("ELASTICDL_PROCESS", "check")
        self._file = os.open(f"{folder}/{process}.steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        os.write(self._file, f"{time.time():.6f} {logs['loss']:.9g}\n".encode())


def steps_of(job: Path) -> dict[str, list[float]]:
    """Worker -> times of its steps (s since the epoch), of a job that may still run."""
    found = {}
    for path in job.glob("*.steps"):
        whole = path.read_text().rpartition("\n")[0]
        found[path.stem] = [float(line.split()[0]) for line in whole.splitlines()]
    return found


def still_s(job: Path, begin_s: float, end_s: float) -> float:
    """The longest time without a step of any worker, in seconds, between two times."""
    steps_s = sorted(itertools.chain(*steps_of(job).values()))
    inside = [one for one in steps_s if begin_s <= one <= end_s]
    return round(max(b - a for a, b in itertools.pairwise([begin_s, *inside, end_s])), 3)
