"""The complete checkpoints of a job: those that a user sees, and those that it can return to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

from elasticdl.master.core.checkpoint.saves import Saved, Saving
from elasticdl.master.core.commands import PruneCheckpoints
from elasticdl.master.core.events import SnapshotSaved
from elasticdl.master.core.job_context import JobContext
from elasticdl.master.core.updates import NOTHING

_LEDGERS = 7
"""Checkpoints before the newest one that a synchronous job can return to."""


@final
class CompleteCheckpoints:
    """Lists them by version, as they are on disk; `--keep-checkpoint-max` bounds the list."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self.saved: list[Saved] = []
        self.undone: list[int] = []
        """Versions of complete checkpoints that have undone steps."""
        self.begun_version = 0
        """The version that the job began with."""
        self._begun: Saved | None = None
        """The checkpoint that the job began with."""

    @property
    def newest(self) -> Saved | None:
        """The newest complete checkpoint; None if there is none."""
        return self.saved[-1] if self.saved else None

    @property
    def listed(self) -> tuple[Saved, ...]:
        """The checkpoints of this job that are known; a resumed one's begin with its first."""
        begun = self._begun
        if begun is None or not begun.ledger or self.at_version(self.begun_version):
            return tuple(self.saved)
        return (replace(begun, version=self.begun_version), *self.saved)

    def begun_with(self, path: str, size_bytes: int, ledger: str, at_s: float) -> None:
        """Note the checkpoint that the job begins with, and its ledger ('' for a new one).

        `at_s`: when it was complete; below 0 if that was before this run began.
        """
        self._begun = Saved(0, path, size_bytes, at_s, ledger, NOTHING) if path else None

    def at_version(self, version: int) -> Saved | None:
        """The newest checkpoint of that version; None if there is none."""
        return next(
            (saved for saved in reversed(self.saved) if saved.version == version),
            None,
        )

    def newest_known(self, before: float = math.inf) -> Saved | None:
        """The newest checkpoint of a version below `before` that the job can return to.

        None if there is none whose ledger is known.
        """
        return next(
            (saved for saved in reversed(self._known()) if saved.version < before),
            None,
        )

    def _known(self) -> list[Saved]:
        known = [saved for saved in self.saved if saved.ledger and saved.mark is not None]
        if self._begun is not None:
            known.insert(0, replace(self._begun, version=self.begun_version))
        return known

    def add(self, event: SnapshotSaved, written: Saving | None, *, late: bool) -> None:
        """List a checkpoint; it replaces one of the same path, as on disk.

        `late`: newer ones completed earlier.
        """
        same = next((saved for saved in self.saved if saved.path == event.path), None)
        others = [saved for saved in self.saved if saved is not same]
        known = written if written is not None else same
        checkpoint = Saved(
            event.version,
            event.path,
            event.bytes,
            event.at_s,
            known.ledger if known is not None else "",
            known.mark if known is not None else None,
        )
        *older, newest = (
            sorted((*others, checkpoint), key=lambda saved: saved.version)
            if late
            else (*others, checkpoint)
        )
        keep = self._context.spec.checkpoint.keep_checkpoint_max
        # Servers that cannot read the newest one take one before it.
        forgotten = len(older) - (_LEDGERS if self._context.spec.trains_in_steps else 0)
        older = [
            replace(saved, ledger="") if at < forgotten else saved for at, saved in enumerate(older)
        ]
        self.saved = [*older, newest][-keep if keep else 0 :]
        if 0 < keep <= len(self.saved):
            # It is removed, or may be.
            self._begun = None

    def undo(self, version: int) -> None:
        """All servers return to that version: checkpoints of later ones have undone steps."""
        self.saved = [saved for saved in self.saved if saved.version <= version]

    def prune(self, version: int) -> None:
        """Remove checkpoints before `version` that are not kept; those to return to are."""
        in_steps, loading = self._context.spec.trains_in_steps, self._context.loading
        # On disk, one of undone steps may have the place of an older one.
        held = tuple(saved.path for saved in self._known()) if in_steps else ()
        self._context.orders.give(PruneCheckpoints(version, (*loading, *held)))
