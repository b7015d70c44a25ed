"""Export: one worker reads the whole model, rows in pages, and writes it as a plain SavedModel.

While the job trains, exports go to numbered folders, and a problem with the place or with the
weights costs only that export.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, final

import numpy as np

from elasticdl.addresses import is_address
from elasticdl.embedding.spec import ParametersSpec
from elasticdl.errors import PermanentError, TransientError
from elasticdl.rpc.parameters import Floats, Int64s
from elasticdl.shard import Lease
from elasticdl.storage import folders
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.trainer import Loaded
from elasticdl.worker.process.shutdown import NonFinite
from elasticdl.worker.tasks.export_folders import (
    SAVED_MODEL,
    ExportFolders,
    prune_quietly,
)

Tables: TypeAlias = Sequence[Iterator[tuple[Int64s, Floats]]]


class ParameterReader(Protocol):
    """Access to all parameters."""

    def dense_of(self, lease: Lease) -> Floats:
        """The flat dense vector that a lease reads."""

    def rows_of(self, lease: Lease, table: int) -> Iterator[tuple[Int64s, Floats]]:
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
        exports: ExportFolders,
        outbox: Outbox,
    ) -> None:
        """`exports` are the numbered folders below `destination`."""
        self._parameter_reader = parameter_reader
        self._parameters = parameters
        self._write = write
        self._destination = destination
        self._exports = exports
        self._outbox = outbox

    def run(self, loaded: Loaded) -> None:
        """Export the model.

        Raises PermanentError if the directory is not writable, NonFinite if the model has diverged,
        TransientError if the object store stays unavailable, and NoLongerNeeded if the lease became
        void. While the job trains, what is wrong with the place or the weights is reported instead.
        """
        lease = loaded.batch.held.lease
        try:
            place = self._place(lease)
        except (PermanentError, TransientError, NonFinite) as error:
            # Only the last export is the job's result.
            if lease.snapshot is None:
                raise
            self._outbox.exported(f"{self._destination}/{lease.round}", error.message)
        else:
            self._outbox.exported(place)

    def _place(self, lease: Lease) -> str:
        """Export to where the lease says; return that place."""
        try:
            if lease.round is None:
                return self._export_once(lease)
            return self._export_numbered(lease, lease.round)
        except OSError as error:
            raise PermanentError(
                f"cannot export to {self._destination}: {error.strerror or error}",
                hint="check --output",
            ) from error

    def _export_numbered(self, lease: Lease, number: int) -> str:
        def write(folder: Path) -> None:
            self._written(lease, folder)

        if lease.snapshot is None:
            number, place = self._exports.publish_last(number, write)
        else:
            # An old view must not get a number above those of newer ones.
            place = self._exports.publish(number, write)
        prune_quietly(self._exports, number)
        return place

    def _export_once(self, lease: Lease) -> str:
        if is_address(self._destination):
            with tempfile.TemporaryDirectory(prefix="elasticdl-export-") as temporary:
                folder = Path(temporary) / "export"
                self._written(lease, folder)
                folders.replace(folder, self._destination, last=SAVED_MODEL)
        else:
            self._written(lease, Path(self._destination))
        return self._destination

    def _written(self, lease: Lease, directory: Path) -> None:
        dense = self._parameter_reader.dense_of(lease)
        self._check_dense(dense)
        tables = [self._finite_rows(lease, table) for table in range(len(self._parameters.tables))]
        self._write(dense, tables, directory)

    def _check_dense(self, dense: Floats) -> None:
        """The last steps may have made weights non-finite that no batch has used since."""
        if not np.isfinite(dense).all():
            at = int(np.flatnonzero(~np.isfinite(dense))[0])
            self._refuse(-1, at, float(dense[at]))

    def _finite_rows(self, lease: Lease, table: int) -> Iterator[tuple[Int64s, Floats]]:
        for ids, rows in self._parameter_reader.rows_of(lease, table):
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
