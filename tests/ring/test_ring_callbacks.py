"""Callbacks, metrics, checkpoints and the export of a ring are those of one process that has the
whole model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Job
from tests.ring.ring_jobs import LIMIT_S, start

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def notes(folder: Path) -> list[dict[int, dict[str, Any]]]:
    """Of each member, what it noted of each version."""
    files = sorted(folder.glob("*.jsonl"))
    return [
        {note["version"]: note for note in map(json.loads, file.read_text().splitlines())}
        for file in files
    ]


CHECKPOINT_STEPS, KEPT = 40, 2


@dataclass(frozen=True)
class Recorded:
    """A job that a callback has ended."""

    job: Job
    folder: Path
    """Of the members' notes, and of the export."""

    def rounds(self) -> list[dict[str, Any]]:
        return [row for row in self.job.metrics() if row["kind"] == "evaluation"]


@pytest.fixture(scope="module")
def recorded(
    start_jobs: Callable[..., Job],
    digits: Path,
    zoo: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Recorded:
    folder = tmp_path_factory.mktemp("recorded")
    job = start(
        start_jobs,
        digits,
        model_zoo=zoo,
        model_def="recording",
        envs=f"NOTES_FOLDER={folder}",
        num_workers=2,
        num_epochs=20,
        evaluation_steps=45,
        checkpoint_steps=CHECKPOINT_STEPS,
        keep_checkpoint_max=KEPT,
        output=folder / "export",
    )
    code, output = job.finish(2 * LIMIT_S)
    assert code == 0, output + job.tails()
    return Recorded(job, folder)


def test_a_callback_ends_a_job_and_what_it_left_is_reported_as_that(recorded: Recorded) -> None:
    total = recorded.job.receipt()["total"]
    assert total["trained"] + total["left"] == total["expected"]
    assert min(total["trained"], total["left"]) > 0
    assert total["lost"] == total["repeated"] == 0


def test_a_callback_of_a_round_is_of_all_members_and_metrics_and_export_are_those_of_plain_keras(
    recorded: Recorded, digits: Path, zoo: Path
) -> None:
    rounds = recorded.rounds()
    assert [row["version"] for row in rounds[:2]] == [45, 90], (
        "EarlyStopping stops after the second round"
    )
    assert rounds[-1]["version"] < 135
    of_each = notes(recorded.folder)
    assert len(of_each) == 2 and of_each[0].keys() == of_each[1].keys()
    for version, mine in of_each[0].items():
        expected = 0.002 if version <= 45 else 0.001 if version <= 90 else 0.0005
        assert mine["rate"] == of_each[1][version]["rate"] == pytest.approx(expected, rel=1e-6), (
            f"version {version}"
        )
        assert mine["loss"] == of_each[1][version]["loss"]
    model, images, labels = plain_keras(zoo, recorded.job.directory, digits)
    logits = model.predict(images, verbose=0)
    values = {
        "accuracy": logits.argmax(1) == labels,
        "top3": (np.argsort(logits, 1)[:, -3:] == labels[:, None]).any(1),
    }
    for name, right in values.items():
        assert np.float32(rounds[-1]["values"][name]) == np.float32(right.sum()) / np.float32(
            len(right)
        )
    exported = served(recorded.folder / "export", images)
    np.testing.assert_allclose(exported, logits, rtol=1e-4, atol=1e-4)


def test_a_ring_leaves_its_newest_checkpoints_and_one_of_its_end(recorded: Recorded) -> None:
    end = recorded.rounds()[-1]["version"]
    kept = sorted(
        int(path.parent.name.removeprefix("version-"))
        for path in recorded.job.directory.glob("checkpoints/*/manifest.json")
    )
    assert kept == [*range(CHECKPOINT_STEPS, end, CHECKPOINT_STEPS), end][-KEPT:]
    assert len(kept) == KEPT


def test_a_checkpoint_of_a_ring_is_evaluated_though_no_flag_says_that_it_is_one(
    recorded: Recorded, start_job: Callable[..., Job], digits: Path
) -> None:
    """The network of `recording` is that of `digits`."""
    job = start_job(
        "evaluate",
        model_def="digits",
        validation_data=digits / "test.npz",
        checkpoint_dir_for_init=recorded.job.directory / "checkpoints",
        num_workers=1,
    )
    code, output = job.finish(2 * LIMIT_S)
    assert code == 0, output + job.tails()
    assert job.final("accuracy") == recorded.job.final("accuracy")
    assert job.metrics()[-1]["version"] == recorded.rounds()[-1]["version"] > 0


def plain_keras(zoo: Path, directory: Path, digits: Path) -> tuple[Any, Any, Any]:
    """The model with the weights of the newest checkpoint, and the data to evaluate on."""
    from elasticdl.checkpoint import directories, ring_file
    from elasticdl.job_flags import ModelSection
    from elasticdl.model.module import load_module
    from elasticdl.model.ring_model import RingModel

    found = directories.require(directory / "checkpoints")
    _, arrays = ring_file.read(Path(found.where))
    model = RingModel.build(
        load_module(ModelSection(model_zoo=str(zoo), model_def="recording")), {}, seed=0
    )
    for name, variable in model.state().items():
        variable.assign(arrays[name])
    data = np.load(digits / "test.npz")
    return model.model, data["image"], data["label"]


def served(export: Path, images: np.ndarray) -> np.ndarray:
    import tensorflow as tf

    signature = tf.saved_model.load(str(export)).signatures["serving_default"]
    [name] = signature.structured_input_signature[1]
    [outputs] = signature(**{name: tf.constant(images)}).values()
    return outputs.numpy()
