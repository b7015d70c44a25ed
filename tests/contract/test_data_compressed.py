"""Files that are compressed as a whole; the suite of all readers has their records."""

from __future__ import annotations

import bz2
import gzip
import os
from pathlib import Path

import pytest

from elasticdl.data import Reader, compressed_files, open_reader
from elasticdl.errors import PermanentError, UserError
from elasticdl.shard import Shard, ShardId
from tests.present import array

pytestmark = pytest.mark.contract
TEXT = b"a\tb\n" + b"".join(b"%d\t%d\n" % (i, -i) for i in range(1000))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "decompressed"


def rows(reader: Reader) -> list[list[bytes]]:
    (source,) = reader.sources()
    shard = Shard(ShardId(1), source.name, 0, source.records)
    return [row.tolist() for block in reader.read(shard) for row in array(block.records)]


def test_the_name_says_how_it_is_compressed_and_which_format_it_has(
    tmp_path: Path, cache: Path
) -> None:
    path = tmp_path / "data.tsv.bz2"
    # Some programs compress in parts and join these.
    path.write_bytes(bz2.compress(TEXT[:100]) + bz2.compress(TEXT[100:]))
    reader = open_reader(str(path), {})
    assert reader.metadata.column_names == ("a", "b")
    assert rows(reader) == [[b"%d" % i, b"%d" % -i] for i in range(1000)]
    (copy,) = cache.iterdir()
    assert copy.read_bytes().startswith(TEXT)


def test_a_bad_record_has_the_line_and_the_name_of_the_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "data.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n3\n"))
    with pytest.raises(UserError, match=r"data\.csv\.gz:3: "):
        open_reader(str(path), {}).sources()


def test_a_copy_is_made_once_and_again_if_it_is_gone(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "data.tsv.gz"
    path.write_bytes(gzip.compress(TEXT))
    reader = open_reader(str(path), {})
    expected = rows(reader)
    (copy,) = cache.iterdir()
    made = copy.stat().st_ino
    assert rows(open_reader(str(path), {})) == expected and copy.stat().st_ino == made
    for spoil in (Path.unlink, lambda path: os.truncate(path, 4000)):
        spoil(copy)
        assert rows(reader) == expected
        spoil(copy)
        assert rows(open_reader(str(path), {})) == expected
    # A new file of the same name has a copy of its own.
    path.write_bytes(gzip.compress(TEXT + b"7\t8\n"))
    assert len(rows(open_reader(str(path), {}))) == 1001


def test_each_piece_and_each_file_of_the_count_is_reported(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.tsv.gz").write_bytes(gzip.compress(b"a\tb\n" + b"1\t2\n" * 1_200_000))
    pieces: list[bool] = []
    counts: list[tuple[int, int]] = []
    open_reader(
        str(tmp_path / "*.gz"),
        {},
        counting=lambda done, files: counts.append((done, files)),
        moving=lambda: pieces.append(True),
    ).sources()
    # Of 4 MiB at most.
    assert len(pieces) == 3 * 2 and counts == [(1, 3), (2, 3), (3, 3)]


def test_a_name_without_a_format_is_told_which_names_are_read(tmp_path: Path) -> None:
    path = tmp_path / "part-00000.gz"
    path.write_bytes(gzip.compress(TEXT))
    with pytest.raises(UserError) as caught:
        open_reader(str(path), {})
    assert "end with .csv.gz or .tfrecord.gz, or with .gz and" in caught.value.hint
    assert '"format=csv"' in caught.value.hint
    assert len(rows(open_reader(str(path), {"format": "csv"}))) == 1000


def test_what_cannot_be_removed_costs_the_job_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compressed_files, "_TIDY_EVERY", 1)
    folder = cache / "old.copy"
    folder.mkdir(parents=True)
    os.utime(folder, (0, 0))
    path = tmp_path / "data.tsv.gz"
    path.write_bytes(gzip.compress(TEXT))
    assert len(rows(open_reader(str(path), {}))) == 1000
    assert f"cannot tidy {cache}" in caplog.text


@pytest.mark.parametrize("cut", [5, 40, 1])
def test_a_file_that_is_cut_off_leaves_no_copy(tmp_path: Path, cache: Path, cut: int) -> None:
    path = tmp_path / "data.tsv.gz"
    path.write_bytes(gzip.compress(TEXT)[:-cut])
    with pytest.raises(UserError, match=r"data\.tsv\.gz: cannot decompress it"):
        open_reader(str(path), {}).sources()
    assert not [*cache.iterdir()]


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.tsv.gz"
    path.write_bytes(gzip.compress(TEXT))
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", "/proc/self/cache")
    with pytest.raises(PermanentError, match=r"cannot decompress .* to /proc/self/cache") as caught:
        open_reader(str(path), {}).sources()
    assert "ELASTICDL_CACHE_DIR" in caught.value.hint
