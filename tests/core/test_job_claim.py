"""Where jobs live on disk."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from elasticdl.cli.jobs.job_claim import claimed, placed, refuse_if_taken, try_places
from elasticdl.cli.jobs.local_launch import LocalRun, refusal_of
from elasticdl.cli.main import run
from elasticdl.cli.request import Request, settle
from elasticdl.cli.verbs.train import run_job
from elasticdl.cli.views.documents import Format
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError, SpecError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_name import is_valid
from elasticdl.jobdir.outcome import Outcome
from elasticdl.master.outcome import leave_outcome
from elasticdl.master.platform.begin_anew import begin_anew
from tests.open_files import open_files

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def job(**flags: object) -> JobSpec:
    return settle(
        Request(
            Action.TRAIN,
            {"model_zoo": "zoo", "model_def": "iris", "training_data": "a.csv", **flags},
        )
    )


def checkpoint(location: Path) -> None:
    (location / "version-3").mkdir(parents=True)
    (location / "version-3/manifest.json").touch()


@pytest.mark.parametrize(
    "model_def", ["iris", "mnist.cnn.Custom_Model", "9lives", "___", "x" * 80, "модель"]
)
def test_a_job_without_a_name_gets_one_that_is_allowed(model_def: str) -> None:
    spec = job(model_def=model_def)
    assert is_valid(spec.cluster.job_name)
    assert re.search(r"-\d{8}-\d{6}$", spec.cluster.job_name)


def test_jobs_of_one_second_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    with placed(job()) as (first, _), placed(job()) as (second, _):
        pass
    with placed(job()) as (third, directory):
        assert [path.name for path in sorted((tmp_path / "jobs").iterdir())] == [
            one.cluster.job_name for one in (first, second, third)
        ]
    assert (
        second.cluster.job_name == f"{first.cluster.job_name}-2"
        and third.cluster.job_name == f"{first.cluster.job_name}-3"
    )
    assert (
        directory.path == tmp_path / "jobs" / third.cluster.job_name == Path(third.cluster.job_dir)
    )


def test_a_name_that_somebody_gave_gives_way_to_nobody() -> None:
    with placed(job(job_name="a")):
        for resume in (False, True):
            with (
                pytest.raises(SpecError, match=r"already contains a job|another command runs"),
                placed(job(job_name="a", resume=resume)),
            ):
                pass


def test_a_name_that_was_generated_is_known_for_one() -> None:
    assert job().generated_name
    assert not any(
        job(**given).generated_name
        for given in ({"job_name": job().cluster.job_name}, {"job_dir": "d"})
    )


def test_paths_mean_the_same_from_any_directory(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    spec = job(output="out", validation_data="*.csv", job_name="a", checkpoint_dir_for_init="c")
    assert spec.model.model_zoo == str(tmp_path / "zoo")
    assert spec.checkpoint.output == str(tmp_path / "out")
    assert spec.checkpoint.checkpoint_dir_for_init == str(tmp_path / "c")
    assert spec.data.training_data == str(tmp_path / "a.csv")
    assert spec.data.validation_data == str(tmp_path / "*.csv")
    assert job(training_data="table:clicks").data.training_data == "table:clicks"
    assert spec.cluster.job_dir == str(tmp_path / "jobs/a")


def test_a_job_that_is_settled_again_from_its_own_flags_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = job(job_name="a", output="out", num_workers="1:3")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert settle(Request(Action.TRAIN, once.flags(defaults=False))).flags() == once.flags()


def test_a_claimed_directory_holds_the_job_for_its_owner_only(tmp_path: Path) -> None:
    spec = job(job_name="a", envs="KEY=secret")
    with claimed(spec) as directory:
        assert directory.path == tmp_path / "jobs/a"
        assert JobSpec.model_validate_json(directory.spec.read_text()) == spec
        assert directory.spec.stat().st_mode & 0o077 == 0
        checkpoint(directory.checkpoints)
        with (
            pytest.raises(SpecError, match="another command runs the job"),
            claimed(job(job_name="a", resume=True)),
        ):
            pass
    with pytest.raises(SpecError, match="already contains a job"):
        refuse_if_taken(spec)
    refuse_if_taken(job(job_name="a", resume=True))


def test_a_job_that_does_not_begin_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no loss"), claimed(job(job_name="a")) as directory:
        (directory.path / "logs").mkdir()
        (directory.path / "logs/master-0.log").touch()
        raise SpecError("no loss")
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_has_begun_stays_whatever_happens_to_its_command(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), claimed(job(job_name="a")) as directory:
        directory.preflight.write_text("{}")
        raise KeyboardInterrupt
    assert directory.spec.exists()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_job_that_a_second_master_is_refused_to_continue_stays(
    tmp_path: Path, resumed: bool
) -> None:
    """The first one trained and was killed; the next one starts over from the last checkpoint."""
    if resumed:
        with claimed(job(job_name="a")) as directory:
            checkpoint(directory.checkpoints)
    with pytest.raises(ElasticDLError), claimed(job(job_name="a", resume=resumed)) as directory:
        directory.preflight.write_text("{}")
        (directory.checkpoints / "version-9").mkdir(parents=True)
        directory.metrics.touch()
        begin_anew(directory, "a")
        assert '"resume":true' in directory.spec.read_text().replace(" ", "")
        leave_outcome(directory, Outcome(ExitCode.JOB_FAILED, "damaged"), begun=True)
        assert refusal_of(directory, Outcome(ExitCode.JOB_FAILED, "damaged")) is None
        raise PermanentError("damaged")
    assert (directory.checkpoints / "version-9").exists() and directory.metrics.exists()


def test_a_refused_resume_in_a_new_directory_keeps_the_checkpoints_that_it_fetched() -> None:
    refused = Outcome(ExitCode.JOB_FAILED, "the data changed")
    spec = job(job_name="a", resume=True, checkpoint_dir="s3://bucket/a")
    with pytest.raises(PermanentError), claimed(spec) as directory:
        directory.preflight.write_text("{}")
        leave_outcome(directory, refused, begun=False)
        assert refusal_of(directory, refused) is not None
        raise PermanentError("the data changed")
    assert directory.spec.exists()


def test_a_resumed_job_that_does_not_begin_leaves_the_directory_as_it_was(tmp_path: Path) -> None:
    with claimed(job(job_name="a")) as directory:
        checkpoint(directory.checkpoints)
        for path in (directory.status, directory.preflight, directory.events):
            path.write_text(f'{{"of": "{path.name}"}}\n')
    (directory.path / "notes.txt").write_text("mine")

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = files()
    resumed = job(job_name="a", resume=True, minibatch_size=7)
    with pytest.raises(SpecError, match="no loss"), claimed(resumed) as directory:
        assert not directory.status.exists() and not directory.preflight.exists()
        directory.status.write_text("other")
        directory.events.open("a").close()
        directory.receipt.touch()
        raise SpecError("no loss")
    assert files() == before


@pytest.mark.parametrize("resumed", [False, True])
def test_a_command_that_removes_the_directory_of_a_refused_job_says_so(
    resumed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused(run: LocalRun) -> Outcome:
        raise SpecError("no loss")

    if resumed:
        with claimed(job(job_name="a")) as directory:
            checkpoint(directory.checkpoints)
    monkeypatch.setattr(LocalRun, "run", refused)
    monkeypatch.setattr("elasticdl.master.preflight.refuse_paths", lambda spec: None)
    with pytest.raises(SpecError, match="no loss"):
        run_job(job(job_name="a", resume=resumed), Format.TABLE)
    place = Path("jobs/a").absolute()
    assert place.exists() == resumed
    said = capsys.readouterr().err.splitlines()
    removed = f"removed {place}: the job did not begin"
    assert said == [f"job a in {place}", *([] if resumed else [removed])]


def test_files_of_the_user_stay_in_a_directory_that_the_command_did_not_make(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(SpecError, match="no loss"), claimed(job(job_dir="mine")) as directory:
        directory.events.touch()
        (directory.path / "notes.txt").touch()
        raise SpecError("no loss")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_resumed_job_forgets_how_the_last_run_ended() -> None:
    with claimed(job(job_name="a")) as directory:
        directory.status.write_text("{}")
        checkpoint(directory.checkpoints)
    with claimed(job(job_name="a", resume=True)) as directory:
        assert not directory.status.exists()


def test_a_directory_without_a_job_may_be_used_and_what_is_in_it_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    with claimed(job(job_dir="mine")) as directory:
        assert directory.spec.exists()
    assert (tmp_path / "mine/notes.txt").read_text() == "keep"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"job_dir": "/proc/job"}, "cannot make /proc/job: No such file or directory"),
        ({"tensorboard_log_dir": "file"}, "--tensorboard-log-dir .*file is a file"),
        ({"job_dir": "new/job", "tensorboard_log_dir": "new/board"}, None),
        ({}, None),
    ],
)
def test_the_places_of_a_job_are_tried_and_left_as_they_were(
    tmp_path: Path, flags: dict[str, str], words: str | None
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=words) if words else nullcontext():
        try_places(job(**flags))
    assert [*tmp_path.rglob("*")] == [tmp_path / "file"]


@pytest.mark.parametrize(
    ("job_dir", "words"),
    [
        ("file/job", "cannot make .*file/job: Not a directory"),
        ("file/deep/job", "cannot make .*file/deep/job: Not a directory"),
        ("/proc/job", "cannot make /proc/job: No such file or directory"),
        ("n" * 300, "cannot use .*nnn: File name too long"),
        ("deep/" + "n" * 300 + "/job", "cannot make .*nnn/job: File name too long"),
        ("circle/job", "circle/job: Too many levels of symbolic links"),
        ("file", "--job-dir .*file is a file"),
    ],
)
def test_a_job_directory_that_cannot_be_made_is_bad_usage_and_leaves_nothing(
    tmp_path: Path, job_dir: str, words: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to("circle")
    before = sorted(tmp_path.rglob("*"))
    spec = job(job_dir=job_dir)
    with pytest.raises(SpecError, match=words) as caught:
        refuse_if_taken(spec)
        with claimed(spec):
            pass
    assert caught.value.exit_code is ExitCode.USAGE
    assert "another --job-dir" in caught.value.hint or "new or empty" in caught.value.hint
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("output", ["file/export", "/proc/export", "n" * 300])
def test_an_output_that_cannot_be_made_is_said_before_anything_starts(
    tmp_path: Path, output: str
) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(SpecError, match=r"cannot (make|be used)") as caught,
        claimed(job(job_name="a", output=output)),
    ):
        pass
    assert "another --output" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_place_of_an_output_is_tried_and_not_made(tmp_path: Path) -> None:
    with claimed(job(job_name="a", output="some/where/export")):
        assert not (tmp_path / "some").exists()


def predicting(name: str, output: str = "predictions/deep") -> JobSpec:
    checkpoint(Path("c")) if not Path("c").exists() else None
    flags = {
        "model_zoo": "zoo",
        "model_def": "iris",
        "prediction_data": "a.csv",
        "checkpoint_dir_for_init": "c",
    }
    return settle(Request(Action.PREDICT, {**flags, "output": output, "job_name": name}))


def test_a_folder_of_predictions_is_for_one_job_at_a_time_and_not_left_behind_empty(
    tmp_path: Path,
) -> None:
    with claimed(predicting("a")):
        with (
            pytest.raises(
                SpecError, match=r"another command writes its predictions to .*deep"
            ) as refused,
            claimed(predicting("b")),
        ):
            pass
        assert refused.value.exit_code is ExitCode.USAGE and not (tmp_path / "jobs/b").exists()
    assert not (tmp_path / "predictions").exists()


def test_no_folder_is_made_here_for_predictions_in_an_object_store(tmp_path: Path) -> None:
    with claimed(predicting("a", output="s3://bucket/predictions")):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "jobs"]


def test_predictions_of_two_jobs_are_not_mixed(tmp_path: Path) -> None:
    with claimed(predicting("a")):
        (tmp_path / "predictions/deep/predictions-000000-000000000-000000010.npz").touch()
    with pytest.raises(SpecError, match="predictions would mix"), claimed(predicting("b")):
        pass
    assert not (tmp_path / "jobs/b").exists()


def test_check_says_what_is_in_the_way_of_the_directories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with claimed(predicting("a")):
        (tmp_path / "predictions/deep/mine.npz").touch()
    asked = ["check", "-f", "jobs/a/job.yaml", "--for", "predict", "-o", "json"]
    for more, words in (
        ([], "already contains a job"),
        (["--job-name", "b", "--job-dir", "jobs/b"], "mine.npz"),
    ):
        assert run([*asked, *more]) == ExitCode.USAGE
        (finding,) = json.loads(capsys.readouterr().out)["findings"]
        assert (finding["about"], finding["result"]) == (
            "directories",
            "problem",
        ) and words in finding["text"]
    assert not (tmp_path / "jobs/b").exists()


@pytest.mark.parametrize(
    ("is_made_again", "words"), [(False, "cannot open .*jobs/a"), (True, "another command runs")]
)
def test_a_directory_that_is_removed_between_its_opening_and_its_lock_is_not_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made_again: bool, words: str
) -> None:
    """Another command removes the empty directory that it made, and then frees its lock."""
    lock = fcntl.flock

    def removed(descriptor: int, operation: int) -> None:
        (tmp_path / "jobs/a").rmdir()
        if is_made_again:
            (tmp_path / "jobs/a").mkdir()
        lock(descriptor, operation)

    monkeypatch.setattr("elasticdl.cli.jobs.job_claim.fcntl.flock", removed)
    with pytest.raises(SpecError, match=words), claimed(job(job_name="a")):
        pass
    assert [*tmp_path.glob("jobs/a/*")] == []


def test_a_current_directory_that_was_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run(["status", "a"]) == 1
    assert "Error: the current directory was removed\n" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)


def test_a_full_disk_is_no_bad_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(PermanentError, match="No space left") as caught, claimed(job(job_name="a")):
        pass
    assert caught.value.exit_code is ExitCode.JOB_FAILED


def test_resume_needs_a_job_to_continue_with() -> None:
    with pytest.raises(SpecError, match="holds no job"):
        refuse_if_taken(job(job_name="a", resume=True))


def test_no_file_stays_open() -> None:
    before = open_files()
    with claimed(job(job_name="a")):
        pass
    assert open_files() <= before


def test_a_job_without_a_checkpoint_is_begun_by_a_resume() -> None:
    with claimed(job(job_name="a")) as directory:
        directory.preflight.touch()
    with pytest.raises(SpecError, match="already contains a job") as caught:
        refuse_if_taken(job(job_name="a"))
    assert "continue it with --resume" in caught.value.hint
    with claimed(job(job_name="a", resume=True, num_workers="1:4", num_ps_pods=3)):
        assert json.loads(directory.spec.read_text())["cluster"]["num_ps_pods"] == 3
        directory.preflight.touch()


@pytest.mark.parametrize("left", ["damaged", "done", "predicts"])
def test_a_resume_begins_nothing_over_what_is_not_to_be_lost(left: str) -> None:
    with claimed(job(job_name="a")) as directory:
        directory.preflight.touch()
    match left:
        case "damaged":
            (directory.checkpoints / "version-7").mkdir(parents=True)
            (directory.checkpoints / ".making-x").mkdir()
        case "done":
            directory.status.write_text('{"exit_code": 0}')
        case _:
            directory.spec.write_text('{"action": "predict"}')
    with pytest.raises(
        SpecError, match=r"version-7 has no manifest|is done|is to predict"
    ) as caught:
        refuse_if_taken(job(job_name="a", resume=True))
    assert caught.value.hint
    with pytest.raises(SpecError, match="already contains a job") as caught:
        refuse_if_taken(job(job_name="a"))
    assert "--resume" not in caught.value.hint
    checkpoint(directory.checkpoints)
    refuse_if_taken(job(job_name="a", resume=True))


def test_init_needs_a_checkpoint_to_begin_with(tmp_path: Path) -> None:
    with claimed(job(job_name="a")):
        pass
    with pytest.raises(
        SpecError, match=r"--checkpoint-dir-for-init: there is no checkpoint in .*other"
    ):
        refuse_if_taken(job(job_name="b", checkpoint_dir_for_init="other"))
    checkpoint(tmp_path / "other")
    refuse_if_taken(job(job_name="b", checkpoint_dir_for_init="other"))
    refuse_if_taken(job(job_name="b", checkpoint_dir_for_init="other/version-3"))
