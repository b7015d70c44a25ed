"""Archives of WebDataset: what makes a sample, samples of any size, and damaged archives."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data import Reader, open_reader
from elasticdl.errors import UserError
from elasticdl.shard import Shard, ShardId
from tests.archives import add_member

pytestmark = pytest.mark.contract


def archive(path: Path, members: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> str:
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members:
            add_member(tar, name, data)
    return str(path)


def samples(reader: Reader, begin: int, end: int) -> list[dict[str, bytes]]:
    """The good records, by column."""
    (source,) = reader.sources()
    found: list[dict[str, bytes]] = []
    for block in reader.read(Shard(ShardId(1), source.name, begin, end)):
        columns: Any = block.records
        assert len(columns["__key__"]) == block.count - block.bad
        found += [
            {name: column[i] for name, column in columns.items()}
            for i in range(block.count - block.bad)
        ]
    return found


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_members_with_one_name_up_to_the_first_dot_are_a_sample(tmp_path: Path, form: int) -> None:
    long = "d/" + "x" * 300
    path = archive(
        tmp_path / "a.tar",
        [
            ("__info__.json", b"about all"),
            (f"{long}.JPG", b"1"),
            (f"{long}.seg.png", b""),
            ("d/é.jpg", b"2" * 3000),
            ("d/é.seg.png", b"22"),
            ("without a suffix", b"-"),
            ("e/é.jpg", b"3"),
            ("e/é.seg.png", b"33"),
        ],
        form,
    )
    reader = open_reader(path, {})
    assert reader.metadata.column_names == ("__key__", "jpg", "seg.png")
    assert samples(reader, 0, 3) == [
        {"__key__": long.encode(), "jpg": b"1", "seg.png": b""},
        {"__key__": "d/é".encode(), "jpg": b"2" * 3000, "seg.png": b"22"},
        {"__key__": "e/é".encode(), "jpg": b"3", "seg.png": b"33"},
    ]
    chosen = open_reader(path, {"columns": "__key__,seg.png"})
    assert samples(chosen, 1, 2) == [{"__key__": "d/é".encode(), "seg.png": b"22"}]


def test_large_samples_are_read_from_any_record_on(tmp_path: Path) -> None:
    members = [
        member
        for i in range(40)
        for member in ((f"{i}.bin", bytes([i]) * (i * 9001)), (f"{i}.cls", b"%d" % i))
    ]
    reader = open_reader(archive(tmp_path / "a.tar", members), {"columns": "__key__,cls,bin"})
    for begin, end in ((0, 40), (7, 8), (13, 40), (39, 40)):
        assert samples(reader, begin, end) == [
            {"__key__": b"%d" % i, "cls": b"%d" % i, "bin": bytes([i]) * (i * 9001)}
            for i in range(begin, end)
        ]


def test_a_sample_without_a_member_is_bad(tmp_path: Path) -> None:
    members = [("a.x", b"1"), ("a.y", b"1"), ("b.x", b"2"), ("c.x", b"3"), ("c.y", b"3")]
    path = archive(tmp_path / "a.tar", members)
    reader = open_reader(path, {})
    (source,) = reader.sources()
    assert source.records == 3
    (block,) = reader.read(Shard(ShardId(1), path, 0, 3))
    assert (block.count, block.bad) == (3, 1)
    assert block.bad_examples == (f"{path}: record 1 (b): it has no member .y",)
    assert [sample["__key__"] for sample in samples(reader, 0, 3)] == [b"a", b"c"]


DAMAGED = r"a\.tar: .*(the file ends inside it|not a complete tar|nor the end mark)"


@pytest.mark.parametrize("cut", [513, 3512, 512 + 3072, 3684, 2 * 512 + 3072 + 10, 2 * 3584])
def test_an_archive_that_ends_early_is_refused(tmp_path: Path, cut: int) -> None:
    path = Path(archive(tmp_path / "a.tar", [("a.x", b"1" * 3000), ("b.x", b"2" * 3000)]))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match=DAMAGED):
        open_reader(str(path), {}).sources()


def test_names_may_be_in_any_encoding(tmp_path: Path) -> None:
    members = [("a\udce9.x", b"1"), ("b.y", b"2")]
    path = archive(tmp_path / "a.tar", members, tarfile.GNU_FORMAT)
    (first,) = samples(open_reader(path, {}), 0, 2)
    assert first == {"__key__": b"a\xe9", "x": b"1"}


def test_two_archives_in_one_file_are_refused(tmp_path: Path) -> None:
    path = Path(archive(tmp_path / "a.tar", [("a.x", b"1")]))
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(UserError, match=DAMAGED):
        open_reader(str(path), {}).sources()


def test_a_damaged_header_is_no_end_of_the_archive(tmp_path: Path) -> None:
    path = Path(archive(tmp_path / "a.tar", [("a.x", b"1"), ("b.x", b"2"), ("c.x", b"3")]))
    data = bytearray(path.read_bytes())
    data[1024 + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=DAMAGED):
        open_reader(str(path), {}).sources()


def test_what_is_no_archive_of_samples_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text.tar").write_text("no archive " * 100)
    with pytest.raises(UserError, match=r"text\.tar: not a complete tar archive"):
        open_reader(str(tmp_path / "text.tar"), {}).sources()
    (tmp_path / "zip.tar").write_bytes(gzip.compress(b"x"))
    with pytest.raises(UserError, match="is compressed with gzip"):
        open_reader(str(tmp_path / "zip.tar"), {}).sources()
    with pytest.raises(UserError, match=r"none\.tar has no records"):
        open_reader(archive(tmp_path / "none.tar", [("README", b"")]), {}).sources()
    twice = archive(tmp_path / "twice.tar", [("a.x", b"1"), ("a.X", b"2")])
    with pytest.raises(UserError, match=r"a\.X is there twice in one sample"):
        open_reader(twice, {}).sources()
