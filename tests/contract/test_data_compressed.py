"""Files that are compressed as a whole; the suite of all readers has their records."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pytest

from elasticdl.data import Reader, open_reader
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
    assert [one.read_bytes() for one in cache.iterdir()] == [TEXT]


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
    copy.unlink()
    assert rows(reader) == expected
    # A new file of the same name has a copy of its own.
    path.write_bytes(gzip.compress(TEXT + b"7\t8\n"))
    assert len(rows(open_reader(str(path), {}))) == 1001


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
