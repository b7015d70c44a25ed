"""What a machine has to give, read from files as Linux writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticdl.cluster.local.machine import free_memory_bytes, usable_cores

pytestmark = pytest.mark.core
MEMINFO = "MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"


def files(directory: Path, **contents: str) -> Path:
    for name, text in contents.items():
        (directory / name.replace("_", ".")).write_text(text)
    return directory


def test_memory_is_what_the_machine_can_give(tmp_path: Path) -> None:
    meminfo = files(tmp_path, meminfo=MEMINFO) / "meminfo"
    assert free_memory_bytes(meminfo, tmp_path / "none") == 8_000_000 * 1024


def test_a_limited_group_can_give_less_but_the_cache_of_files_does_not_count(
    tmp_path: Path,
) -> None:
    stat = "anon 700\nfile 250\ninactive_file 150\nactive_file 50\nslab_reclaimable 10\n"
    files(tmp_path, meminfo=MEMINFO, memory_max="1000\n", memory_current="950\n", memory_stat=stat)
    assert free_memory_bytes(tmp_path / "meminfo", tmp_path) == 260


def test_a_group_without_a_limit_says_nothing_and_where_nobody_knows_nothing_is_claimed(
    tmp_path: Path,
) -> None:
    files(tmp_path, meminfo=MEMINFO, memory_max="max\n", memory_current="950\n", memory_stat="")
    assert free_memory_bytes(tmp_path / "meminfo", tmp_path) == 8_000_000 * 1024
    assert free_memory_bytes(tmp_path / "none", tmp_path) is None


def test_cores_are_those_of_the_affinity_and_of_the_groups_quota(tmp_path: Path) -> None:
    all_cores = len(os.sched_getaffinity(0))
    assert usable_cores(tmp_path) == all_cores
    assert usable_cores(files(tmp_path, cpu_max="50000 100000\n")) == 0.5
    assert usable_cores(files(tmp_path, cpu_max="max 100000\n")) == all_cores
