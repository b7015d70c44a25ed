"""The checkpoint that all servers of a synchronous job return to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class RollBack:
    """A return that is under way: no turn of a step is given, and no view is cut.

    `path` is the checkpoint's directory.
    """

    version: int
    path: str

    @property
    def hint(self) -> str:
        """What a person can do if servers cannot read it, nor any before it."""
        return f"repair {self.path}, or restore it from a copy, and --resume the job"
