"""A folder of many small files: each is looked at once, nothing is kept of it, and people see how
far the count is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from elasticdl.data import index_cache, open_reader
from elasticdl.errors import UserError
from elasticdl.shard import Shard, ShardId
from tests.present import array

pytestmark = pytest.mark.contract
FILES, READ = 2000, 100


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path / "cache"))
    made = tmp_path / "data"
    made.mkdir()
    for number in range(FILES):
        (made / f"part-{number:05d}.csv").write_text(f"a,b\n{number},0\n{number},1\n")
    return made


def test_many_small_files_are_counted_in_order_and_nothing_is_cached(folder: Path) -> None:
    counts: list[tuple[int, int]] = []
    reader = open_reader(str(folder), {}, counting=lambda done, files: counts.append((done, files)))
    sources = reader.sources()
    assert [Path(source.name).name for source in sources] == sorted(os.listdir(folder))
    assert {source.records for source in sources} == {2}
    assert len({source.fingerprint for source in sources}) == FILES
    assert counts == sorted(counts) and counts[-1] == (FILES, FILES) and len(counts) > 10
    assert not index_cache.directory().exists(), "the places of the cache are for large files"
    block = next(iter(reader.read(Shard(ShardId(0), sources[-1].name, 0, 2))))
    assert array(block.records).tolist() == [[b"1999", b"0"], [b"1999", b"1"]]


def test_a_file_costs_no_more_where_there_are_many(folder: Path) -> None:
    few = folder.parent / "few"
    few.mkdir()
    for path in sorted(folder.iterdir())[:READ]:
        (few / path.name).write_bytes(path.read_bytes())

    def cpu_s(place: Path) -> float:
        reader = open_reader(str(place), {})
        shards = [Shard(ShardId(0), source.name, 0, 2) for source in reader.sources()[:READ]]
        began_s = time.process_time()
        assert sum(block.count for shard in shards for block in reader.read(shard)) == 2 * READ
        return time.process_time() - began_s

    # What looks at all files for each of them takes twenty times as long.
    assert min(cpu_s(folder) for _ in range(3)) < 5 * min(cpu_s(few) for _ in range(3))


def test_of_several_files_that_are_wrong_the_first_is_named(folder: Path) -> None:
    (folder / "part-01500.csv").write_text("a,c\n1,2\n")
    (folder / "part-00700.csv").write_text("a,b\n")
    with pytest.raises(UserError, match=r"part-00700\.csv has no records"):
        open_reader(str(folder), {}).sources()


def test_the_index_of_a_large_file_is_cached(folder: Path) -> None:
    (folder / "part-00000.csv").write_text("a,b\n" + "1,2\n" * (300 << 10))
    assert open_reader(str(folder), {}).sources()[0].records == 300 << 10
    assert len(list(index_cache.directory().iterdir())) == 1
