"""`python -m elasticdl.model.preflight_process` as the master runs it: JSON objects on stdout,
whatever user code does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from elasticdl.checkpoint import directories, ring_file
from elasticdl.checkpoint.layout import MANIFEST
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.errors import UserError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.model.checkpoint_fit import check_checkpoint
from elasticdl.model.module import load_module
from elasticdl.model.preflight_process import check
from elasticdl.model.ps_model import PsModel
from elasticdl.model.ring_model import RingModel

pytestmark = pytest.mark.process

GOOD = """
import os
import keras
import tensorflow as tf
from keras import layers
print("noise from the import")
def custom_model(units=4):
    print("noise from the model")
    os.write(1, b"noise from below Python\\n")
    ids = keras.Input((2,), dtype="int64")
    return keras.Sequential([ids, layers.Embedding(50, 4), layers.Flatten(), layers.Dense(1)])
def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels, predictions, from_logits=True)
def optimizer(lr=0.1): return keras.optimizers.Adagrad(lr)
def feed(dataset, mode, metadata):
    def parse(record):
        features = tf.strings.to_number(record[:2], tf.int64)
        return features if mode == "prediction" else (features, tf.strings.to_number(record[2:]))
    return dataset.map(parse)
def eval_metrics_fn(): return {"auc": keras.metrics.AUC(from_logits=True)}
class PredictionOutputsProcessor:
    def process(self, predictions, worker_id): raise AssertionError("nothing is predicted for real")
"""


def spec_for(
    tmp_path: Path, text: str, rows: str, action: Action, flags: dict[str, Any]
) -> JobSpec:
    (tmp_path / "made.py").write_text(text)
    (tmp_path / "data.csv").write_text("a,b,y\n" + rows)
    data = str(tmp_path / "data.csv")
    common = {
        "model_zoo": str(tmp_path),
        "model_def": "made",
        "training_data": data,
        "validation_data": data,
        "prediction_data": data,
        "embedding_threshold_bytes": 0,
        "checkpoint_dir_for_init": "x",
        "output": "" if action is Action.PREDICT else "y",
    }
    return JobSpec.from_flags(action, {**common, **flags})


ROWS = "1,2,0\n3,4,1\n5,6,0\n"
LEAVES_A_THREAD = (
    "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
)


def run(
    tmp_path: Path,
    text: str,
    rows: str = ROWS,
    action: Action = Action.TRAIN,
    environment: Mapping[str, str] | None = None,
    **flags: Any,
) -> dict[str, Any]:
    """In a process of its own."""
    spec = spec_for(tmp_path, text, rows, action, flags)
    environment = {
        **os.environ,
        **(environment or {}),
        "ELASTICDL_CACHE_DIR": str(tmp_path / "cache"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-m", "elasticdl.model.preflight_process"]
    done = subprocess.run(
        command,
        input=spec.model_dump_json(),
        capture_output=True,
        text=True,
        timeout=180,
        env=environment,
    )
    *_, found = map(json.loads, done.stdout.splitlines())  # nothing else came to stdout
    assert isinstance(found, dict) and done.returncode == (0 if found["ok"] else 2)
    return found


def look(tmp_path: Path, text: str, rows: str = ROWS, **flags: Any) -> dict[str, Any]:
    """In this process, which has TensorFlow already."""
    return check(spec_for(tmp_path, text, rows, Action.TRAIN, flags))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path / "cache"))


def test_a_good_module_tells_what_is_there_at_once_even_if_it_leaves_a_thread_running(
    tmp_path: Path,
) -> None:
    found = run(tmp_path, GOOD + LEAVES_A_THREAD)
    assert found["ok"] and found["warnings"] == []
    assert [(one["name"], one["records"]) for one in found["training"]] == [
        (str(tmp_path / "data.csv"), 3)
    ]
    assert (
        found["training"][0]["fingerprint"]
        and found["validation"] == found["training"]
        and found["prediction"] == []
    )
    assert found["model"]["tables"] == [{"name": "sequential/embedding", "dim": 4}]
    assert found["model"]["optimizer"]["kind"] == "adagrad" and found["model"]["metrics"] == [
        "auc",
        "loss",
    ]


def test_a_ring_without_horovod_is_refused_before_anything_starts(tmp_path: Path) -> None:
    broken = tmp_path / "path" / "horovod"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('built for another TensorFlow')")
    flags: dict[str, Any] = {
        "distribution_strategy": "AllreduceStrategy",
        "embedding_threshold_bytes": 2 << 20,
    }
    found = run(tmp_path, GOOD, environment={"PYTHONPATH": str(broken.parent)}, **flags)
    assert found["error"] == (
        "AllreduceStrategy needs Horovod, but its import failed: built for another TensorFlow"
    )
    assert "make horovod" in found["hint"]


class Nccl:
    """A Horovod that was built with NCCL."""

    def nccl_built(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "envs", "hint"),
    [
        ("0,1", "", "set --num-workers 2:2, or name more GPUs in CUDA_VISIBLE_DEVICES"),
        ("0,1,2", "CUDA_VISIBLE_DEVICES=0", "or remove CUDA_VISIBLE_DEVICES from --envs"),
        ("0,1,2", "", ""),
        ("", "", ""),
    ],
)
def test_a_local_ring_whose_members_would_share_a_gpu_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: str, envs: str, hint: str
) -> None:
    monkeypatch.setattr("elasticdl.model.preflight.horovod", Nccl)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", environment)
    flags: dict[str, Any] = {
        "distribution_strategy": "AllreduceStrategy",
        "embedding_threshold_bytes": 2 << 20,
        "num_workers": 3,
        "envs": envs,
    }
    # Without data the check ends early. It looks at GPUs before.
    found = look(tmp_path, GOOD, rows="", **flags)
    if hint:
        assert "NCCL needs one for each" in found["error"] and hint in found["hint"], found
    else:
        assert "no records" in found["error"], found


def test_prediction_looks_at_prediction_data_only(tmp_path: Path) -> None:
    found = check(spec_for(tmp_path, GOOD, ROWS, Action.PREDICT, {}))
    assert found["ok"] and found["training"] == [] and found["prediction"][0]["records"] == 3


@pytest.mark.parametrize(
    ("text", "output", "words"),
    [
        (
            GOOD,
            "y",
            (
                "made.py:21: PredictionOutputsProcessor receives the predictions, so nothing would"
                " be written to --output y"
            ),
        ),
        (GOOD.partition("class Pred")[0], "", "predictions have no destination"),
        (GOOD.partition("class Pred")[0], "y", ""),
    ],
)
def test_predictions_go_to_one_place(tmp_path: Path, text: str, output: str, words: str) -> None:
    found = check(spec_for(tmp_path, text, ROWS, Action.PREDICT, {"output": output}))
    assert found["ok"] is (not words) and words in found.get("error", "")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "import os\n",
            "import os\nraise SystemExit(1)\n",
            "made.py:3: importing made called exit(1)",
        ),
        (
            "return keras.Sequential",
            "return keras.Sequentiel",
            "made.py:11: custom_model raised AttributeError",
        ),
        ("layers.Flatten(), layers.Dense(1)", "layers.Flatten(), layers.Dense(3)", "loss"),
        (
            "Adagrad(lr)",
            "RMSprop(lr)",
            "made.py:14: RMSprop is not supported with parameter servers",
        ),
        ("record[2:]", "record[7]", "made.py:18: feed raised"),
        (
            "labels, predictions, from_logits=True)",
            "labels, predictions, from_logits=True)[:2]",
            "made.py:12: loss returned a tensor of shape (2,)",
        ),
        (
            "return keras.losses.binary_crossentropy(labels, predictions, from_logits=True)",
            "return 3.0",
            "made.py:12: loss returned float",
        ),
        (
            'return {"auc"',
            'return 1 / 0, {"auc"',
            "made.py:20: eval_metrics_fn raised ZeroDivisionError",
        ),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in GOOD
    found = look(tmp_path, GOOD.replace(old, new))
    assert not found["ok"] and found["exit_code"] == 2 and words in found["error"], found


@pytest.mark.parametrize("name", ["training", "validation"])
def test_data_that_is_not_there_is_named_with_its_flag(tmp_path: Path, name: str) -> None:
    found = look(tmp_path, GOOD, **{f"{name}_data": str(tmp_path / "none.csv")})
    assert found["error"] == f"--{name}-data: {tmp_path}/none.csv does not exist"


def test_validation_data_of_other_columns_is_named_by_its_flag(tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    found = look(tmp_path, GOOD, validation_data=str(other))
    words = "--validation-data has other columns than --training-data: it lacks y; "
    assert found["error"].startswith(words) and "made.py" in found["error"], found
    # The model takes what `feed` makes of it, and fails.
    other.write_text("a,y\n1,0\n")
    text = GOOD.replace("record[2:]", "record[-1:]").replace("record[:2]", "record[:-1]")
    assert look(tmp_path, text)["ok"]
    found = look(tmp_path, text, validation_data=str(other))
    assert "--training-data: it lacks b; " in found["error"], found


def test_a_checkpoint_of_another_model_is_refused_before_anything_starts(tmp_path: Path) -> None:
    text = (
        GOOD.replace("layers.Dense(1)", "layers.Dense(units)")
        .replace("layers.Flatten(), ", "layers.Flatten(), layers.Dense(units), ")
        .replace("layers.Dense(units)]", "layers.Dense(1)]")
    )
    flags: dict[str, Any] = {"job_dir": str(tmp_path / "job"), "resume": True}
    module = load_module(spec_for(tmp_path, text, ROWS, Action.TRAIN, flags).model)
    ps_model = PsModel.build(module, {"units": 4}, threshold_bytes=0, seed=0)
    checkpoints = JobDirectory(tmp_path / "job").checkpoints
    manifest = Manifest(version=5, servers=1, parameters=ps_model.parameters, files=())
    directory = directories.complete(directories.begin(checkpoints), manifest)
    assert look(tmp_path, text, **flags)["ok"]
    # A damaged one that is newer is passed over.
    damaged = directories.complete(
        directories.begin(checkpoints), Manifest(version=6, servers=1, parameters=None, files=())
    )
    (damaged / MANIFEST).write_text("{")
    found = look(tmp_path, text, model_params="units=3", **flags)
    assert found["error"].startswith(f"{directory} belongs to another model"), found
    assert "--model-params" in found["hint"]


def test_a_ring_s_checkpoint_of_another_model_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    flags: dict[str, Any] = {
        "distribution_strategy": "AllreduceStrategy",
        "embedding_threshold_bytes": 2 << 20,
    }
    spec = spec_for(tmp_path, GOOD, ROWS, Action.EVALUATE, flags)
    ring = RingModel.build(load_module(spec.model), {}, seed=0)
    making = directories.begin(tmp_path / "checkpoints")
    part = ring_file.write(making, 5, {name: one.numpy() for name, one in ring.state().items()})
    manifest = Manifest(version=5, servers=0, parameters=None, files=(part,), ledger="{}")
    flags["checkpoint_dir_for_init"] = str(directories.complete(making, manifest))
    assert check(spec_for(tmp_path, GOOD, ROWS, Action.EVALUATE, flags))["ok"]
    # Another size: bytecode of the same size and second would be taken for that of this text.
    text = GOOD.replace("Embedding(50, 4)", "Embedding(50, 16)")
    found = check(spec_for(tmp_path, text, ROWS, Action.EVALUATE, flags))
    assert "model/sequential/embedding/embeddings has shape (50, 16)" in found["error"], found
    # A job that trains on restores the optimizer, too.
    other = RingModel.build(
        load_module(
            spec_for(
                tmp_path,
                GOOD.replace("Adagrad(lr)", "SGD(lr, momentum=0.5)"),
                ROWS,
                Action.TRAIN,
                flags,
            ).model
        ),
        {},
        seed=0,
    )
    directory = Path(flags["checkpoint_dir_for_init"])
    check_checkpoint(directory, ring.ps_model(), ring, trains=True)
    check_checkpoint(directory, other.ps_model(), other, trains=False)
    with pytest.raises(UserError, match=r"another model: optimizer/.*no such variable there"):
        check_checkpoint(directory, other.ps_model(), other, trains=True)


def test_a_feed_that_makes_batches_is_told_to_leave_that_out(tmp_path: Path) -> None:
    found = look(
        tmp_path, GOOD.replace("return dataset.map(parse)", "return dataset.map(parse).batch(2)")
    )
    assert not found["ok"] and found["hint"].startswith(
        "feed batched 3 records into 2 x 2: remove batch() from feed"
    ), found


def test_labels_that_broadcast_against_predictions_are_found(tmp_path: Path) -> None:
    text = GOOD.replace(
        "tf.strings.to_number(record[2:])", "tf.strings.to_number(record[2])"
    ).replace(
        "keras.losses.binary_crossentropy(labels, predictions, from_logits=True)",
        "tf.square(labels - predictions)",
    )
    found = look(tmp_path, text)
    assert not found["ok"] and "labels and predictions were broadcast" in found["error"]


def test_values_that_cannot_be_parsed_name_the_value(tmp_path: Path) -> None:
    found = look(tmp_path, GOOD, rows="1,2,0\nx,4,1\n")
    assert (
        found["error"]
        == f"{tmp_path}/data.csv:3: column 'a' is 'x': feed raised InvalidArgumentError:"
        f" StringToNumberOp could not correctly convert string: x (at {tmp_path}/made.py:15)"
    )
    assert "--max-bad-records" in found["hint"]


def test_values_that_cannot_be_parsed_are_left_out_within_the_limit_and_told(
    tmp_path: Path,
) -> None:
    found = look(tmp_path, GOOD, rows="1,2,0\nx,4,1\n5,6,\n7,8,1\n", max_bad_records=2)
    assert found["ok"], found
    places = [warning.split(":")[1] for warning in found["warnings"]]
    assert places == ["3", "4"] and "column 'y' is ''" in found["warnings"][1]


def test_a_feed_that_takes_no_record_is_told_to_be_at_fault(tmp_path: Path) -> None:
    found = look(tmp_path, GOOD.replace("record[:2]", 'record[:2] + "!"'))
    assert (
        not found["ok"]
        and "data.csv:2: " in found["error"]
        and "made.py:15 raises for every record tried" in found["hint"]
    ), found


def test_data_without_records_and_params_that_nobody_takes(tmp_path: Path) -> None:
    assert "no records" in look(tmp_path, GOOD, rows="")["error"]
    assert "--model-params other=1" in look(tmp_path, GOOD, model_params="other=1")["error"]


def test_a_first_batch_that_gives_nan_is_a_warning(tmp_path: Path) -> None:
    found = look(tmp_path, GOOD, rows="1,2,nan\n")
    assert found["ok"] and "loss" in found["warnings"][0]


@pytest.mark.parametrize(
    ("layer", "threshold", "warned"),
    [
        ("layers.Embedding(50, 4, trainable=False)", 0, True),
        ("layers.Embedding(50, 4, trainable=False)", 1000, True),
        ("layers.Embedding(50, 4)", 0, False),
        ("layers.Embedding(50, 4)", 1000, False),
    ],
)
def test_a_model_that_has_no_trainable_weights_is_a_warning(
    tmp_path: Path, layer: str, threshold: int, warned: bool
) -> None:
    """An embedding of no less than the threshold lives on the servers."""
    text = GOOD.replace("layers.Embedding(50, 4)", layer).replace(
        "layers.Dense(1)", "layers.Dense(1, trainable=False)"
    )
    found = look(tmp_path, text, embedding_threshold_bytes=threshold)
    warning = f"{tmp_path}/made.py:7: the model has no trainable weights"
    assert found["ok"] and found["warnings"] == [warning] * warned, found


READS_THE_RATE = (
    GOOD
    + """
class Reads(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        assert abs(float(self.model.optimizer.learning_rate) - 0.1) < 1e-6
        assert int(self.model.optimizer.iterations) == 0
def callbacks(): return [Reads()]
"""
)


def test_the_check_says_whether_workers_share_the_steps(tmp_path: Path) -> None:
    text = GOOD.replace("Adagrad(lr)", "SGD(lr, momentum=0.9)")
    found = look(tmp_path, text, num_workers=4)
    assert found["steps"]["sync"]
    assert "4 parts" in found["steps"]["text"]
    assert not look(tmp_path, text, num_workers=4, sync=False)["steps"]["sync"]
    for_rows, for_variables = (
        look(tmp_path, GOOD, num_workers=4, num_epochs=500, embedding_threshold_bytes=size)["steps"]
        for size in (0, 2 << 20)
    )
    assert not for_rows["sync"] and "--sync avoids" in for_rows["text"]
    assert for_variables["sync"] and "a job of 500 steps has no time" in for_variables["text"]


def test_on_train_begin_of_a_callback_is_tried_and_may_read_the_optimizer(tmp_path: Path) -> None:
    found = look(tmp_path, READS_THE_RATE)
    assert found["ok"], found
    found = look(tmp_path, READS_THE_RATE.replace("iterations) == 0", "momentum) == 0"))
    assert not found["ok"]
    assert "made.py:" in found["error"] and "only learning_rate and iterations" in found["error"]


def test_a_callback_that_waits_for_a_metric_of_training_is_refused(tmp_path: Path) -> None:
    text = GOOD + "def callbacks(): return [keras.callbacks.EarlyStopping(monitor='auc')]\n"
    found = look(tmp_path, text)
    assert "EarlyStopping monitors 'auc', a metric of training" in found["error"]
    assert found["hint"] == "monitor 'val_auc', or 'loss'"
