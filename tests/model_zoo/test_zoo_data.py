"""The scripts that write the zoo's data."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.data import open_reader
from elasticdl.shard import Task
from model_zoo import make_data
from tests.model_zoo.zoo_training import batches, load

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]


Call = Callable[..., None]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """The script, in this process."""

    def run(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["make_data", *map(str, arguments)])
        make_data.main()

    return run


def make(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The script, in a process of its own."""
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


def test_the_planted_optimum_is_printed_and_kept(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    call("criteo", tmp_path, "--records", 2000)
    assert "the planted model's AUC on the test records is 0.8" in capsys.readouterr().out
    assert '"planted_auc": 0.8' in (tmp_path / "truth.json").read_text()


def test_an_unknown_name_is_refused(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        call("imagenet", tmp_path)
    assert "choose from" in capsys.readouterr().err


def test_the_name_of_a_module_stands_for_its_data(tmp_path: Path, call: Call) -> None:
    call("text_cnn", tmp_path, "--records", "8")
    assert (tmp_path / "train.csv").read_text().startswith("text,label")
    modules = {path.stem for path in Path(make_data.__file__).parent.glob("*.py")}
    found = make_data.data_of_modules()
    assert found["resnet50"] == found["cifar10_subclass"] == "cifar10"
    assert found.keys() == modules - {"__init__", "make_data"} and {*found.values()} <= {
        *make_data.MAKERS
    }


@pytest.mark.parametrize(
    ("name", "suffix", "tested"),
    [
        ("mnist", "npz", 25),
        ("cifar10", "tfrecord", 25),
        ("census", "csv", 25),
        ("ratings", "npz", 12),
        ("reviews", "csv", 25),
        ("tokens", "npz", 12),
    ],
)
def test_planted_data_is_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, suffix: str, tested: int
) -> None:
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path / "cache"))
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        make_data.MAKERS[name](tmp_path / folder, 100)
    for part, count in (("train", 100), ("test", tested)):
        file = f"{part}.{suffix}"
        assert open_reader(str(tmp_path / "first" / file), {}).sources()[0].records == count
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_the_real_mnist_is_taken_from_the_file_of_keras(tmp_path: Path) -> None:
    image, label = np.arange(2 * 784).astype(np.uint8).reshape(2, 28, 28), np.array([3, 9], "u1")
    source = tmp_path / "mnist.npz"
    np.savez(source, x_train=image, y_train=label, x_test=image[:1], y_test=label[:1])
    make_data.mnist(tmp_path, 0, source)
    with np.load(tmp_path / "train.npz") as train, np.load(tmp_path / "test.npz") as test:
        np.testing.assert_array_equal(train["image"], image)
        assert train["label"].tolist() == [3, 9] and test["label"].tolist() == [3]


def test_the_real_cifar10_is_taken_from_its_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are one label, and 1,024 pixels of each of red, green and blue."""
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path / "cache"))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32)).astype(np.uint8)
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as tar:
        for name, number in (("data_batch_2", 1), ("test_batch", 2), ("data_batch_1", 0)):
            content = bytes([number]) + pixels[number].tobytes()
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    make_data.cifar10(tmp_path, 0, tmp_path / "cifar-10-binary.tar.gz")
    module = load("cifar10")
    reader = open_reader(str(tmp_path / "train.tfrecord"), {})
    ((images, labels),) = batches(module, reader, Task.EVALUATION, 8)
    assert labels.numpy().tolist() == [0, 1]
    np.testing.assert_array_equal(images.numpy()[1], pixels[1].transpose(1, 2, 0))


@pytest.mark.parametrize(
    ("name", "file", "problem"),
    [("iris", "x", "--source is for mnist and cifar10 only"), ("mnist", "x", "no such file")],
)
def test_a_source_that_does_not_fit_is_refused(
    tmp_path: Path,
    call: Call,
    capsys: pytest.CaptureFixture[str],
    name: str,
    file: str,
    problem: str,
) -> None:
    folder = tmp_path / "data"
    with pytest.raises(SystemExit):
        call(name, folder, "--source", tmp_path / file)
    assert problem in capsys.readouterr().err and not folder.exists()
