"""Checkpoints whose only place is an object store: each process uploads the part that it wrote.

`ADDRESS/version-<n>/` has the layout of a copy (see `copies.py`). The name of a part is new each
time. So a version that is written again replaces nothing until its manifest does, in one request.
What no manifest names does not count, and is removed with the versions before the kept ones.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from elasticdl.addresses import is_address
from elasticdl.checkpoint import copies
from elasticdl.checkpoint.directories import FoundCheckpoint, first_intact, usable
from elasticdl.checkpoint.layout import MANIFEST, directory_name
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.errors import ElasticDLError, TransientError
from elasticdl.storage.address import below
from elasticdl.storage.attempts import RUNNING
from elasticdl.storage.store import store_of

_LOG = logging.getLogger(__name__)


def folder_of(address: str, version: int) -> str:
    """The address of a version's checkpoint."""
    return below(address, directory_name(version))


def upload_part(file: Path, folder: str, is_wanted: Callable[[], bool]) -> str:
    """Upload a file of a checkpoint that is being made; return its name there, which is new.

    `is_wanted` is asked between pieces of the file. Raises UserError, TransientError, also if
    nobody wants the file any longer, or if it cannot be read.
    """
    name = f"{file.stem}-{secrets.token_hex(6)}{file.suffix}"
    try:
        store_of(folder).upload(file, below(folder, name), is_wanted=is_wanted)
    except OSError as error:
        raise TransientError(f"cannot read {file}: {error.strerror or error}") from error
    return name


def complete(address: str, manifest: Manifest) -> str:
    """Write the manifest, after all parts: the checkpoint is there. Return its folder.

    Raises FileLost if the store lacks a file that the manifest names, UserError, TransientError.
    """
    folder = folder_of(address, manifest.version)
    copies.require_files(address, manifest)
    store_of(folder).write(below(folder, MANIFEST), manifest.as_json().encode())
    try:
        copies.name_newest(address, manifest.version)
    except ElasticDLError as error:
        # It only helps if a listing is late: the manifest counts.
        _LOG.warning("%s", error.message)
    return folder


def newest(address: str) -> FoundCheckpoint | None:
    """The newest checkpoint of which every byte is as its manifest says; it is read, not kept.

    `address` is that of one checkpoint, or of the folder of several. None if none was ever
    complete. Raises Corrupted with all that was tried, if none is intact, UserError,
    TransientError.
    """
    place, candidates = copies.named(address, RUNNING)

    def verified(version: int) -> FoundCheckpoint | None:
        folder = folder_of(place, version)
        if (whole := copies.manifest_if_there(folder)) is None:
            return None
        copies.verify(place, whole)
        return FoundCheckpoint(folder, whole)

    return usable(*first_intact(candidates, verified), address)


def before(folder: str) -> list[str]:
    """The folders of earlier versions beside this one, newest first. Some may be incomplete.

    Raises UserError, TransientError.
    """
    place, (version, *_) = copies.named(folder)
    return [folder_of(place, other) for other in copies.versions(place, RUNNING) if other < version]


@contextmanager
def directory_with(where: str) -> Iterator[Path]:
    """A directory that has a checkpoint: its own, or a temporary one for what is at an address.

    Raises Corrupted, UserError, TransientError, OSError of the temporary directory.
    """
    if not is_address(where):
        yield Path(where)
        return
    with TemporaryDirectory(prefix="elasticdl-") as folder:
        copies.fetch(where, Path(folder))
        yield Path(folder, where.rstrip("/").rpartition("/")[2])
