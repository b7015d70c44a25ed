"""Measure a worker's step without server or network: `python -m bench.step OPTIMIZER BATCH
[SECONDS]`.

DeepFM of `bench/zoo`; rows come from native tables in this process and go back to them, so the sum
is what one worker with an infinitely fast network would do, to be compared with
`python -m bench.peer_loop OPTIMIZER BATCH`. TensorFlow uses what was pulled in place, as in a job.
Prints JSON: medians in ms of each part, CPU time in ms of a step, samples/s.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from itertools import repeat
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from bench.deepfm_data import arrays
from elasticdl.embedding.table import native_optimizer, native_table
from elasticdl.job_flags import ModelSection
from elasticdl.model.module import load_module
from elasticdl.model.ps_model import PsModel
from elasticdl.model.step import CompiledStep
from elasticdl.native import _native
from elasticdl.rpc.parameters import Floats, Pulled, aligned
from tests.reference_optimizers import initial_slot

PARTS = ("prepare", "pull", "step", "push")


def main(kind: str, batch: int, seconds: float) -> None:
    module = load_module(
        ModelSection(model_zoo=str(Path(__file__).parent / "zoo"), model_def="deepfm")
    )
    ps_model = PsModel.build(module, {"optimizer": kind}, threshold_bytes=1 << 20, seed=0)
    step = CompiledStep(ps_model, module)
    spec = ps_model.parameters
    tables = [native_table(table, spec.optimizer) for table in spec.tables]
    rule, weights = native_optimizer(spec.optimizer), ps_model.dense()
    slots = [
        np.full_like(weights, initial_slot(spec.optimizer, slot))
        for slot in range(spec.optimizer.slots)
    ]
    count = max(8, min(64, 200_000 // batch))
    dense, ids, labels = arrays(batch * count)
    batches = [
        (
            {"numbers": tf.constant(dense[k : k + batch]), "ids": tf.constant(ids[k : k + batch])},
            tf.constant(labels[k : k + batch]),
        )
        for k in range(0, batch * count, batch)
    ]
    times: dict[str, list[float]] = {part: [] for part in PARTS}
    ends: list[tuple[float, float]] = []
    number, stop = 0, time.perf_counter() + seconds
    while number < 2 * count or time.perf_counter() < stop:
        features, label = batches[number % count]
        marks = [time.perf_counter()]
        lookups = step.prepare(features, training=True)
        marks.append(time.perf_counter())
        rows = tuple(
            _pulled(table.lookup(wanted)) for table, wanted in zip(tables, lookups.ids, strict=True)
        )
        pulled = Pulled((number,), _pulled(weights), rows)
        marks.append(time.perf_counter())
        outcome = step.train(features, label, lookups, pulled)
        marks.append(time.perf_counter())
        number += 1
        for table, wanted, gradient, squares in zip(
            tables, lookups.ids, outcome.gradients, outcome.squares or repeat(None), strict=False
        ):
            table.apply(wanted, gradient, outcome.learning_rate, number, squares)
        _native.update_dense(
            rule, weights, slots, np.ascontiguousarray(outcome.dense), outcome.learning_rate, number
        )
        marks.append(time.perf_counter())
        if number > count:  # the first round creates all rows and traces all functions
            for part, begin, end in zip(PARTS, marks, marks[1:], strict=False):
                times[part].append(end - begin)
            ends.append((time.perf_counter(), time.process_time()))
    wall, cpu = (end - begin for begin, end in zip(ends[0], ends[-1], strict=True))
    steps = len(ends) - 1
    found = {part: round(statistics.median(values) * 1e3, 3) for part, values in times.items()}
    found |= {
        "wall": round(wall / steps * 1e3, 3),
        "cpu": round(cpu / steps * 1e3, 3),
        "samples_per_s": round(steps * batch / wall),
    }
    print(json.dumps({"optimizer": kind, "batch": batch, "ms": found}))


def _pulled(values: Floats) -> Floats:
    """A copy in memory of the kind that a pull returns."""
    array = aligned(values.shape, values.dtype.name)
    array[:] = values
    return array


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 5.0)
