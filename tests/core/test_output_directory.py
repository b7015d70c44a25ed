"""What is in the way of a job's --output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticdl.errors import SpecError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.output_folder import last_export, refuse_output

pytestmark = pytest.mark.core


def job(action: Action, output: object) -> JobSpec:
    flags = {
        "model_zoo": "zoo",
        "model_def": "iris",
        "training_data": "a",
        "validation_data": "a",
        "prediction_data": "a",
    }
    return JobSpec.from_flags(
        action, {**flags, "checkpoint_dir_for_init": "c", "output": str(output)}
    )


def export(place: Path) -> Path:
    (place / "variables").mkdir(parents=True)
    for name in ("saved_model.pb", "fingerprint.pb", "model.weights.h5"):
        (place / name).touch()
    return place


@pytest.mark.parametrize("action", [Action.TRAIN, Action.PREDICT])
def test_a_folder_that_is_new_or_empty_will_do(tmp_path: Path, action: Action) -> None:
    refuse_output(job(action, tmp_path / "new" / "deep"))
    (tmp_path / ".keep").touch()
    (tmp_path / "lost+found").mkdir()
    refuse_output(job(action, tmp_path))
    assert sorted(os.listdir(tmp_path)) == [".keep", "lost+found"]


def test_predictions_are_not_mixed_with_anything(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"predictions-{number:06d}-000000000-000000010.npz").touch()
    with pytest.raises(
        SpecError, match=r"predictions-000000-.* and 2 more, which this job"
    ) as refused:
        refuse_output(job(Action.PREDICT, tmp_path))
    assert str(tmp_path) in refused.value.message and "new or empty" in refused.value.hint
    assert len(os.listdir(tmp_path)) == 5
    with pytest.raises(SpecError, match=r"saved_model\.pb"):
        refuse_output(job(Action.PREDICT, export(tmp_path / "export")))


def test_an_export_takes_the_place_of_an_earlier_one_and_of_nothing_else(tmp_path: Path) -> None:
    """It replaced the whole directory, whatever was in it: `--output .` removed the data."""
    refuse_output(job(Action.TRAIN, export(tmp_path / "export")))
    with pytest.raises(
        SpecError, match="contains export, which is not from an earlier export"
    ) as refused:
        refuse_output(job(Action.TRAIN, tmp_path))
    assert str(tmp_path / "export") in refused.value.hint
    (tmp_path / "export/notes.txt").write_text("by hand")
    with pytest.raises(
        SpecError, match=r"contains notes\.txt, which is not from an earlier export"
    ):
        refuse_output(job(Action.TRAIN, tmp_path / "export"))
    assert (tmp_path / "export/notes.txt").read_text() == "by hand"


@pytest.mark.parametrize("seconds", [0.0, 60.0])
@pytest.mark.parametrize(
    ("output", "others", "problem"),
    [
        ("out", {"job_dir": "out"}, "is also --job-dir"),
        ("out", {"job_dir": "out/jobs/../job"}, "contains --job-dir"),
        ("out", {"job_dir": "link/job"}, "contains --job-dir"),
        ("out", {"tensorboard_log_dir": "out"}, "is also --tensorboard-log-dir"),
        ("out", {"tensorboard_log_dir": "out/curves"}, "contains --tensorboard-log-dir"),
        ("job/checkpoints", {"job_dir": "job"}, "is a part of --job-dir"),
        ("job/checkpoints/best", {"job_dir": "job"}, "is a part of --job-dir"),
        ("job/report.html", {"job_dir": "job"}, "is a part of --job-dir"),
    ],
)
def test_an_export_does_not_remove_the_jobs_own_files(
    tmp_path: Path, output: str, others: dict[str, str], problem: str, seconds: float
) -> None:
    """The export replaced the folder as a whole: `--job-dir x --output x` left no checkpoint."""
    (tmp_path / "link").symlink_to(tmp_path / "out")
    places = {flag: str(tmp_path / place) for flag, place in others.items()}
    spec = job(Action.TRAIN, tmp_path / output).replace(export_seconds=seconds, **places)
    with pytest.raises(SpecError, match=problem) as refused:
        refuse_output(spec)
    assert "choose" in refused.value.hint
    assert os.listdir(tmp_path) == ["link"]


def test_an_export_to_an_address_does_not_remove_the_jobs_own_objects() -> None:
    spec = job(Action.TRAIN, "s3://bucket/job")
    for places in ({"job_dir": "s3://bucket/job"}, {"checkpoint_dir": "s3://bucket/job/saved"}):
        with pytest.raises(SpecError, match="--output s3://bucket/job"):
            refuse_output(spec.replace(**places))
        # Numbered exports replace no other objects.
        refuse_output(spec.replace(export_seconds=60, **places))
    refuse_output(spec.replace(job_dir="s3://bucket/jo"))


def test_results_below_the_jobs_directory_are_allowed(tmp_path: Path) -> None:
    for output in ("job/export", "jobs", "job/checkpoints-of-mine"):
        refuse_output(job(Action.TRAIN, tmp_path / output).replace(job_dir=str(tmp_path / "job")))
    # Predictions replace nothing.
    refuse_output(job(Action.PREDICT, tmp_path / "job").replace(job_dir=str(tmp_path / "job")))


@pytest.mark.parametrize("action", [Action.TRAIN, Action.PREDICT])
def test_a_file_is_no_place(tmp_path: Path, action: Action) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="is a file"):
        refuse_output(job(action, tmp_path / "file"))


def test_what_cannot_be_replaced_at_the_end_is_refused_at_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(SpecError, match="it is a link"):
        refuse_output(job(Action.TRAIN, tmp_path / "link"))
    refuse_output(job(Action.PREDICT, tmp_path / "link"))
    with pytest.raises(SpecError, match="it is the root of a volume") as refused:
        refuse_output(job(Action.TRAIN, "/proc"))
    assert "/proc/export" in refused.value.hint


def test_an_export_is_made_beside_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ours").mkdir()
    monkeypatch.setattr(
        os, "access", lambda path, _mode: Path(path) != tmp_path
    )  # root may write everywhere
    with pytest.raises(SpecError, match=f"no permission to write to {tmp_path}"):
        refuse_output(job(Action.TRAIN, tmp_path / "ours"))


def test_an_evaluation_writes_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refuse_output(job(Action.EVALUATE, tmp_path))


def numbered(output: object, **flags: object) -> JobSpec:
    return job(Action.TRAIN, output).replace(export_seconds=60.0, **flags)


def test_numbered_exports_are_added_to_earlier_ones_and_to_nothing_else(tmp_path: Path) -> None:
    refuse_output(numbered(tmp_path / "new"))
    assert last_export(numbered(tmp_path / "new")) == 0
    for number in ("3", "21"):
        export(tmp_path / number)
    (tmp_path / ".22.0a").mkdir()
    refuse_output(numbered(tmp_path))
    assert last_export(numbered(tmp_path)) == 21
    assert last_export(job(Action.TRAIN, tmp_path)) == 0
    with pytest.raises(SpecError, match=r"contains .*, which is no numbered export"):
        refuse_output(numbered(tmp_path / "3"))
    (tmp_path / "3/elasticdl-run-a").touch()
    refuse_output(job(Action.TRAIN, tmp_path / "3"))
    with pytest.raises(SpecError, match=r"contains numbered exports \(21, 3\)"):
        refuse_output(job(Action.TRAIN, tmp_path))


def test_a_link_or_a_volume_can_have_numbered_exports(tmp_path: Path) -> None:
    """They are added to the folder, which stays."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    refuse_output(numbered(tmp_path / "link"))


def test_a_folder_without_permission_is_refused_at_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path)
    with pytest.raises(SpecError, match=f"no permission to write to --output {tmp_path}"):
        refuse_output(numbered(tmp_path))
