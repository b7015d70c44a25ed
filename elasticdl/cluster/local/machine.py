"""What this machine offers: cores, free memory and GPUs.

Each worker uses one GPU, so that each has a device of its own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Final

CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")
CUDA_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


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


def visible_gpus(environment: Mapping[str, str], devices: Path = Path("/dev")) -> tuple[str, ...]:
    """The GPUs of NVIDIA that processes may use, by the names that CUDA_VISIBLE_DEVICES takes.

    The environment may name them. As for CUDA, a name of -1 ends its list. If it names none, these
    are the numbers from 0: CUDA does not count by the numbers in `devices`, of which a container
    has some.
    """
    named = environment.get(CUDA_VISIBLE)
    if named is None:
        return tuple(str(number) for number, _ in enumerate(devices.glob("nvidia[0-9]*")))
    names = (name.strip() for name in named.split(","))
    return tuple(takewhile(lambda name: name not in ("", "-1"), names))


def member_gpus(
    envs: Mapping[str, str], environment: Mapping[str, str], devices: Path = Path("/dev")
) -> tuple[str, ...]:
    """The GPUs that the workers of a job use, each worker one of them.

    `envs` are the job's variables. A list in them is the same for all workers, and each uses its
    first.
    """
    if CUDA_VISIBLE in envs:
        return visible_gpus(envs, devices)[:1]
    return visible_gpus(environment, devices)


def least_used(gpus: Sequence[str], used: Iterable[str]) -> str | None:
    """The first of the GPUs that the fewest processes use; None without GPUs."""
    counts = Counter(used)
    return min(gpus, key=lambda gpu: counts[gpu], default=None)
