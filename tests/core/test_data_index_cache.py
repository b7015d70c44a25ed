"""The cache of record indexes is bounded, and safe with many processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elasticdl.data import index_cache

pytestmark = pytest.mark.core
DAY_S = 86400.0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path))
    return tmp_path / "indexes"


def used(name: str, days_ago: float) -> None:
    index_cache.keep(name, name.encode())
    at = time.time() - days_ago * DAY_S
    os.utime(index_cache.path_of(name), (at, at))


def kept(cache: Path) -> set[str]:
    return {path.stem for path in cache.iterdir()}


def test_what_was_not_used_for_a_month_goes_when_the_next_comes(cache: Path) -> None:
    used("old", 31)
    used("young", 29)
    index_cache.keep("new", b"x")
    index_cache.tidy()
    assert kept(cache) == {"young", "new"}


def test_use_keeps_an_index_and_costs_a_write_a_day_at_most(cache: Path) -> None:
    used("old", 29)
    assert index_cache.read("old") == b"old"
    noted = index_cache.path_of("old").stat().st_mtime
    assert time.time() - noted < 60
    used("today", 0.5)
    before = index_cache.path_of("today").stat().st_mtime_ns
    assert index_cache.read("today") == b"today"
    assert index_cache.path_of("today").stat().st_mtime_ns == before
    assert index_cache.read("nothing") is None


def test_of_too_many_the_longest_unused_go_and_never_the_one_that_was_just_made(
    cache: Path,
) -> None:
    for number in range(10):
        used(str(number), 10 - number)
    index_cache.prune(cache, files_max=3)
    assert kept(cache) == {"7", "8", "9"}
    index_cache.prune(cache, bytes_max=2)
    assert kept(cache) == {"8", "9"}
    index_cache.prune(cache, spared=index_cache.path_of("9"), bytes_max=0)
    assert kept(cache) == {"9"}


def test_what_somebody_is_making_stays_and_what_somebody_left_half_made_goes(cache: Path) -> None:
    index_cache.keep("a", b"a")
    (cache / "making.tmp").touch()
    (cache / "left.tmp").touch()
    os.utime(cache / "left.tmp", (0, 0))
    (cache / "notes.txt").touch()
    os.utime(cache / "notes.txt", (0, 0))
    index_cache.keep("b", b"b")
    index_cache.tidy()
    assert {path.name for path in cache.iterdir()} == {
        "a.index",
        "b.index",
        "making.tmp",
        "notes.txt",
    }, "only what is ours goes"


def test_what_earlier_versions_left_beside_the_folder_goes(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "0123.index").touch()
    (tmp_path / "image").touch()
    index_cache.keep("a", b"a")
    index_cache.tidy()
    assert {path.name for path in tmp_path.iterdir()} == {"image", "indexes"}


def test_processes_that_add_and_remove_at_once_fail_at_nothing(cache: Path) -> None:
    program = """
import sys
from elasticdl.data import index_cache
index_cache.FILES_MAX = 4
for number in range(60):
    name = f"{sys.argv[1]}-{number % 7}"
    index_cache.keep(name, name.encode())
    index_cache.prune(index_cache.directory(), files_max=4)
    assert index_cache.read(name) in (name.encode(), None)
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(one)], stderr=subprocess.PIPE, text=True
        )
        for one in range(3)
    ]
    for process in processes:
        errors = process.communicate(timeout=60)[1]
        assert (process.returncode, errors) == (0, "")
    assert 1 <= len(kept(cache)) <= 5


def test_the_cache_stays_bounded_without_a_look_at_all_of_it_for_each_file(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    monkeypatch.setattr(index_cache, "prune", lambda *_, **__: looks.append(1))
    for number in range(640):
        index_cache.keep(str(number), b"x")
    assert len(looks) == 10
