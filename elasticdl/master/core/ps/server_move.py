"""One try to change the number of servers: how far it is, and whether it is time to seal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.ps.server_map import ServerMap
from elasticdl.shard import SnapshotId

SHORT_S = 0.25
"""A round of a checkpoint and its loading that is so short is not worth another one."""
_SHRINKS = 0.7
"""A round moves the rows that changed in the one before. If a round took more than this share of
the one before, the next one would be hardly shorter.
"""
_MOST_ROUNDS = 6


class Stage(StrEnum):
    """How far a try is."""

    STARTING = "starting"
    LOADING = "loading"
    CUTTING = "cutting"
    SAVING = "saving"
    RESTORING = "restoring"


@final
@dataclass(frozen=True, slots=True)
class Pause:
    """How long workers waited, in seconds: for the cut and the seal, until the last checkpoint was
    on disk, and until all new servers had restored it.
    """

    seal_s: float
    save_s: float
    restore_s: float

    @property
    def total_s(self) -> float:
        """All of them."""
        return self.seal_s + self.save_s + self.restore_s

    def __str__(self) -> str:
        parts = f"{self.seal_s:.2f} to seal, {self.save_s:.2f} to save, {self.restore_s:.2f}"
        return f"{self.total_s:.2f} s ({parts} to restore)"


@final
@dataclass(frozen=True, slots=True)
class Move:
    """One try.

    `since_s`: when its stage began; that of the cut lasts until the end. `standing`: indices of
    new servers that wait for the order to restore. `sealed`: the servers that make the cut.

    `snapshot`: the checkpoint that was ordered last, at `ordered_s`, and is not on disk. `newest`:
    the newest one on disk. `base`: the one that new servers were told to load, which `loaded` have,
    all of them since `loaded_s`. `rounds` were taken for them and are on disk; the last one began
    at `round_s`, and the one before it took `took_s`. `failed` before the seal. The last checkpoint
    was cut at `sealed_s`, and on disk at `saved_s`.
    """

    to: ServerMap
    stage: Stage
    since_s: float
    standing: frozenset[int] = frozenset()
    sealed: tuple[ProcessName, ...] = ()
    snapshot: SnapshotId | None = None
    version: int = 0
    newest: str = ""
    base: str = ""
    loaded: frozenset[int] = frozenset()
    ordered_s: float = 0.0
    rounds: int = 0
    round_s: float = 0.0
    loaded_s: float = 0.0
    took_s: float = 0.0
    failed: int = 0
    sealed_s: float = 0.0
    saved_s: float = 0.0

    @property
    def prepares(self) -> bool:
        """Whether new servers have yet to start, or to load `base`."""
        if self.stage is Stage.STARTING:
            return len(self.standing) < self.to.number
        return bool(self.base) and len(self.loaded) < self.to.number

    def next_round(self) -> Move:
        """The same, when the checkpoint that was ordered is on disk."""
        return replace(
            self,
            snapshot=None,
            rounds=self.rounds + 1,
            round_s=self.ordered_s,
            took_s=self.loaded_s - self.round_s,
        )

    def pause(self, now_s: float) -> Pause:
        """How long workers waited for each part of the move, if it ends now."""
        return Pause(
            self.sealed_s - self.since_s, self.saved_s - self.sealed_s, now_s - self.saved_s
        )

    @property
    def worth_a_round(self) -> bool:
        """Whether another checkpoint would be much smaller than the newest one."""
        took_s = self.loaded_s - self.round_s
        shrinks = self.rounds <= 1 or took_s <= _SHRINKS * self.took_s
        return not self.base or (took_s > SHORT_S and shrinks and self.rounds < _MOST_ROUNDS)
