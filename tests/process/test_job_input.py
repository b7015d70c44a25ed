"""Bad input gets its message and exit code before any process starts, and leaves nothing behind.

What the look at model and data refuses is shown by that look alone, and for one module and one file
by the command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.cli.main import run
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.model.preflight_process import check
from tests.conftest import ROOT, Job, write_iris

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

GOOD = """
import keras, tensorflow as tf
def custom_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
def loss(labels, predictions):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, predictions)
def optimizer():
    return keras.optimizers.SGD(0.1)
def feed(dataset, mode, metadata):
    def parse(row):
        values = tf.strings.to_number(row)
        return values[:4], tf.cast(values[4], tf.int32)
    return dataset.map(parse)
"""


@pytest.fixture
def zoo(tmp_path: Path) -> Callable[..., Path]:
    folder = tmp_path / "zoo"
    folder.mkdir()

    def write(source: str, name: str = "model") -> Path:
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
        return folder

    return write


def refused(job: Job, *words: str, code: int = 2) -> str:
    """The job was refused with these words, and its directory is not there."""
    got, output = job.finish(120)
    assert got == code, output
    for word in words:
        assert word in output, output
    assert not job.directory.exists(), sorted(job.directory.rglob("*"))
    return output


def refused_by_the_check(folder: Path, data: Path, *words: str) -> None:
    flags = {"model_zoo": str(folder), "model_def": "model", "training_data": str(data)}
    found = check(JobSpec.from_flags(Action.TRAIN, flags))
    assert (found["ok"], found["exit_code"]) == (False, 2), found
    for word in words:
        assert word in found["error"] + found["hint"], found


def test_a_module_with_a_syntax_error_is_named_with_its_line(
    start_job: Callable[..., Job], zoo: Callable[..., Path], iris_csv: Callable[..., Path]
) -> None:
    folder = zoo(GOOD + "\ndef broken(:\n    pass\n")
    refused(start_job(model_zoo=folder, model_def="model", training_data=iris_csv()), "model.py:15")


def test_a_module_without_a_loss_is_told_what_is_missing(
    zoo: Callable[..., Path], iris_csv: Callable[..., Path]
) -> None:
    folder = zoo(GOOD.replace("def loss", "def cost"))
    refused_by_the_check(folder, iris_csv(), "loss", "model.py")


def test_a_module_that_calls_exit_is_an_error_of_the_module(
    zoo: Callable[..., Path], iris_csv: Callable[..., Path]
) -> None:
    folder = zoo("import sys\n" + GOOD + "\nsys.exit(3)\n")
    refused_by_the_check(folder, iris_csv(), "model.py:16")


def test_shapes_that_do_not_fit_are_found_before_anything_starts(
    zoo: Callable[..., Path], iris_csv: Callable[..., Path]
) -> None:
    folder = zoo(GOOD.replace("keras.Input((4,))", "keras.Input((5,))"))
    refused_by_the_check(folder, iris_csv(), "model.py")


def test_an_optimizer_that_servers_do_not_know_is_refused_by_name(
    zoo: Callable[..., Path], iris_csv: Callable[..., Path]
) -> None:
    folder = zoo(GOOD.replace("keras.optimizers.SGD(0.1)", "keras.optimizers.Lion(0.1)"))
    refused_by_the_check(folder, iris_csv(), "Lion")


def test_a_missing_file_is_named(zoo: Callable[..., Path], tmp_path: Path) -> None:
    refused_by_the_check(zoo(GOOD), tmp_path / "nowhere.csv", "nowhere.csv")


def test_an_empty_file_is_named(zoo: Callable[..., Path], tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.touch()
    refused_by_the_check(zoo(GOOD), empty, "empty.csv")


def test_a_malformed_row_is_shown_with_its_line_number(
    zoo: Callable[..., Path], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("a,b,c,d,e\n1,2,3,4,0\n1,2,3\n1,2,3,4,1\n")
    refused_by_the_check(zoo(GOOD), bad, "bad.csv", "3")


BATCH = 16
REFUSED = (
    "feed raised InvalidArgumentError: StringToNumberOp could not correctly convert string: n/a"
)


def csv_with_bad_cells(path: Path, *numbers: int) -> Path:
    """200 records; these have a text for a number.

    What is looked at before the job are the first 16.
    """
    rows = [f"5.1,3.5,1.{number % 10},0.2,{number % 3}" for number in range(200)]
    for number in numbers:
        rows[number] = "5.1,n/a,1.4,0.2,0"
    path.write_text("\n".join(["a,b,c,d,e", *rows, ""]))
    return path


def test_a_cell_that_feed_cannot_take_ends_the_job_with_one_clear_message(
    start_job: Callable[..., Job], zoo: Callable[..., Path], tmp_path: Path
) -> None:
    folder, data = zoo(GOOD), csv_with_bad_cells(tmp_path / "cells.csv", 150)
    code, output = start_job(
        model_zoo=folder, model_def="model", training_data=data, minibatch_size=BATCH
    ).finish()
    assert code == 1
    (told,) = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert told == f"Error: {data}:152: column 'b' is 'n/a': {REFUSED} (at {folder}/model.py:9)", (
        output
    )
    assert "graph" not in output.lower(), output


@pytest.fixture(scope="module")
def within_the_limit(
    start_jobs: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Job, str]:
    """A job with two bad cells, of which the first is seen before it starts; and its output."""
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "model.py").write_text(GOOD)
    job = start_jobs(
        model_zoo=folder,
        model_def="model",
        training_data=csv_with_bad_cells(folder / "cells.csv", 2, 150),
        minibatch_size=BATCH,
        max_bad_records=2,
        num_workers=2,
        sync=False,
    )
    code, output = job.finish()
    assert code == 0, output
    return job, output


def test_cells_that_feed_cannot_take_are_left_out_and_counted_within_the_limit(
    within_the_limit: tuple[Job, str],
) -> None:
    total = within_the_limit[0].receipt()["total"]
    assert (total["expected"], total["bad"], total["lost"]) == (200, 2, 0), total


def test_what_the_check_only_warns_of_is_reported(within_the_limit: tuple[Job, str]) -> None:
    job, output = within_the_limit
    assert f"Warning: {job.spec()['data']['training_data']}:4: column 'b' is 'n/a'" in output


def test_an_unknown_flag_is_refused_with_the_closest_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["train", "--num-workerz", "3"]) == 2
    assert "num-workers" in capsys.readouterr().err


WRONG_PATHS = (
    ({"training_data": "missing.csv"}, "--training-data: missing.csv does not exist"),
    ({"training_data": "sqlite:///missing?table=t"}, "missing: No such file"),
    ({"training_data": "duckdb:///missing"}, "is not the address of a table"),
    ({"validation_data": "missing/*.csv"}, "--validation-data: no file matches"),
    ({"model_def": "missing"}, "--model-def 'missing': no such module"),
    ({"model_zoo": "missing"}, "is not a directory"),
    ({"output": "/proc/self/export"}, "cannot make /proc/self/export"),
    ({"tensorboard_log_dir": "/proc/self/board"}, "cannot make /proc/self/board"),
)


def test_a_wrong_path_is_reported_before_tensorflow_is_imported(tmp_path: Path) -> None:
    """No child is started: it is the one that imports TensorFlow."""
    write_iris(tmp_path / "train.csv")
    (tmp_path / "model.py").write_text("raise AssertionError('imported')")
    right = {
        "model_zoo": str(tmp_path),
        "model_def": "model",
        "training_data": str(tmp_path / "train.csv"),
    }
    calls = [
        [verb, *(f"--{name.replace('_', '-')}={value}" for name, value in {**right, **one}.items())]
        for verb in ("check", "train")
        for one, _ in WRONG_PATHS
    ]
    done = subprocess.run(
        [sys.executable, "-c", NO_CHILD, json.dumps(calls)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout)
    for call, (code, errors), (_, message) in zip(calls, ends, 2 * WRONG_PATHS, strict=True):
        assert (code, message in errors) == (2, True), (call, errors)


NO_CHILD = """
import contextlib, io, json, subprocess, sys
def refuse(*_, **__): raise AssertionError("a child was started")
subprocess.Popen.__init__ = refuse
from elasticdl.cli.main import run
ends = []
for call in json.loads(sys.argv[1]):
    told = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
        ends.append((run(call), told.getvalue()))
    assert not {"tensorflow", "keras"} & set(sys.modules), call
print(json.dumps(ends))
"""
