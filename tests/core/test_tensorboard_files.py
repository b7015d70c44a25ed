"""Event files are what TensorFlow's own reader, which TensorBoard has too, takes them for."""

from __future__ import annotations

import logging
import math
import resource
from pathlib import Path

import pytest

from elasticdl.history.event_file import EventFile
from elasticdl.master.tensorboard_scalars import ScalarRuns

pytestmark = pytest.mark.core


def read(directory: Path) -> tuple[list[tuple[int, str, float, float]], list[str]]:
    """(step, tag, value, wall time) of all points, by TensorFlow's reader, and the versions that
    the files say they have.
    """
    from tensorflow.python.summary.summary_iterator import summary_iterator

    points, versions = [], []
    for path in sorted(directory.iterdir()):
        for event in summary_iterator(str(path)):
            versions += [event.file_version] if event.file_version else []
            points += [
                (event.step, value.tag, value.simple_value, event.wall_time)
                for value in event.summary.value
            ]
    return points, versions


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_points_come_back_as_they_were_added(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "train")
    file.add({"loss": 0.5}, 0, 1700000000.25)
    file.add({"loss": 0.25, "genauigkeit ü": 1.0}, 300, 1700000001.0)
    file.add({"loss": math.nan, "big": 1e300, "small": -1e300}, 1 << 40, 1700000002.0)
    points, versions = read(tmp_path / "train")
    file.close()
    assert versions == ["brain.Event:2"]
    assert points[:3] == [
        (0, "loss", 0.5, 1700000000.25),
        (300, "loss", 0.25, 1700000001.0),
        (300, "genauigkeit ü", 1.0, 1700000001.0),
    ]
    assert points[3][:2] == (1 << 40, "loss") and math.isnan(points[3][2])
    assert [point[2] for point in points[4:]] == [math.inf, -math.inf]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_training_and_evaluation_are_two_runs_and_a_second_master_adds_a_file(
    tmp_path: Path,
) -> None:
    for version in (10, 20):
        runs = ScalarRuns(str(tmp_path), tmp_path / "unused")
        runs.append(
            {
                "kind": "training",
                "version": version,
                "records": 1,
                "values": {"loss": 0.5},
                "at": 1700000000.0 + version,
            }
        )
        runs.append(
            {
                "kind": "evaluation",
                "version": version,
                "records": 1,
                "values": {"loss": 0.25, "auc": 0.75},
            }
        )
        runs.append(
            {"kind": "something new", "version": version, "records": 1, "values": {"x": 1.0}}
        )
        runs.close()
    assert [point[:3] for point in read(tmp_path / "train")[0]] == [
        (10, "loss", 0.5),
        (20, "loss", 0.5),
    ]
    assert [point[:3] for point in read(tmp_path / "validation")[0]] == [
        (10, "loss", 0.25),
        (10, "auc", 0.75),
        (20, "loss", 0.25),
        (20, "auc", 0.75),
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"train", "validation"}


def test_without_a_directory_nothing_is_written_and_one_that_cannot_be_written_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"kind": "training", "version": 1, "records": 1, "values": {"loss": 0.5}}
    ScalarRuns("", Path("unused")).append(row)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    runs = ScalarRuns(str(tmp_path / "file"), tmp_path / "unused")
    with caplog.at_level(logging.WARNING):
        runs.append(row)
        runs.append(row)
    runs.close()
    assert len(caplog.records) == 1 and "TensorBoard lacks points" in caplog.text


def test_a_disk_that_gets_full_costs_points_and_closing_says_nothing_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = EventFile(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, limits[1]))
    try:
        for step in range(3):
            file.add({"loss": 0.5}, step, 1.0)
        file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(caplog.records) == 1 and "TensorBoard lacks points" in caplog.text
    file.add({"loss": 0.5}, 3, 1.0)
    file.close()
    assert max(path.stat().st_size for path in tmp_path.iterdir()) > 60
