"""Export: one worker reads the whole model, rows in pages, and writes it as a plain SavedModel."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, final

import numpy as np

from elasticdl.embedding.spec import ParametersSpec
from elasticdl.errors import PermanentError
from elasticdl.flag import is_address
from elasticdl.rpc.parameters import Floats, Int64s
from elasticdl.shard import SnapshotId
from elasticdl.storage import folders
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.trainer import Loaded
from elasticdl.worker.process.shutdown import NonFinite

SAVED_MODEL = "saved_model.pb"
Tables: TypeAlias = Sequence[Iterator[tuple[Int64s, Floats]]]


class ParameterReader(Protocol):
    """Access to all parameters."""

    def dense(self, snapshot: SnapshotId | None) -> Floats:
        """The flat dense vector."""

    def rows(self, table: int, snapshot: SnapshotId | None) -> Iterator[tuple[Int64s, Floats]]:
        """All rows of a table, some at a time, in any order; the last of an id counts."""


@final
class ExportTask:
    """Runs export leases.

    `write(dense, tables, directory)` writes to a temporary directory and renames it, so that an
    export is never incomplete. In an object store, no folder without SAVED_MODEL is an export, and
    that object comes last.
    """

    def __init__(
        self,
        parameter_reader: ParameterReader,
        parameters: ParametersSpec,
        write: Callable[[Floats, Tables, Path], None],
        destination: str,
        outbox: Outbox,
    ) -> None:
        self._parameter_reader = parameter_reader
        self._parameters = parameters
        self._write = write
        self._destination = destination
        self._outbox = outbox

    def run(self, loaded: Loaded) -> None:
        """Export the model.

        Raises PermanentError if the directory is not writable, NonFinite if the model has diverged,
        and TransientError if the object store stays unavailable.
        """
        snapshot = loaded.batch.held.lease.snapshot
        dense = self._parameter_reader.dense(snapshot)
        self._check_dense(dense)
        tables = [
            self._finite_rows(table, snapshot) for table in range(len(self._parameters.tables))
        ]
        try:
            if is_address(self._destination):
                self._upload(dense, tables)
            else:
                self._write(dense, tables, Path(self._destination))
        except OSError as error:
            raise PermanentError(
                f"cannot export to {self._destination}: {error.strerror or error}",
                hint="check --output",
            ) from error
        self._outbox.exported(self._destination)

    def _upload(self, dense: Floats, tables: Tables) -> None:
        with tempfile.TemporaryDirectory(prefix="elasticdl-export-") as temporary:
            made = Path(temporary) / "export"
            self._write(dense, tables, made)
            folders.replace(made, self._destination, last=SAVED_MODEL)

    def _check_dense(self, dense: Floats) -> None:
        """The last steps may have made weights non-finite that no batch has used since."""
        if not np.isfinite(dense).all():
            at = int(np.flatnonzero(~np.isfinite(dense))[0])
            self._refuse(-1, at, float(dense[at]))

    def _finite_rows(
        self, table: int, snapshot: SnapshotId | None
    ) -> Iterator[tuple[Int64s, Floats]]:
        for ids, rows in self._parameter_reader.rows(table, snapshot):
            if not np.isfinite(rows).all():
                row, column = np.argwhere(~np.isfinite(rows))[0]
                self._refuse(table, int(ids[row]), float(rows[row, column]))
            yield ids, rows

    def _refuse(self, table: int, at: int, value: float) -> None:
        name = self._parameters.weight_name(table, at)
        raise NonFinite(
            f"{name} is {value}: the model has diverged and is not exported",
            hint="try a lower learning rate, or clipping",
        )

    def leave(self) -> None:
        """Do nothing: an export is never partially done."""
