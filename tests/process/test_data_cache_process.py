"""The cache of indexes when several processes make one at once, and when it cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.data import open_reader
from elasticdl.shard import Shard, ShardId

pytestmark = pytest.mark.process
READ = """
import sys
from elasticdl.data import open_reader
from elasticdl.shard import Shard, ShardId
reader = open_reader(sys.argv[1], {})
print("ready", flush=True)
sys.stdin.read(1)
(source,) = reader.sources()
shard = Shard(ShardId(1), source.name, 100, source.records)
print(source.records, sum(len(block.records) for block in reader.read(shard)))
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n" + "1,hello\n" * 200_000)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(path))
    return path / "indexes"


def test_several_processes_make_the_index_at_once(data: Path, cache: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", READ, str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("x")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert outputs == ["200000 199900\n"] * 4
    assert [path.suffix for path in cache.iterdir()] == [".index"]


def test_the_second_time_the_index_is_not_made_again(data: Path, cache: Path) -> None:
    open_reader(str(data), {}).sources()
    (kept,) = cache.iterdir()
    before = kept.stat().st_mtime_ns
    assert open_reader(str(data), {}).sources()[0].records == 200_000
    assert (kept.stat().st_mtime_ns, len(list(cache.iterdir()))) == (before, 1)


def test_a_file_that_changed_gets_a_new_index_in_the_place_of_the_old_one(
    data: Path, cache: Path
) -> None:
    open_reader(str(data), {}).sources()
    data.write_text("a,b\n" + "1,2\n" * 300_000)
    assert open_reader(str(data), {}).sources()[0].records == 300_000
    assert len(list(cache.iterdir())) == 1


def test_a_damaged_index_is_made_again(
    data: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_reader(str(data), {}).sources()
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-8] + b"\xff" * 8)
    assert open_reader(str(data), {}).sources()[0].records == 200_000
    assert kept.read_bytes() == whole
    assert "building the index again" in caplog.text


def test_other_parameters_have_an_index_of_their_own(data: Path, cache: Path) -> None:
    assert open_reader(str(data), {}).sources()[0].records == 200_000
    assert open_reader(str(data), {"header": False}).sources()[0].records == 200_001
    assert open_reader(str(data), {"delimiter": "semicolon"}).sources()[0].records == 200_000


def test_a_cache_that_cannot_be_written_costs_only_time(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a directory should be")
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(blocked))
    reader = open_reader(str(data), {})
    (source,) = reader.sources()
    assert sum(block.count for block in reader.read(Shard(ShardId(1), source.name, 5, 10))) == 5
    assert "cannot cache the index" in caplog.text


def test_without_a_setting_the_cache_is_the_users(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ELASTICDL_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    open_reader(str(data), {}).sources()
    assert len(list((tmp_path / "xdg" / "elasticdl" / "indexes").iterdir())) == 1
    assert Path(os.environ["XDG_CACHE_HOME"]).is_dir()
