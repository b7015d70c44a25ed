"""An EXPORT lease: one worker gathers the whole model and writes it as a plain SavedModel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, final

from elasticdl.errors import PermanentError
from elasticdl.rpc.parameters import Float32s, Int64s
from elasticdl.shard import SnapshotId
from elasticdl.worker.outbox import Outbox
from elasticdl.worker.trainer import Loaded

Tables: TypeAlias = Sequence[tuple[Int64s, Float32s]]


class WholeModel(Protocol):
    """Who can give all parameters."""

    def dense(self, snapshot: SnapshotId | None) -> Float32s:
        """The flat dense vector."""

    def rows(self, table: int, snapshot: SnapshotId | None) -> tuple[Int64s, Float32s]:
        """All rows of a table: ids ascending, weights."""


@final
class ExportTask:
    """`write(dense, tables, directory)` writes beside and renames, so there is never half an export."""

    def __init__(
        self, whole: WholeModel, tables: int, write: Callable[[Float32s, Tables, Path], None], directory: Path, outbox: Outbox
    ) -> None:
        self._whole = whole
        self._tables = tables
        self._write = write
        self._directory = directory
        self._outbox = outbox

    def run(self, loaded: Loaded) -> None:
        """Export. Raises PermanentError if the directory cannot be written."""
        snapshot = loaded.batch.held.lease.snapshot
        dense = self._whole.dense(snapshot)
        tables = [self._whole.rows(table, snapshot) for table in range(self._tables)]
        try:
            self._write(dense, tables, self._directory)
        except OSError as error:
            raise PermanentError(f"cannot export to {self._directory}: {error.strerror or error}", hint="see --output") from error
        self._outbox.exported(str(self._directory))

    def leave(self) -> None:
        """Nothing is half done."""
