"""`elasticdl analyze`: a pass over real files, and layers that take what it wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.cli.main import run
from elasticdl.data.analysis import run as analysis_run
from elasticdl.data.analysis.run import Analysis, analyze
from elasticdl.errors import ExitCode, PermanentError, UserError
from elasticdl.preprocessing import Discretization, IndexLookup, Normalizer, Statistics
from tests.killed import kill_this_process

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("own_cache")]
RECORDS = 300_000


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Two CSV files, which make four ranges, and their columns."""
    choose = np.random.default_rng(3)
    columns = {
        "age": choose.integers(0, 90, RECORDS),
        "word": np.array(["ape", "bee", "cat", "dog"])[
            choose.choice(4, RECORDS, p=[0.1, 0.2, 0.3, 0.4])
        ],
        "income": np.round(choose.lognormal(8, 1, RECORDS), 2),
    }
    folder = tmp_path_factory.mktemp("table")
    rows = list(zip(*(column.tolist() for column in columns.values()), strict=True))
    for part, begin in enumerate((0, 140_000)):
        with open(folder / f"{part}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(rows[begin : begin + 140_000 if part == 0 else None])
    return str(folder), columns


def test_processes_side_by_side_find_what_one_finds(
    table: tuple[str, dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    origin, columns = table
    output = tmp_path / "statistics.json"
    flags = ["--columns", "income,word", "--vocabulary-size", "3"]
    assert run(["analyze", origin, *flags, "--processes", "2", "--output", str(output)]) == 0
    assert "300,000 records, 2 columns" in capfd.readouterr().err
    assert run(["analyze", origin, *flags, "--processes", "1"]) == 0
    assert output.read_text() == capfd.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == [output.name]
    found = json.loads(output.read_text())
    assert found["records"] == RECORDS and list(found["columns"]) == ["income", "word"]
    income, word = found["columns"]["income"], found["columns"]["word"]
    exact = columns["income"]
    assert (income["count"], income["min"], income["max"]) == (RECORDS, exact.min(), exact.max())
    assert income["mean"] == pytest.approx(exact.mean(), rel=1e-12)
    assert income["std"] == pytest.approx(exact.std(), rel=1e-12)
    ranks = np.searchsorted(np.sort(exact), income["quantiles"]) / RECORDS
    assert np.abs(ranks - np.arange(1, 100) / 100).max() < 2e-4
    assert 0 < income["quantile_rank_error"] < 100
    assert word["mean"] is None
    assert word["vocabulary"]["values"] == ["dog", "cat", "bee"]
    assert word["vocabulary"]["counts"][0] == np.count_nonzero(columns["word"] == "dog")
    assert word["vocabulary"]["distinct"] == 4


def test_layers_take_the_statistics(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    ages = np.array([1, 2, 2, 3, 10, 30, 40, 50])
    words = ["a", "b", "b", None, "c", "b", "a", "b"]
    pq.write_table(pa.table({"age": ages, "word": words, "x": ages / 2}), path)
    output = tmp_path / "s.json"
    assert run(["analyze", str(path), "--quantiles", "4", "--output", str(output)]) == 0
    statistics = Statistics.read(output)
    age, word = statistics["age"], statistics["word"]
    assert statistics.records == 8 and (word.count, word.missing) == (7, 1)
    assert (age.min, age.max) == (1, 50) and age.std == pytest.approx(ages.std())
    layer = Normalizer(age.mean, age.std)
    adapted = keras.layers.Normalization(axis=None)
    adapted.adapt(ages.astype("float32"))
    given = ages.astype("float32")
    assert np.allclose(layer(given), adapted(given), atol=1e-5)
    assert age.bin_boundaries(4) == [2, 3, 30]
    assert age.bin_boundaries(2) == [3]
    binned = Discretization(age.bin_boundaries(4))(ages)
    assert np.asarray(binned).tolist() == [0, 1, 1, 2, 2, 3, 3, 3]
    looked = IndexLookup(word.vocabulary())(np.array(["b", "a", "c", "z"]))
    assert np.asarray(looked).tolist() == [0, 1, 2, 3]
    assert word.vocabulary(1) == ["b"] and word.vocabulary(min_count=2) == ["b", "a"]
    assert age.vocabulary(1) == [2]
    for wrong, message in (
        (lambda: statistics["z"], "no column 'z'; available: age, word, x"),
        (lambda: word.mean, "'word' has no mean: its values are not numbers"),
        (lambda: statistics["x"].vocabulary(), "'x' has no vocabulary: its values are not texts"),
        (lambda: age.bin_boundaries(3), "quantiles of 4 parts, which do not make 3 bins"),
        (lambda: Statistics.read(tmp_path / "none"), "No such file"),
        (lambda: Statistics.read(path), "is not"),
    ):
        with pytest.raises(UserError, match=message):
            wrong()


def test_bad_records_and_data_without_columns_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"n": [1, None, 3]}), path)
    assert run(["analyze", str(path)]) == ExitCode.USAGE
    error = capfd.readouterr().err
    assert "record 1: column 'n' is null" in error and "1 bad records so far, at most 0" in error
    assert run(["analyze", str(path), "--max-bad-records", "1"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["records"], found["bad_records"], found["columns"]["n"]["mean"]) == (2, 1, 2)
    filled = ["--data-reader-params", "fill_null=5"]
    assert run(["analyze", str(path), *filled]) == 0
    assert json.loads(capfd.readouterr().out)["columns"]["n"]["mean"] == 3
    for arguments, words in (
        ([str(path), "--columns", "z"], "has no column 'z'; available: n"),
        ([str(tmp_path / "none")], "does not exist"),
        ([str(path), "--data-reader-params", "x"], "expected key=value, got 'x'"),
        (["s3://a:b@bucket/x"], "contains a password"),
    ):
        assert run(["analyze", *arguments]) == ExitCode.USAGE
        assert words in capfd.readouterr().err


def test_records_without_columns_are_refused(tmp_path: Path) -> None:
    from tests.contract.test_data_reader_contract import write

    origin = write("tfrecord", tmp_path / "number", range(3))
    with pytest.raises(UserError, match="records without columns, such as TFRecord"):
        analyze(Analysis(origin, {}), 1)


def test_a_process_that_is_killed_ends_the_analysis(
    table: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis_run, "_read_here", kill_this_process)
    with pytest.raises(PermanentError, match="was killed"):
        analyze(Analysis(table[0], {}), 2)


def test_a_place_that_cannot_be_written_is_refused_before_the_data_is_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "missing" / "s.json"
    # The data does not exist either: it is not looked at.
    assert run(["analyze", str(tmp_path / "none.csv"), "--output", str(output)]) == 2
    assert f"there is no directory {output.parent}" in capfd.readouterr().err
