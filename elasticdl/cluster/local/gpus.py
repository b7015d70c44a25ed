"""Which of this machine's GPUs a worker uses: one, so that each has a device of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def visible_gpus(environment: Mapping[str, str], devices: Path = Path("/dev")) -> tuple[str, ...]:
    """The GPUs of NVIDIA that processes may use, by the names that CUDA_VISIBLE_DEVICES takes.

    The environment may name them. As for CUDA, a name of -1 ends its list. If it names none, these
    are the numbers from 0: CUDA does not count by the numbers in `devices`, of which a container
    has some.
    """
    named = environment.get(VISIBLE)
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
    return (
        visible_gpus(envs, devices)[:1] if VISIBLE in envs else visible_gpus(environment, devices)
    )


def least_used(gpus: Sequence[str], used: Iterable[str]) -> str | None:
    """The first of the GPUs that the fewest processes use; None without GPUs."""
    counts = Counter(used)
    return min(gpus, key=lambda gpu: counts[gpu], default=None)
