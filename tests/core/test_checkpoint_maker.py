"""Who made a checkpoint decides how it is evaluated; how a job trains is never changed by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.checkpoint.layout import MANIFEST, Manifest, directory_name
from elasticdl.checkpoint.maker import settled
from elasticdl.job import Action, JobSpec, Strategy

pytestmark = pytest.mark.core

DATA = {Action.TRAIN: "training_data", Action.EVALUATE: "validation_data", Action.PREDICT: "prediction_data"}


def spec(action: Action, checkpoints: Path, **flags) -> JobSpec:
    given = {"model_zoo": "zoo", "model_def": "m", DATA[action]: "data.csv", "output": "out"}
    return JobSpec.from_flags(action, {**given, "checkpoint_dir_for_init": str(checkpoints), **flags})


def write(root: Path, *, version: int, servers: int) -> Path:
    directory = root / directory_name(version)
    directory.mkdir()
    manifest = Manifest(version=version, servers=servers, parameters=None, files=())
    (directory / MANIFEST).write_text(manifest.model_dump_json())
    return directory


@pytest.mark.parametrize("action", [Action.EVALUATE, Action.PREDICT])
def test_a_checkpoint_of_a_ring_needs_no_servers(action, tmp_path) -> None:
    write(tmp_path, version=3, servers=0)
    found = settled(spec(action, tmp_path, num_ps_pods=2))
    assert (found.training.distribution_strategy, found.cluster.num_ps_pods) == (Strategy.ALLREDUCE, 0)


@pytest.mark.parametrize("action", [Action.EVALUATE, Action.PREDICT])
def test_a_checkpoint_of_servers_needs_some_even_where_a_ring_was_asked_for(action, tmp_path) -> None:
    directory = write(tmp_path, version=3, servers=4)
    found = settled(spec(action, directory, distribution_strategy="AllreduceStrategy"))
    assert (found.training.distribution_strategy, found.cluster.num_ps_pods) == (Strategy.PARAMETER_SERVER, 1)
    kept = settled(spec(action, directory, num_ps_pods=3))
    assert kept.cluster.num_ps_pods == 3


def test_training_stays_what_it_was_asked_to_be(tmp_path) -> None:
    write(tmp_path, version=3, servers=0)
    asked = spec(Action.TRAIN, tmp_path)
    assert settled(asked) == asked


def test_the_newest_checkpoint_with_a_readable_manifest_decides(tmp_path) -> None:
    write(tmp_path, version=3, servers=2)
    (write(tmp_path, version=4, servers=0) / MANIFEST).write_text("{")
    assert settled(spec(Action.EVALUATE, tmp_path)).training.distribution_strategy is Strategy.PARAMETER_SERVER


def test_a_place_without_checkpoints_changes_nothing(tmp_path) -> None:
    asked = spec(Action.EVALUATE, tmp_path / "none")
    assert settled(asked) == asked
