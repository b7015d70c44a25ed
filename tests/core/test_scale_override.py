"""A job goes on with the workers that it was scaled to, unless others are asked for anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli.jobs.job_claim import claimed, placed
from elasticdl.cli.request import Request, settle
from elasticdl.cluster.kubernetes.plans import Owner
from elasticdl.flag_values import WorkerRange
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.scale_override import as_scaled, read_scale_override
from elasticdl.jobdir.spec_files import read_spec
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.executor.checkpoint_archive import CheckpointArchive
from elasticdl.master.platform.pod_directory import begin_anew, open_directory
from tests.core.conftest import Bench

pytestmark = pytest.mark.core
NEEDED = {"model_zoo": "zoo", "model_def": "iris", "training_data": "a.csv", "job_name": "a"}
SCALED = "the job was scaled: it continues with 4 workers instead of its --num-workers"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def begun_and_scaled(*ranges: str, **flags: Any) -> JobDirectory:
    """A job that was scaled to each of the ranges, by the hands of its master."""
    spec = settle(Request(Action.TRAIN, {**NEEDED, "num_workers": "2", **flags}))
    with claimed(spec) as directory:
        version = directory.checkpoints / "version-3"
        version.mkdir(parents=True)
        (version / "manifest.json").touch()
    scale(directory, *ranges)
    return directory


def scale(directory: JobDirectory, *ranges: str) -> None:
    for one in ranges:
        wanted = WorkerRange.model_validate(WorkerRange.parse(one))
        CheckpointArchive(read_spec(directory), directory.checkpoints).keep_scale(
            wanted.low, wanted.high
        )


def resumed(**flags: Any) -> tuple[str, list[str]]:
    """The workers of the job that `train --resume` begins, and what was said of it."""
    said: list[str] = []
    spec = settle(Request(Action.TRAIN, {**NEEDED, "resume": True, **flags}), said.append)
    with placed(spec) as (settled, directory):
        assert read_spec(directory).cluster.num_workers == settled.cluster.num_workers
        assert f"num_workers: {settled.cluster.num_workers}\n" in (
            directory.path / "job.yaml"
        ).read_text().replace("'", "")
        return str(settled.cluster.num_workers), said


def from_file(tmp_path: Path, **keys: Any) -> tuple[str, list[str]]:
    """The same of `train -f own.yaml --resume`."""
    lines = {**NEEDED, **keys}
    (tmp_path / "own.yaml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    said: list[str] = []
    spec = settle(Request(Action.TRAIN, {"resume": True}, str(tmp_path / "own.yaml")), said.append)
    with placed(spec) as (settled, _directory):
        return str(settled.cluster.num_workers), said


def test_a_scale_is_ordered_to_be_kept() -> None:
    master = Bench.running()
    assert c.KeepScale(2, 5) in master.put(e.ScaleRequested(0, 2, 5))


def test_a_job_that_was_scaled_continues_with_those_workers_and_says_so(tmp_path: Path) -> None:
    begun_and_scaled("1:3", "4")
    assert from_file(tmp_path, num_workers=2) == ("4", [SCALED])
    assert from_file(tmp_path, num_workers=2) == ("4", [SCALED]), "once more"
    assert from_file(tmp_path, num_workers=4) == ("4", []), "as its own job.yaml has it by now"


def test_a_flag_that_is_given_again_wins_for_good(tmp_path: Path) -> None:
    begun_and_scaled("4")
    assert resumed(num_workers="2") == ("2", [])
    assert from_file(tmp_path, num_workers=2) == ("2", []), "the scale is forgotten"


def test_a_file_that_says_another_range_than_before_wins(tmp_path: Path) -> None:
    begun_and_scaled("4")
    assert from_file(tmp_path, num_workers="1:6") == ("1:6", [])


def test_a_job_without_the_flag_continues_scaled(tmp_path: Path) -> None:
    begun_and_scaled("4", num_workers="1")
    assert from_file(tmp_path) == ("4", [SCALED])


def test_each_range_on_the_way_is_known_for_one_of_before(tmp_path: Path) -> None:
    directory = begun_and_scaled("3")
    assert from_file(tmp_path, num_workers=2)[0] == "3"
    scale(directory, "4")
    for before in (2, 3):
        assert from_file(tmp_path, num_workers=before) == ("4", [SCALED])


def test_what_was_kept_and_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    directory = begun_and_scaled()
    for text in ("", "[]", '{"num_workers": "many", "instead_of": ["2"]}'):
        directory.scale.write_text(text)
        assert from_file(tmp_path, num_workers=2) == ("2", [])


def servers(**flags: Any) -> tuple[int, list[str]]:
    """The servers of the job that `train --resume` begins, and what was said of it."""
    said: list[str] = []
    spec = settle(Request(Action.TRAIN, {**NEEDED, "resume": True, **flags}), said.append)
    with placed(spec) as (settled, _directory):
        return settled.servers, said


def test_a_job_continues_with_the_servers_that_it_was_changed_to() -> None:
    directory = begun_and_scaled("4", num_ps_pods=2)
    CheckpointArchive(read_spec(directory), directory.checkpoints).keep_servers(3)
    text = (
        "the job was scaled: it continues with 4 workers and 3 parameter servers instead of its"
        " --num-workers and --num-ps-pods"
    )
    flags = {"num_workers": "2", "num_ps_pods": 2}
    spec = settle(Request(Action.TRAIN, {**NEEDED, "resume": True, **flags}))
    assert spec.servers == 2, "given anew"
    kept = spec.replace(workers_anew=False, servers_anew=False)
    scaled, said = as_scaled(kept, directory, anew=False)
    assert (scaled.servers, str(scaled.cluster.num_workers)) == (3, "4")
    assert said == text


def test_servers_that_are_given_again_win_for_good_and_leave_the_workers() -> None:
    directory = begun_and_scaled("4", num_ps_pods=2)
    CheckpointArchive(read_spec(directory), directory.checkpoints).keep_servers(3)
    assert servers(num_ps_pods=2, num_workers="4") == (2, [])
    assert read_scale_override(directory, "num_ps_pods") == ""
    assert read_scale_override(directory) == "4"


def on_cluster(directory: Path, **flags: Any) -> JobSpec:
    given = {
        **NEEDED,
        "image_name": "i",
        "num_workers": "2",
        "volume": f"host_path=/x,mount_path={directory}",
        **flags,
    }
    return settle(Request(Action.TRAIN, {**given, "job_dir": str(directory)})).replace(
        workers_anew=False
    )


def test_a_master_in_a_pod_continues_as_the_one_before_it_was_scaled(tmp_path: Path) -> None:
    spec, owner = on_cluster(tmp_path / "j"), Owner("ns", "a", "uid-1")
    directory, _ = open_directory(spec.replace(workers_anew=True), owner, replaces=False)
    scale(directory, "4")
    anew = spec.replace(workers_anew=True)
    open_directory(anew, owner, replaces=True)
    warnings = begin_anew(anew, directory, lost=False)
    assert str(read_spec(directory).cluster.num_workers) == "4" and SCALED in warnings
    resumes = spec.replace(resume=True)
    open_directory(resumes, Owner("ns", "a-2", "uid-2"), replaces=False)
    assert str(read_spec(directory).cluster.num_workers) == "4"
    open_directory(resumes.replace(workers_anew=True), Owner("ns", "a-3", "uid-3"), replaces=False)
    assert str(read_spec(directory).cluster.num_workers) == "2"
    open_directory(resumes, Owner("ns", "a-4", "uid-4"), replaces=False)
    assert str(read_spec(directory).cluster.num_workers) == "2", "the scale is forgotten"
