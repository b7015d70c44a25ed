"""Whatever lies where data should be gets a clear message, and no records are missing without a
word.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.data import open_reader
from elasticdl.errors import UserError
from elasticdl.shard import Shard, ShardId
from tests.present import array

pytestmark = pytest.mark.contract
GOOD = "a,b\n1,2\n3,4\n"


@pytest.fixture(autouse=True)
def in_a_place_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.chdir(tmp_path)


def compressed(path: Path) -> None:
    with gzip.open(path, "wt") as file:
        file.write(GOOD)


def linked_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def text(content: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )


ODD = {
    "zero.csv": (text(""), "zero.csv is empty"),
    "header.csv": (text("a,b\n"), "header.csv has no records"),
    "nul.csv": (text(b"\0" * 100), "nul.csv has no records"),
    "quote.csv": (text('a,b\n1,2\n3,"4\n'), "quote.csv:3: a quote in this row is never closed"),
    "huge.csv": (
        text("a,b\n1,2\n3," + "4" * (65 << 20)),
        "huge.csv:3: a row is longer than 64 MiB",
    ),
    "utf16.csv": (text(GOOD.encode("utf-16")), "utf16.csv is UTF-16"),
    "latin.csv": (text("a,\xe9\n1,2\n".encode("latin-1")), "latin.csv:1: the header is not UTF-8"),
    "data.parquet.gz": (compressed, "data.parquet.gz is compressed with gzip"),
    "plain.csv.gz": (text(GOOD), "plain.csv.gz: cannot decompress it"),
    "hidden.csv": (compressed, "hidden.csv is compressed with gzip"),
    "junk.parquet": (text("junk"), "junk.parquet: not a complete Parquet file"),
    "junk.npz": (text("junk"), "junk.npz: not a complete .npz file"),
    "junk.npy": (text("junk"), "junk.npy: not a complete .npy file"),
    "junk.tfrecord": (text("junk" * 10), "junk.tfrecord: at offset 0: "),
    "junk": (text("junk"), "junk: unknown data format"),
    "pipe.csv": (os.mkfifo, "pipe.csv is not a regular file"),
    "loop.csv": (linked_to_itself, "loop.csv: Too many levels of symbolic links"),
    "gone.csv": (
        lambda path: path.symlink_to("nowhere"),
        "gone.csv is a link to nowhere, which does not exist",
    ),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("way", ["alone", "in a directory", "by a glob"])
def test_a_file_that_is_no_data_is_named_however_it_is_found(
    tmp_path: Path, name: str, way: str
) -> None:
    make, words = ODD[name]
    folder = tmp_path / "data"
    folder.mkdir()
    make(folder / name)
    if way != "alone" and name == "pipe.csv":
        (folder / "good.csv").write_text(GOOD)
        assert (
            len(open_reader(str(folder), {}).sources()) == 1
        )  # like subdirectories, it is passed over
        return
    origin = {"alone": folder / name, "in a directory": folder, "by a glob": folder / "*"}[way]
    before = sorted(folder.iterdir())
    with pytest.raises(UserError) as caught:
        reader = open_reader(str(origin), {})
        reader.sources()
    assert words in caught.value.message
    assert sorted(folder.iterdir()) == before


def test_one_that_cannot_be_used_among_others_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(GOOD)
    (tmp_path / "b.csv").symlink_to("nowhere")
    for origin in (str(tmp_path), "*.csv", "**/*.csv"):
        with pytest.raises(UserError, match=r"b\.csv is a link to nowhere, which does not exist"):
            open_reader(origin, {}).sources()


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ("*.csv", "no file matches *.csv"),
        ("nowhere/x.csv", "nowhere/x.csv does not exist"),
        ("a\0b", "does not exist"),
        ("n" * 300, "File name too long"),
        ("", "a file without a name does not exist"),
        ("/dev/null", "is not a regular file"),
        (".", "has no data files"),
    ],
)
def test_an_origin_without_files_is_said(origin: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        open_reader(origin, {}).sources()
    assert words in caught.value.message and caught.value.hint


def test_rows_with_any_end_behind_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mix.csv"
    path.write_bytes(b'\xef\xbb\xbfa,b\r\n1,2\n3,"x\r\ny"\r5,6\r\n\r\n7,' + b"8" * (1 << 20))
    reader = open_reader(str(path), {})
    (source,) = reader.sources()
    rows = [
        row
        for block in reader.read(Shard(ShardId(0), source.name, 0, source.records))
        for row in array(block.records).tolist()
    ]
    assert reader.metadata.column_names == ("a", "b")
    assert [row[0] for row in rows] == [b"1", b"3", b"5", b"7"]
    assert rows[1][1] == b"x\r\ny" and len(rows[3][1]) == 1 << 20
