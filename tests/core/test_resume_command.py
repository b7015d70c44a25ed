"""The command that is told after a job that is not done: one, and it works when it is pasted."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from elasticdl.cli.jobs.job_claim import claimed, refuse_if_taken
from elasticdl.cli.jobs.kubernetes_job import after_deletion
from elasticdl.cli.main import run
from elasticdl.cli.request import Request, settle
from elasticdl.cluster.kubernetes.job_state import JobState
from elasticdl.cluster.kubernetes.planning import job_object
from elasticdl.cluster.kubernetes.submitted_job import spec_of
from elasticdl.errors import ExitCode, SpecError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_name import next_name
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.resume_command import after_a_stop, resume_command
from elasticdl.jobdir.scale_override import keep_scale, keep_servers
from elasticdl.jobdir.working_directory import directory_of
from elasticdl.master.core.commands import FinishJob
from elasticdl.master.outcome import with_resume_command
from elasticdl.yaml_documents import parse_yaml

pytestmark = pytest.mark.core
TRAIN = {"model_zoo": "zoo", "model_def": "iris", "training_data": "a.csv"}
PREDICT = {
    "model_zoo": "zoo",
    "model_def": "iris",
    "prediction_data": "a.csv",
    "output": "o",
    "checkpoint_dir_for_init": "c",
}


def made(action: Action = Action.TRAIN, *, kept: bool = False, **flags: Any) -> JobDirectory:
    """The directory of a job that was started here."""
    if action is Action.PREDICT:
        checkpoint(Path("c"))
    spec = settle(Request(action, {**(TRAIN if action is Action.TRAIN else PREDICT), **flags}))
    with claimed(spec) as directory:
        if kept:
            checkpoint(directory.checkpoints)
        return directory


def checkpoint(place: Path) -> None:
    (place / "version-3").mkdir(parents=True)
    (place / "version-3/manifest.json").touch()


def told(directory: JobDirectory) -> dict[str, Any]:
    return dict(json.loads(directory.spec.read_text()))


def submitted(spec: JobSpec) -> dict[str, Any]:
    """The job.json that the master of a job on a cluster writes."""
    return spec_of(job_object(spec, "team")).model_dump(mode="json")


def pasted(words: str, capsys: pytest.CaptureFixture[str]) -> JobSpec:
    """The job that the told command would start."""
    _, _, command = words.rpartition("with: ")
    _, *arguments = shlex.split(command)
    assert run([*arguments, "--dry-run", "-o", "json"]) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    if "kind" in found:
        return spec_of(found)
    with NamedTemporaryFile("w") as file:
        file.write(json.dumps(found))
        file.flush()
        return settle(Request(Action(arguments[0]), {}, file.name))


@pytest.mark.parametrize("name", ["jobs/a", "with a space/it's"])
def test_a_job_with_a_checkpoint_continues_by_its_own_yaml_and_no_flag_more(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = made(kept=True, job_name="a", job_dir=name, minibatch_size=7)
    words = resume_command(told(directory), directory)
    assert (
        words.startswith("resume with: ")
        and "--job-dir" not in words
        and words.endswith(" --resume")
    )
    monkeypatch.chdir("/")
    spec = pasted(words, capsys)
    assert (spec.cluster.job_dir, spec.cluster.job_name, spec.data.minibatch_size) == (
        str(directory.path),
        "a",
        7,
    )
    refuse_if_taken(spec)


def test_a_job_whose_directory_was_moved_continues_where_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made(kept=True, job_name="a").path.rename(tmp_path / "elsewhere")
    directory = JobDirectory(tmp_path / "elsewhere")
    spec = pasted(resume_command(told(directory), directory), capsys)
    assert spec.cluster.job_dir == str(directory.path)
    refuse_if_taken(spec)


def test_a_training_without_a_checkpoint_starts_over_in_its_own_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = made(job_name="a", minibatch_size=7)
    words = resume_command(told(directory), directory)
    assert words.startswith("start over, since no checkpoint exists, with: ")
    spec = pasted(words, capsys)
    assert (spec.cluster.job_dir, spec.data.minibatch_size) == (str(directory.path), 7)
    assert spec.checkpoint.resume
    refuse_if_taken(spec)


@pytest.mark.parametrize("action", [Action.TRAIN, Action.PREDICT])
def test_a_job_that_cannot_resume_begins_afresh_beside_the_first(
    action: Action,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = made(action, job_name="a")
    (tmp_path / "jobs/a-2").mkdir()
    if action is Action.TRAIN:
        (directory.checkpoints / "version-3").mkdir(parents=True)  # It lost its manifest.
    words = resume_command(told(directory), directory)
    assert ("no checkpoint exists" in words) == (action is Action.TRAIN) and "--resume" not in words
    spec = pasted(words, capsys)
    assert (spec.cluster.job_name, spec.cluster.job_dir) == ("a-3", str(tmp_path / "jobs/a-3"))
    refuse_if_taken(spec)


@pytest.mark.parametrize(
    ("action", "then"),
    [
        (Action.TRAIN, "train -f s3://b/jobs/a/job.yaml --resume"),
        (
            Action.EVALUATE,
            "evaluate -f s3://b/jobs/a/job.yaml --job-name iris-3 --job-dir s3://b/jobs/a-3",
        ),
    ],
)
def test_a_job_at_an_address_continues_by_what_is_there(
    action: Action, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path))
    directory_of("s3://b/jobs/a-2").path.mkdir(parents=True)  # of another job on this machine
    job_json = {"action": str(action), "cluster": {"job_name": "iris", "job_dir": "s3://b/jobs/a"}}
    assert resume_command(job_json, JobDirectory(tmp_path)).endswith(then)


def test_a_resume_of_an_address_without_flags_says_where_they_are() -> None:
    with pytest.raises(SpecError) as refused:
        settle(Request(Action.TRAIN, {"resume": True, "job_dir": "s3://b/jobs/a"}))
    assert "add -f s3://b/jobs/a/job.yaml" in refused.value.hint


def test_predictions_that_begin_afresh_are_not_mixed_with_those_that_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = made(Action.PREDICT, job_name="a")
    for place in ("o", "o-2"):
        Path(place).mkdir()
        Path(place, "predictions-000000-000000000-000000010.npz").touch()
    spec = pasted(resume_command(told(directory), directory), capsys)
    assert spec.checkpoint.output == str(tmp_path / "o-3")
    refuse_if_taken(spec)


@pytest.mark.parametrize(
    ("output", "then"), [("/data/out", "/data/out-2"), ("/data", "/data/ads-2")]
)
def test_predictions_on_a_cluster_begin_afresh_elsewhere(
    output: str, then: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"prediction_data": "/data/p", "checkpoint_dir_for_init": "/data/c", "output": output}
    given = {key: value for key, value in CLUSTER.items() if key != "training_data"}
    before = settle(Request(Action.PREDICT, {**given, **own}))
    assert (
        pasted(resume_command(submitted(before), JobDirectory(tmp_path)), capsys).checkpoint.output
        == then
    )


@pytest.mark.parametrize("sync", [None, True, False])
def test_a_choice_of_the_user_is_in_the_command_and_the_default_is_not(
    sync: bool | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = settle(Request(Action.TRAIN, {**CLUSTER, **({} if sync is None else {"sync": sync})}))
    words = resume_command(submitted(before), JobDirectory(tmp_path))
    assert ("sync" in words) == (sync is not None)
    assert pasted(words, capsys).training.sync is sync


def test_the_program_is_named_so_that_this_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = made(kept=True, job_name="a")
    monkeypatch.setenv("PATH", str(tmp_path))
    program = Path(
        shlex.split(resume_command(told(directory), directory).partition("with: ")[2])[0]
    )
    assert program.is_absolute() and program.exists()
    (tmp_path / "elasticdl").write_text("#!/bin/sh\n")
    (tmp_path / "elasticdl").chmod(0o755)
    assert "with: elasticdl train -f" in resume_command(told(directory), directory)


CLUSTER = {
    "image_name": "registry/zoo:7",
    "model_def": "deepfm",
    "training_data": "/data/train",
    "job_name": "ads",
    "volume": [
        "claim_name=c,mount_path=/data",
        '{"source": {"nfs": {"server": "n", "path": "/x"}}, "mount_path": "/n"}',
    ],
    "model_params": {"lr": 0.5, "name": "1", "deep": True, "words": "a b"},
    "envs": {"A": "1.0", "B": "x'y"},
    "num_workers": "2:8",
    "worker_resource_limit": "memory=4Gi,nvidia.com/gpu=1",
    "tolerations": '[{"key": "spot"}]',
    "image_pull_secrets": "a,b",
    "namespace": "team",
}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("place", ["/data/ads", ""])
def test_a_job_of_a_cluster_is_submitted_again_under_the_next_name(
    kept: bool, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"job_dir": place, "checkpoint_steps": 100} if place else {}
    before = settle(Request(Action.TRAIN, {**CLUSTER, **own, "output": "/data/out"}))
    if kept and place:
        checkpoint(tmp_path / "checkpoints")
    words = resume_command(submitted(before), JobDirectory(tmp_path))
    assert words.startswith(
        "resume with: " if kept and place else "start over, since no checkpoint exists, with: "
    )
    spec = pasted(words, capsys)
    assert (spec.cluster.job_name, spec.checkpoint.resume) == ("ads-2", bool(place))
    told = before.flags(defaults=False) | ({"resume": True} if place else {})
    again = spec.flags(defaults=False) | {"job_name": "ads"}
    assert (again | {"job_dir": told["job_dir"]} if not place else again) == told


def test_a_job_of_a_cluster_that_cannot_be_typed_is_reported_in_words(tmp_path: Path) -> None:
    spec = settle(Request(Action.TRAIN, {**CLUSTER, "model_params": {"text": "x" * 2000}}))
    words = resume_command(submitted(spec), JobDirectory(tmp_path))
    assert words.endswith(
        "exists, with: the command that it was submitted with, another --job-name, --job-dir"
    )
    older = resume_command(
        {"action": "train", "kubernetes": {"image_name": "i"}}, JobDirectory(tmp_path)
    )
    assert older.endswith("exists, with: the command that it was submitted with")


@pytest.mark.parametrize(
    "text",
    ["a;b", "a,b=c", "'1'", '"', "true", "1.0", "", " ", "$(rm x)", "модель\n", '{"a": 1}', "-x"],
)
def test_whatever_a_value_is_the_command_gives_it_back(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {
        "model_params": {"text": text},
        "envs": {"A": text},
        "node_selector": {"pool": text},
        "kube_context": text if text.strip() else "c",  # no empty name is taken
    }
    before = settle(Request(Action.TRAIN, {**CLUSTER, **own, "affinity": {"x": [text]}}))
    spec = pasted(str(submitted(before)["restart_command"]), capsys)
    assert (
        spec.replace(job_name="", job_dir="").flags()
        == before.replace(job_name="", job_dir="").flags()
    )


def test_a_job_of_a_cluster_continues_with_the_numbers_that_it_was_scaled_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = settle(
        Request(Action.TRAIN, {**CLUSTER, "job_dir": "/data/ads", "checkpoint_steps": 100})
    )
    checkpoint(tmp_path / "checkpoints")
    keep_scale(JobDirectory(tmp_path), spec.cluster.num_workers, 3, 4)
    keep_servers(JobDirectory(tmp_path), spec.cluster.num_ps_pods, 5)
    cluster = pasted(resume_command(submitted(spec), JobDirectory(tmp_path)), capsys).cluster
    assert (str(cluster.num_workers), str(cluster.num_ps_pods)) == ("3:4", "5")


def test_the_end_of_a_job_has_one_resume_command_after_what_is_to_be_mended_first(
    tmp_path: Path,
) -> None:
    checkpoint(tmp_path / "checkpoints")
    spec = JobSpec.from_flags(Action.TRAIN, {**TRAIN, "job_dir": str(tmp_path)}).model_dump(
        mode="json"
    )

    def hint(code: ExitCode, hint: str = "") -> str:
        return with_resume_command(FinishJob(code, "m", hint), spec, JobDirectory(tmp_path)).hint

    on = resume_command(spec, JobDirectory(tmp_path))
    assert hint(ExitCode.INTERRUPTED) == on
    assert hint(ExitCode.JOB_FAILED, "mend the data") == f"mend the data; then {on}"
    assert hint(ExitCode.DONE) == "" and hint(ExitCode.USAGE, "h") == "h"


def test_what_is_gone_is_no_reason_for_no_word(tmp_path: Path) -> None:
    assert f"--job-dir {tmp_path}-2" in resume_command({}, JobDirectory(tmp_path))


@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("ads", "ads-2"),
        ("ads-2", "ads-3"),
        ("iris-20261121-164031", "iris-20261121-164031-2"),
        ("x" * 52, "x" * 50 + "-2"),
    ],
)
def test_the_next_name(name: str, then: str) -> None:
    assert next_name(name) == then


def test_the_yaml_of_a_job_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = made(job_name="a", envs="A=1")
    assert JobSpec.from_flags(
        Action.TRAIN, parse_yaml((directory.path / "job.yaml").read_bytes(), "job.yaml")
    ) == JobSpec.model_validate(told(directory))


def test_a_job_of_a_cluster_that_is_deleted_tells_what_it_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = settle(
        Request(Action.TRAIN, {**CLUSTER, "job_dir": "/data/ads", "checkpoint_steps": 100})
    )
    words = after_deletion(JobState(job_object(kept, "team")))
    assert "/data/ads/checkpoints" in words and pasted(words, capsys).checkpoint.resume
    passing = settle(Request(Action.TRAIN, CLUSTER))
    assert after_deletion(JobState(job_object(passing, "team"))) == ""
    assert (
        after_deletion(
            JobState(
                {"metadata": {"name": "x"}, "spec": {"template": {"spec": {"containers": []}}}}
            )
        )
        == ""
    )


@pytest.mark.parametrize("action", [Action.TRAIN, Action.PREDICT])
def test_who_is_about_to_stop_a_job_reads_what_its_end_will_say(
    action: Action, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = made(action, job_name="a")
    before = after_a_stop(JobSpec.model_validate_json(directory.spec.read_text()), directory)
    if action is Action.TRAIN:
        checkpoint(directory.checkpoints)
    assert before == resume_command(told(directory), directory)


@pytest.mark.parametrize("place", [{"job_dir": "jobs/cost"}, {"job_name": "cost"}])
def test_resume_without_the_jobs_flags_names_the_file_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    request = Request(Action.TRAIN, {"resume": True, **place})
    with pytest.raises(SpecError, match="--training-data are missing"):
        settle(request)
    made(job_name="cost")
    with pytest.raises(SpecError, match="does not read the job's flags") as refused:
        settle(request)
    assert refused.value.hint == "they are in jobs/cost/job.yaml: add -f jobs/cost/job.yaml"
    with pytest.raises(SpecError, match="--training-data are missing"):
        settle(Request(Action.TRAIN, place))
