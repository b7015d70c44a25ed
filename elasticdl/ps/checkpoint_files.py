"""The files of a checkpoint as a server reads them: in a directory, or in an object store."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, final

from elasticdl.addresses import is_address
from elasticdl.checkpoint import copies, directories
from elasticdl.checkpoint.layout import MANIFEST
from elasticdl.checkpoint.manifest import Manifest, PartFile
from elasticdl.checkpoint.part import Part, read_header
from elasticdl.errors import Corrupted, ElasticDLError, PermanentError, TransientError
from elasticdl.ps.saving import ServerPart, temporary


class CheckpointFiles(Protocol):
    """One checkpoint. Its methods raise Corrupted with the file's name, and OSError of a directory
    or UserError and TransientError of a store, and PermanentError without room to fetch a file.
    """

    @property
    def where(self) -> str:
        """Its directory or address."""

    def manifest(self) -> Manifest:
        """Its manifest. The methods below take files of the one that was read last."""

    def manifest_if_there(self) -> Manifest | None:
        """Its manifest; None if it has been removed."""

    def headers(self, files: Sequence[PartFile]) -> list[Part]:
        """The headers of files."""

    def verified(self, file: PartFile) -> AbstractContextManager[Path]:
        """Where a file is on disk until the block ends; every byte of it was compared."""


@final
class DirectoryFiles:
    """A checkpoint in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def where(self) -> str:
        return str(self._directory)

    def manifest(self) -> Manifest:
        return directories.read_manifest(self._directory)

    def manifest_if_there(self) -> Manifest | None:
        try:
            return self.manifest()
        except Corrupted:
            if (self._directory / MANIFEST).exists():
                raise
            return None

    def headers(self, files: Sequence[PartFile]) -> list[Part]:
        return [read_header(self._directory / file.name) for file in files]

    @contextmanager
    def verified(self, file: PartFile) -> Iterator[Path]:
        directories.verify_part(self._directory, file)
        yield self._directory / file.name


@final
class StoredFiles:
    """A checkpoint in an object store. Only the file that is being read is on the server's disk."""

    def __init__(self, folder: str, place: ServerPart) -> None:
        self._folder, self._place = folder, place
        self._address = folder.rpartition("/")[0]
        self._written_by: dict[str, int] = {}
        """The version that wrote each file."""

    @property
    def where(self) -> str:
        return self._folder

    def manifest(self) -> Manifest:
        return self._noted(copies.manifest(self._folder))

    def manifest_if_there(self) -> Manifest | None:
        whole = copies.manifest_if_there(self._folder)
        return whole if whole is None else self._noted(whole)

    def headers(self, files: Sequence[PartFile]) -> list[Part]:
        return copies.headers(
            self._address, [(self._written_by[file.name], file) for file in files]
        )

    @contextmanager
    def verified(self, file: PartFile) -> Iterator[Path]:
        with temporary(self._place.scratch) as folder:
            try:
                copies.fetch_part(self._address, self._written_by[file.name], file, folder)
            except OSError as error:
                raise _not_fetched(file, self._place.scratch, error) from error
            yield folder / file.name

    def _noted(self, whole: Manifest) -> Manifest:
        self._written_by = {file.name: link.version for link in whole.chain for file in link.files}
        return whole


def _not_fetched(file: PartFile, scratch: Path, error: OSError) -> ElasticDLError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return TransientError(f"cannot write to {scratch}: {error.strerror or error}")
    return PermanentError(
        f"no room in {scratch} for {file.name} of {file.bytes:,} bytes",
        hint=(
            "free disk space, or give servers more of the node's disk, such as"
            f" --ps-resource-request ephemeral-storage={(file.bytes >> 30) + 1}Gi"
        ),
    )


def files_of(where: Path | str, place: ServerPart) -> CheckpointFiles:
    """The files of a checkpoint in a directory or at an address."""
    text = str(where)
    return StoredFiles(text.rstrip("/"), place) if is_address(text) else DirectoryFiles(Path(text))
