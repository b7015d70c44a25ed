"""Where a job's checkpoints are: in its directory, or in an object store alone."""

from __future__ import annotations

import logging
from collections.abc import Container
from pathlib import Path
from typing import Protocol, final

from elasticdl.checkpoint import copies, directories, object_store
from elasticdl.checkpoint.directories import FoundCheckpoint
from elasticdl.checkpoint.layout import incomplete_checkpoint
from elasticdl.checkpoint.manifest import Link, Manifest
from elasticdl.errors import Corrupted, ElasticDLError, TransientError

_LOG = logging.getLogger(__name__)


class CheckpointPlace(Protocol):
    """Where checkpoints are made and kept. Its methods wait for a disk or a store."""

    def begin(self, version: int) -> str:
        """Where the parts of a new checkpoint go. Raises TransientError."""

    def links(self, making: str, base: str, of: Manifest, *, any_length: bool) -> tuple[Link, ...]:
        """The links of a delta of an earlier checkpoint; () for a full one."""

    def unlink(self, making: str, links: tuple[Link, ...]) -> None:
        """Do without the links: it is a full checkpoint."""

    def complete(self, making: str, manifest: Manifest) -> str:
        """Add the manifest; return where the checkpoint is.

        Raises FileLost, UserError, TransientError; earlier checkpoints are as they were.
        """

    def abandon(self, making: str) -> None:
        """Forget a checkpoint that is not complete."""

    def prune(self, keep: int, newest: int, held: Container[str]) -> None:
        """Keep version `newest` and those before it, `keep` in all (0: all), and those `held`.

        Never fails.
        """

    def newest(self) -> FoundCheckpoint | None:
        """The newest checkpoint of which every byte is right; None if none was ever complete.

        Raises Corrupted if none is intact, UserError, TransientError.
        """


@final
class DirectoryPlace:
    """A directory that all processes of the job see."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints

    def begin(self, version: int) -> str:
        try:
            return str(directories.begin(self._checkpoints))
        except OSError as error:
            raise _not_written(self._checkpoints, error) from error

    def links(self, making: str, base: str, of: Manifest, *, any_length: bool) -> tuple[Link, ...]:
        return directories.link_base(Path(making), Path(base), of, any_length=any_length)

    def unlink(self, making: str, links: tuple[Link, ...]) -> None:
        directories.unlink(Path(making), links)

    def complete(self, making: str, manifest: Manifest) -> str:
        try:
            return str(directories.complete(Path(making), manifest))
        except OSError as error:
            self.abandon(making)
            raise _not_written(Path(making), error) from error

    def abandon(self, making: str) -> None:
        directories.abandon(Path(making))

    def prune(self, keep: int, newest: int, held: Container[str]) -> None:
        try:
            directories.prune(self._checkpoints, keep, newest, held)
        except OSError as error:
            _LOG.warning("cannot remove old checkpoints in %s: %s", self._checkpoints, error)

    def newest(self) -> FoundCheckpoint | None:
        if (checkpoint := directories.newest(self._checkpoints)) is not None:
            return checkpoint
        if damaged := incomplete_checkpoint(self._checkpoints):
            raise Corrupted(
                f"no usable checkpoint in {self._checkpoints}: {damaged} has no manifest",
                hint="restore the file from a copy, or start without a checkpoint",
            )
        return None


@final
class StorePlace:
    """An address: each process uploads its part, and no directory is shared."""

    def __init__(self, address: str) -> None:
        self._address = address

    def begin(self, version: int) -> str:
        return object_store.folder_of(self._address, version)

    def links(self, making: str, base: str, of: Manifest, *, any_length: bool) -> tuple[Link, ...]:
        return () if of.chain_ends and not any_length else of.as_base

    def unlink(self, making: str, links: tuple[Link, ...]) -> None:
        """Do nothing: only a manifest names links."""

    def complete(self, making: str, manifest: Manifest) -> str:
        return object_store.complete(self._address, manifest)

    def abandon(self, making: str) -> None:
        """Do nothing: a process may still be uploading. `prune` removes what no manifest names."""

    def prune(self, keep: int, newest: int, held: Container[str]) -> None:
        try:
            copies.prune(self._address, keep, newest, held)
        except ElasticDLError as error:
            _LOG.warning("cannot remove old checkpoints in %s: %s", self._address, error.message)

    def newest(self) -> FoundCheckpoint | None:
        return object_store.newest(self._address)


def _not_written(path: Path, error: OSError) -> TransientError:
    return TransientError(f"cannot write to {path}: {error.strerror or error}")
