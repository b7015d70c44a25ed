"""Who made a checkpoint decides how it is evaluated; how a job trains is never changed by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl.checkpoint.directories import complete_ones
from elasticdl.checkpoint.layout import MANIFEST, directory_name
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.checkpoint.strategy import as_trained
from elasticdl.cli.request import Request, settle
from elasticdl.cluster.kubernetes.plans import Owner
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action, Strategy
from elasticdl.jobdir.spec_files import read_spec
from elasticdl.master.platform.pod_directory import open_directory

pytestmark = pytest.mark.core

DATA = {
    Action.TRAIN: "training_data",
    Action.EVALUATE: "validation_data",
    Action.PREDICT: "prediction_data",
}


def spec(action: Action, checkpoints: Path, **flags: Any) -> JobSpec:
    given = {"model_zoo": "zoo", "model_def": "m", DATA[action]: "data.csv", "output": "out"}
    return JobSpec.from_flags(
        action, {**given, "checkpoint_dir_for_init": str(checkpoints), **flags}
    )


def write(root: Path, *, version: int, servers: int) -> Path:
    directory = root / directory_name(version)
    directory.mkdir()
    manifest = Manifest(version=version, servers=servers, parameters=None, files=())
    (directory / MANIFEST).write_text(manifest.model_dump_json())
    return directory


@pytest.mark.parametrize("action", [Action.EVALUATE, Action.PREDICT])
def test_a_checkpoint_of_a_ring_needs_no_servers(action: Action, tmp_path: Path) -> None:
    write(tmp_path, version=3, servers=0)
    found = as_trained(spec(action, tmp_path, num_ps_pods=2))
    assert (found.training.distribution_strategy, found.servers) == (Strategy.ALLREDUCE, 0)


@pytest.mark.parametrize("action", [Action.EVALUATE, Action.PREDICT])
def test_a_checkpoint_of_servers_needs_some_even_where_a_ring_was_asked_for(
    action: Action, tmp_path: Path
) -> None:
    directory = write(tmp_path, version=3, servers=4)
    found = as_trained(spec(action, directory, distribution_strategy="AllreduceStrategy"))
    assert (found.training.distribution_strategy, found.servers) == (Strategy.PARAMETER_SERVER, 1)
    kept = as_trained(spec(action, directory, num_ps_pods=3))
    assert kept.servers == 3


def test_training_stays_what_it_was_asked_to_be(tmp_path: Path) -> None:
    write(tmp_path, version=3, servers=0)
    asked = spec(Action.TRAIN, tmp_path)
    assert as_trained(asked) == asked


def test_the_newest_checkpoint_with_a_readable_manifest_decides(tmp_path: Path) -> None:
    write(tmp_path, version=3, servers=2)
    (write(tmp_path, version=4, servers=0) / MANIFEST).write_text("{")
    assert (
        as_trained(spec(Action.EVALUATE, tmp_path)).training.distribution_strategy
        is Strategy.PARAMETER_SERVER
    )


def test_a_place_without_checkpoints_changes_nothing(tmp_path: Path) -> None:
    asked = spec(Action.EVALUATE, tmp_path / "none")
    assert as_trained(asked) == asked


def test_the_job_that_is_settled_and_the_one_that_a_pod_finds_are_made_so(tmp_path: Path) -> None:
    write(tmp_path, version=3, servers=0)
    given = {
        "model_zoo": "zoo",
        "model_def": "m",
        "validation_data": "v",
        "checkpoint_dir_for_init": str(tmp_path),
    }
    here = settle(Request(Action.EVALUATE, given))
    assert (here.training.distribution_strategy, here.servers) == (Strategy.ALLREDUCE, 0)
    given |= {
        "image_name": "i",
        "volume": f"claim_name=c,mount_path={tmp_path}",
        "job_dir": str(tmp_path / "job"),
    }
    directory, _ = open_directory(
        settle(Request(Action.EVALUATE, given)), Owner("ns", "a", "uid"), replaces=False
    )
    assert read_spec(directory).training.distribution_strategy is Strategy.ALLREDUCE


def test_a_file_holds_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert list(complete_ones(tmp_path / "file")) == []
