"""What `--autoscale` decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a decision does."""

    TRY_MORE = "try_more"
    KEEP = "keep"
    GIVE_BACK = "give_back"
    TRY_FEWER = "try_fewer"
    STAY_FEWER = "stay_fewer"
    RESTORE = "restore"
    FOLLOW = "follow"
    """The user's range does not contain the number any more."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The number of processes to have from now on, and why."""

    kind: Kind
    processes: int
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)
