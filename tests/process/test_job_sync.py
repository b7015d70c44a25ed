"""Synchronous jobs with processes that die or lag: every record counts once, in the receipt and in
the weights.
"""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from elasticdl.checkpoint import directories
from elasticdl.model.tensorflow_import import load_tensorflow
from tests.conftest import Job
from tests.fuzz_jobs.counts import checkpoints

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

RECORDS, SIZE = 6144, 16
MODULE = """
import os, time
import keras
import tensorflow as tf
from elasticdl.model.layers import Embedding

class Total(keras.layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def call(self, ids):
        return tf.fill(tf.shape(ids), tf.convert_to_tensor(self.count))

def custom_model(rows):
    ids = keras.Input((), dtype="int64", name="id")
    zeros = keras.initializers.Zeros()
    record = Embedding(1, input_dim=rows, served=True, embeddings_initializer=zeros)(ids)
    return keras.Model(ids, keras.ops.stack([record[:, 0], Total()(ids)], axis=1))

def loss(labels, predictions):
    # A mean over examples: a step of n records adds 1/n to the row of each, and 1 to the total.
    def wait():
        slow = os.environ["SLOW_WORKER"] in ("all", os.environ.get("ELASTICDL_PROCESS"))
        time.sleep(float(os.environ["SLOW_S"]) if slow else 0.0)
        return 0.0
    value = -tf.reduce_sum(predictions, axis=1)
    if "SLOW_WORKER" in os.environ:
        value += tf.py_function(wait, [], tf.float32)
    return value

def optimizer():
    return keras.optimizers.SGD(1.0)

def feed(dataset, mode, metadata):
    return dataset.map(lambda record: (tf.strings.to_number(record[0], tf.int64),) * 2)
"""


@pytest.fixture
def start_sync(start_job: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    """A synchronous job on the ids 0 to RECORDS - 1."""
    (tmp_path / "once.py").write_text(MODULE)
    (tmp_path / "ids.csv").write_text("\n".join(["id", *map(str, range(RECORDS))]) + "\n")

    def start(**flags: object) -> Job:
        return start_job(
            "train",
            "--sync",
            "--global-batch=scaled",
            model_zoo=tmp_path,
            model_def="once",
            model_params=f"rows={RECORDS}",
            training_data=tmp_path / "ids.csv",
            minibatch_size=SIZE,
            records_per_task=8 * SIZE,
            output=tmp_path / "export",
            **flags,
        )

    return start


def weights(job: Job) -> tuple[NDArray[np.float64], float]:
    """The row of each record, and the total."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    load_tensorflow()
    import tensorflow as tf

    serve = tf.saved_model.load(job.spec()["checkpoint"]["output"]).signatures["serving_default"]
    [name] = serve.structured_input_signature[1]
    [outputs] = serve(**{name: tf.range(RECORDS, dtype=tf.int64)}).values()
    seen = np.asarray(outputs.numpy(), np.float64)
    return seen[:, 0], float(seen[0, 1])


def check_each_record_counts_once(job: Job, full: int) -> int:
    """Returns the number of steps."""
    rows, total = weights(job)
    # A step of n records gives n rows 1/n. Twice trained would be the sum of two such values.
    sizes, counts = np.unique(np.round(1.0 / rows).astype(int), return_counts=True)
    np.testing.assert_allclose(rows * np.round(1.0 / rows), 1.0, rtol=1e-6)
    steps = counts / sizes
    assert (steps == np.round(steps)).all(), dict(zip(sizes, counts, strict=True))
    assert sizes.max() == full * SIZE
    assert total == pytest.approx(steps.sum())
    return int(steps.sum())


def later(version: int, status: dict[str, Any]) -> bool:
    return bool(status["version"] > version)


def check_receipt(job: Job, repeated: int = 0) -> None:
    total = job.receipt()["total"]
    assert (total["trained"], total["lost"], total["repeated"]) == (RECORDS, 0, repeated), total


def returns(job: Job) -> list[dict[str, Any]]:
    """Events of all servers' return to a checkpoint."""
    return [event for event in job.events() if "all servers go back" in event["text"]]


def test_a_killed_worker_and_killed_servers_cost_no_step_and_no_record(
    start_sync: Callable[..., Job],
) -> None:
    """At last a server loses its memory, too: the job returns to a checkpoint as a whole."""
    # It must outlast the kills.
    slow = "SLOW_WORKER=all;SLOW_S=0.05"
    job = start_sync(num_workers=3, num_ps_pods=2, checkpoint_steps=20, envs=slow)
    version = 0
    for role in ("ps", "worker", "ps"):
        further = partial(later, version + 10)
        version = job.wait_until(f"it trains before a {role} is killed", further)["version"]
        assert job.kill_one(role, random.Random(0))

    def covered(status: dict[str, Any]) -> bool:
        newest = status["checkpoints"][-1]["version"] if status["checkpoints"] else 0
        return bool(version + 10 < newest < status["version"] - 3)

    job.wait_until("a checkpoint, and steps since", covered)
    job.lose_servers(1)
    code, output = job.finish()
    assert code == 0, output
    assert not any("updates_lost" in event["details"] for event in job.events())
    backs = returns(job)
    # Unless it was lost right after a checkpoint, before the next step.
    assert backs or any(" restored version " in event["text"] for event in job.events())
    check_receipt(job, repeated=sum(event["details"]["repeated"] for event in backs))
    updates = job.receipt()["updates"]
    assert (updates["lost"], updates["at_least"]) == (0, False)
    assert bool(updates["repeated"]) == bool(backs)
    steps = check_each_record_counts_once(job, full=3)
    # Only the end, and at most the wait for the lost worker's shards, has steps that are not full.
    assert RECORDS // (3 * SIZE) <= steps <= RECORDS // (3 * SIZE) + 8
    newest = checkpoints(job.directory)[-1]
    assert directories.read_manifest(newest).version <= steps


def test_a_step_of_more_gradients_than_workers_is_full_and_names_the_worker_that_it_waits_for(
    start_sync: Callable[..., Job],
) -> None:
    job = start_sync(num_workers=2, num_ps_pods=1, grads_to_wait=8)
    job.wait_until("a step", lambda status: status["version"] > 2)
    [pid, *_] = sorted(job.pids("worker"))
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    [name] = [
        entry.partition(b"=")[2].decode()
        for entry in environment
        if entry.startswith(b"ELASTICDL_PROCESS=")
    ]
    reason = re.compile(rf"step \d+ has \d of 8 gradients: {name} (reads|computes its gradient)")
    os.kill(pid, signal.SIGSTOP)
    try:
        job.wait_until(
            "a wait with its reason",
            lambda status: any(map(reason.fullmatch, status["waiting"])),
            timeout_s=60,
        )
    finally:
        os.kill(pid, signal.SIGCONT)
    code, output = job.finish()
    assert code == 0, output
    check_receipt(job)
    assert check_each_record_counts_once(job, full=8) == RECORDS // (8 * SIZE)


def test_a_step_does_not_wait_for_a_slow_worker_whose_records_others_train(
    start_sync: Callable[..., Job],
) -> None:
    environment = {"SLOW_WORKER": "worker-1", "SLOW_S": "0.4"}
    job = start_sync(
        num_workers=3,
        num_ps_pods=2,
        grads_to_wait=2,
        backup_workers=1,
        envs=";".join(f"{name}={value}" for name, value in environment.items()),
    )
    code, output = job.finish()
    assert code == 0, output
    check_receipt(job)
    check_each_record_counts_once(job, full=2)
    log = (job.directory / "logs" / "worker-1.log").read_text()
    assert "a gradient came too late for its step" in log
    done = {
        event["process"]: event["text"] for event in job.events() if "records done" in event["text"]
    }
    assert done, job.events()
