"""What this machine offers: cores and free memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from elasticdl.cluster.local.gpus import visible_gpus

CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")


def usable_cores(cgroup: Path = CGROUP) -> float:
    """Cores that this process may use, by its affinity and the quota of its cgroup (v2), if any."""
    cores = float(len(os.sched_getaffinity(0)))
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        cores = min(cores, float(quota) / float(period))
    return cores


def free_memory_bytes(meminfo: Path = _MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Memory available to more processes, in the machine and its cgroup (v2) if that has a limit.

    None if unknown.
    """
    limits = []
    with suppress(OSError, ValueError, IndexError):
        limits.append(
            1024 * int(meminfo.read_text(encoding="ascii").partition("MemAvailable:")[2].split()[0])
        )
    with suppress(OSError, ValueError):
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        limits.append(max(0, limit - used + _reclaimable(cgroup)))
    return min(limits, default=None)


def has_gpu(environment: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Whether processes with this environment see a GPU of NVIDIA or AMD."""
    return bool(visible_gpus(environment, devices)) or (devices / "kfd").exists()


def _reclaimable(cgroup: Path) -> int:
    """Bytes of the file cache, which the kernel reclaims on demand."""
    lines = (
        line.partition(" ")
        for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines()
    )
    return sum(int(value) for name, _, value in lines if name in _RECLAIMABLE)


def memory_kills(cgroup: Path = CGROUP) -> int | None:
    """Processes that the kernel killed at the memory limit of our cgroup (v2); None if unknown."""
    try:
        events = (cgroup / "memory.events").read_text(encoding="ascii").split()
        return int(events[events.index("oom_kill") + 1])
    except (OSError, ValueError, IndexError):
        return None
