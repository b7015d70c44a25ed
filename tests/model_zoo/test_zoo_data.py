"""The scripts that write the zoo's data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data import open_reader
from model_zoo import make_data

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]


def make(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "model_zoo.make_data", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("name", "params", "records"),
    [
        ("iris", {}, {"train.csv": 120, "test.csv": 30}),
        ("digits", {}, {"train.npz": 1437, "test.npz": 360}),
        ("breast_cancer", {}, {"train.parquet": 455, "test.parquet": 114}),
        (
            "criteo",
            {"format": "csv", "header": False, "delimiter": "tab"},
            {"train.tsv": 1000, "test.tsv": 250},
        ),
    ],
)
def test_data_is_written_whole_and_the_same_each_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    params: dict[str, Any],
    records: dict[str, int],
) -> None:
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path / "cache"))
    done = make(name, tmp_path / "first", "--records", 1000)
    assert done.returncode == 0, done.stderr
    (tmp_path / "second").mkdir()
    make_data.MAKERS[name](tmp_path / "second", 1000)
    for file, count in records.items():
        assert open_reader(str(tmp_path / "first" / file), params).sources()[0].records == count
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_the_planted_optimum_is_printed_and_kept(tmp_path: Path) -> None:
    done = make("criteo", tmp_path, "--records", 2000)
    assert "the planted model's AUC on the test records is 0.8" in done.stdout
    assert '"planted_auc": 0.8' in (tmp_path / "truth.json").read_text()


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    done = make("mnist", tmp_path)
    assert done.returncode == 2
    assert "choose from" in done.stderr
