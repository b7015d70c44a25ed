"""Whole jobs with a worker or server that is stopped, hangs or is slow: the job names it, goes on
without it, and trains every record once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.model.tensorflow_import import load_tensorflow
from tests.commands import printed
from tests.conftest import Job

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

RECORDS, SIZE = 4096, 16
MODULE = """
import ctypes, os, time
import keras
import tensorflow as tf
from elasticdl.model.layers import Embedding

def custom_model(rows):
    ids = keras.Input((), dtype="int64", name="id")
    zeros = keras.initializers.Zeros()
    row = Embedding(1, input_dim=rows, served=True, embeddings_initializer=zeros)
    return keras.Model(ids, row(ids))

def wait():
    if os.environ.get("ELASTICDL_PROCESS") == os.environ.get("SLOW_WORKER", "none"):
        time.sleep(float(os.environ["SLOW_S"]))
    elif not os.path.exists(os.environ.get("HURRY_FILE", "")):
        time.sleep(float(os.environ["STEP_S"]))
    return 0.0

def loss(labels, predictions):
    # A sum: each time that a record is trained adds 1 to its row.
    return -tf.reduce_sum(predictions) + tf.py_function(wait, [], tf.float32)

def optimizer():
    return keras.optimizers.SGD(1.0)

def hang():
    # It holds the interpreter's lock. Unlike a sleep, it goes on after a signal.
    ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)

def rest():
    time.sleep(3600)

HANGS = {1500: rest, 2000: hang}

def is_first(record):
    try:
        with open(os.environ["HANG_FILE"] + record, "x") as file:
            file.write(os.environ["ELASTICDL_PROCESS"])
    except FileExistsError:
        return False
    return True

def number(text):
    # The check of the model reads the first records only.
    if "HANG_FILE" in os.environ and int(text) in HANGS and is_first(str(int(text))):
        HANGS[int(text)]()
    return int(text)

def feed(dataset, mode, metadata):
    def parse(record):
        one = tf.numpy_function(number, [record[0]], tf.int64)
        one.set_shape(())
        return one, one
    return dataset.map(parse)
"""


@pytest.fixture
def start_counting(start_job: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    """A job on the ids 0 to RECORDS - 1, with these variables in its processes."""
    (tmp_path / "counting.py").write_text(MODULE)
    (tmp_path / "ids.csv").write_text("\n".join(["id", *map(str, range(RECORDS))]) + "\n")

    def start(variables: dict[str, str], **flags: object) -> Job:
        return start_job(
            "train",
            model_zoo=tmp_path,
            model_def="counting",
            model_params=f"rows={RECORDS}",
            training_data=tmp_path / "ids.csv",
            minibatch_size=SIZE,
            sync=False,
            output=tmp_path / "export",
            envs=";".join(f"{name}={value}" for name, value in variables.items()),
            **{"records_per_task": 8 * SIZE, "num_workers": 3, "num_ps_pods": 1, **flags},
        )

    return start


def check_each_record_counts_once(job: Job, epochs: int = 1) -> None:
    """In each epoch."""
    code, output = job.finish()
    assert code == 0, output
    total = job.receipt()["total"]
    assert (total["trained"], total["lost"]) == (epochs * RECORDS, 0), total
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    load_tensorflow()
    import tensorflow as tf

    serve = tf.saved_model.load(job.spec()["checkpoint"]["output"]).signatures["serving_default"]
    [name] = serve.structured_input_signature[1]
    [outputs] = serve(**{name: tf.range(RECORDS, dtype=tf.int64)}).values()
    np.testing.assert_array_equal(np.asarray(outputs.numpy()).ravel(), float(epochs))


def why(job: Job) -> str:
    return printed("why", "--job-dir", str(job.directory))


def pid_of(job: Job, name: str) -> int:
    wanted = f"ELASTICDL_PROCESS={name}".encode()
    for pid in job.pids(name.partition("-")[0]):
        with suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if wanted in variables:
                return pid
    raise AssertionError(f"there is no {name}")


def facts(job: Job, kind: str, process: str) -> list[dict[str, Any]]:
    return [event for event in job.events() if (event["kind"], event["process"]) == (kind, process)]


def in_training(status: dict[str, Any]) -> bool:
    return bool(status["records"]["trained"] > RECORDS // 8)


def test_a_stopped_worker_and_those_whose_code_hangs_are_named_and_their_shards_go_to_others(
    start_counting: Callable[..., Job], tmp_path: Path
) -> None:
    folder = tmp_path / "hang"
    folder.mkdir()
    variables = {"STEP_S": "0.2", "HANG_FILE": f"{folder}/at-"}
    job = start_counting(variables, records_per_task=4 * SIZE, num_workers=4)

    def hanging() -> dict[str, str]:
        """The function that does not return, by worker."""
        names = {"at-1500": "rest", "at-2000": "hang"}
        return {one.read_text(): names[one.name] for one in folder.iterdir()}

    job.wait_until("two workers hang", lambda _: len(hanging()) == 2 and all(hanging()))
    hung = hanging()
    job.wait_until("an eighth is trained", in_training)
    stopped = next(name for name in ("worker-0", "worker-1", "worker-2") if name not in hung)
    os.kill(pid_of(job, stopped), signal.SIGSTOP)
    check_each_record_counts_once(job)
    assert any("SIGSTOP" in fact["text"] for fact in facts(job, "process", stopped))
    ended = [event for event in job.events() if event["cause"] == "hung"]
    assert {one["process"] for one in ended} == set(hung), ended
    for name, function in hung.items():
        [frames] = {
            one["details"]["frames"]
            for one in ended
            if one["process"] == name and one["details"].get("frames")
        }
        last = [line.rpartition(", in ")[2] for line in frames.splitlines()]
        assert last == ["number", function], frames
    told = why(job)
    assert f"at {tmp_path / 'counting.py'}:" in told, told
    assert "it was stopped (SIGSTOP)" in told


@contextmanager
def throttled(pid: int, share: float) -> Iterator[None]:
    """The process runs for that share of the time only, as behind a CPU limit."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.4 * share):
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.4 * (1.0 - share))
            os.kill(pid, signal.SIGCONT)

    def until_it_is_gone() -> None:
        with suppress(ProcessLookupError):
            run()

    thread = threading.Thread(target=until_it_is_gone)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_throttled_server_is_replaced_and_idle_workers_get_the_last_shards_of_a_slow_one(
    start_counting: Callable[..., Job], tmp_path: Path
) -> None:
    variables = {"STEP_S": "0.2", "SLOW_WORKER": "worker-1", "SLOW_S": "4"}
    variables["HURRY_FILE"] = str(tmp_path / "hurry")
    # The others need at least 50 s before they hurry. The server is replaced after 30 to 40 s,
    # before worker-1 would be for its slowness.
    job = start_counting(variables, num_ps_pods=2, num_epochs=2, checkpoint_seconds=0)
    job.wait_until("an eighth is trained", in_training)
    with throttled(pid_of(job, "ps-1"), 0.05):
        job.wait_until(
            "it is named",
            lambda _: any("is slow" in fact["text"] for fact in facts(job, "straggler", "ps-1")),
        )
        job.wait_until(
            "it is replaced",
            lambda _: any(fact["cause"] == "straggler" for fact in facts(job, "process", "ps-1")),
        )
    (tmp_path / "hurry").touch()
    check_each_record_counts_once(job, epochs=2)
    told = facts(job, "straggler", "worker-1")
    assert any("idle workers get" in one["text"] for one in told), job.events()
