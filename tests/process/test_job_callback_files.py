"""CSVLogger, TensorBoard and --tensorboard-log-dir in a job with several workers, one of which is killed."""

from __future__ import annotations

import csv
import json
import random
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
CALLBACKS = """

def callbacks():
    return [keras.callbacks.CSVLogger("history.csv"), keras.callbacks.TensorBoard("board")]
"""


def points(folder: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value), by TensorFlow's own reader."""
    from tensorflow.python.summary.summary_iterator import summary_iterator

    events = [event for path in sorted(folder.glob("events*")) for event in summary_iterator(str(path))]
    return [(event.step, value.tag, value.simple_value) for event in events for value in event.summary.value]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_one_history_and_one_set_of_curves_come_out_of_a_job_that_loses_workers(start_job, iris_csv, tmp_path):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    source = Path(__file__).parent.parent.parent / "model_zoo/iris.py"
    shutil.copy(source, zoo / "iris_logged.py")
    with (zoo / "iris_logged.py").open("a") as module:
        module.write(CALLBACKS)
    job = start_job(
        model_zoo=zoo,
        model_def="iris_logged",
        training_data=iris_csv(200),
        validation_data=iris_csv(1),
        num_epochs=2,
        num_workers=2,
        num_ps_pods=1,
        minibatch_size=16,
        evaluation_steps=600,
        tensorboard_log_dir=tmp_path / "curves",
    )
    job.wait_until("a round is summed up", lambda status: any(one["values"] for one in status["rounds"]))
    assert job.kill_one("worker", random.Random(3))
    code, output = job.finish()
    assert code == 0, output

    rounds = [line for line in job.metrics() if line["kind"] == "evaluation"]
    assert len(rounds) >= 3, "there is something to be lost"
    with (job.directory / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val_accuracy"]) for row in rows] == pytest.approx([one["values"]["accuracy"] for one in rounds])
    board = [value for _, tag, value in points(job.directory / "board/validation") if tag == "epoch_accuracy"]
    assert board == pytest.approx([one["values"]["accuracy"] for one in rounds])
    curves = [(step, value) for step, tag, value in points(tmp_path / "curves/validation") if tag == "accuracy"]
    assert [step for step, _ in curves] == [one["version"] for one in rounds]
    assert [value for _, value in curves] == pytest.approx([one["values"]["accuracy"] for one in rounds])
    losses = [value for _, tag, value in points(tmp_path / "curves/train") if tag == "loss"]
    told = [line["values"]["loss"] for line in job.metrics() if line["kind"] == "training"]
    assert losses == pytest.approx(told) and len(losses) > 1, json.dumps(told)
