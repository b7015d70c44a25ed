"""From a path and parameters to the right reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.data import open_reader
from elasticdl.errors import UserError

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("own_cache")]


def test_files_of_several_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    np.savez(tmp_path / "b.npz", a=np.arange(3))
    with pytest.raises(UserError, match=r"several formats: .*a\.csv is csv, .*b\.npz is npz"):
        open_reader(str(tmp_path), {})


def test_an_unknown_file_asks_for_its_format(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("1\t2\n3\t4\n")
    with pytest.raises(UserError, match="unknown data format") as caught:
        open_reader(str(path), {})
    assert "format=" in caught.value.hint
    assert (
        open_reader(str(path), {"format": "csv", "header": False, "delimiter": "tab"})
        .sources()[0]
        .records
        == 2
    )
    assert open_reader(str(path), {"header": False, "delimiter": "\\t"}).metadata.column_names == (
        "column_0",
        "column_1",
    )


def test_tsv_files_have_tabs(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n1\t2\n")
    assert open_reader(str(tmp_path / "a.tsv"), {}).metadata.column_names == ("a", "b")


@pytest.mark.parametrize(
    ("params", "words", "hint"),
    [
        ({"headr": False}, "no reader parameter 'headr'", "did you mean header?"),
        ({"columns": "a"}, "no reader parameter 'columns'", "did you mean column_names?"),
        ({"header": "maybe"}, "header='maybe': expected true or false", ""),
        ({"delimiter": "ab"}, "delimiter='ab': expected one ASCII character", ""),
        ({"delimiter": '"'}, "delimiter=", ""),
        ({"format": "xls"}, "format='xls' is unknown", "one of csv"),
        ({"format": "parquet", "fill_null": "no"}, "fill_null='no': expected a number", ""),
    ],
)
def test_wrong_parameters_are_named(
    tmp_path: Path, params: dict[str, Any], words: str, hint: str
) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(UserError, match=words) as caught:
        open_reader(str(tmp_path / "a.csv"), params)
    assert hint in caught.value.hint


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        open_reader(str(tmp_path / "missing" / "a.csv"), {})
    with pytest.raises(UserError, match=r"no file matches .*\*\.csv"):
        open_reader(str(tmp_path / "*.csv"), {})
    with pytest.raises(UserError, match="has no data files"):
        open_reader(str(tmp_path), {})


def test_a_name_without_a_directory_is_told_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="does not exist") as caught:
        open_reader("train.csv", {})
    assert str(tmp_path) in caught.value.hint
    with pytest.raises(UserError) as caught:
        open_reader(f"{tmp_path}/train.csv", {})
    assert f"{tmp_path} exists" in caught.value.hint


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].csv").write_text("a\n1\n")
    assert open_reader(str(tmp_path / "a[1].csv"), {}).sources()[0].records == 1


def test_an_empty_part_of_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a\n1\n")
    (tmp_path / "2.csv").write_text("")
    with pytest.raises(UserError, match=r"2\.csv is empty"):
        open_reader(str(tmp_path), {}).sources()
