"""Parts of a master that its tests do without."""

from __future__ import annotations

from collections.abc import Collection

from elasticdl.errors import PermanentError
from elasticdl.master.executor.checkpoint_archive import SavedCheckpoint


class NoArchive:
    async def save(self, command: object, snapshots: object) -> SavedCheckpoint:
        raise PermanentError("no space left on device")

    async def prune(self, version: int, held: Collection[str]) -> None: ...

    def keep_scale(self, low: int, high: int) -> None: ...

    def keep_servers(self, number: int) -> None: ...


class NoJournal:
    def append(self, event: object) -> None:
        """Nothing is replayed here."""

    async def flush(self) -> None:
        """Nothing is on disk."""


async def no_preflight() -> None:
    """These tests begin their jobs themselves."""
