"""Write a server's part of a checkpoint from a view."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from elasticdl.addresses import is_address
from elasticdl.checkpoint import object_store
from elasticdl.checkpoint.layout import part_name
from elasticdl.checkpoint.manifest import checksum_of
from elasticdl.checkpoint.part import Part, PartHeader
from elasticdl.embedding.spec import ParametersSpec
from elasticdl.errors import PermanentError, TransientError
from elasticdl.native import _native
from elasticdl.private_file import FILE_MODE, make_private


class Diverged(PermanentError):
    """A weight is NaN or infinite."""


@dataclass(frozen=True, slots=True)
class ServerPart:
    """Which server this is.

    `run` distinguishes this run of the job from others that its checkpoints may come from.
    """

    server: int
    servers: int
    run: str

    @property
    def scratch(self) -> Path:
        """Where this server alone has files on their way to an object store, or from there."""
        return Path(tempfile.gettempdir(), f"elasticdl-{self.run}-{self.server}-of-{self.servers}")


@dataclass(frozen=True, slots=True)
class Saved:
    """A file that was written. `rows` are those of the view, written or not.

    For `paused_s` of the time it took, training had the processors.
    """

    name: str
    bytes: int
    checksum: str
    version: int
    rows: int
    parameters: str
    delta: bool
    paused_s: float


def save_at(
    server: _native.Server,
    place: ServerPart,
    snapshot: int,
    where: str,
    base: int | None,
    pause_s: float,
    is_wanted: Callable[[], bool],
) -> Saved:
    """As `save`, below a directory or an address of a store.

    For an address the file is written to this server's disk, and then uploaded under a new name
    unless it is no longer `is_wanted`. Also raises the store's UserError and TransientError.
    """
    if not is_address(where):
        return save(server, place, snapshot, Path(where), base, pause_s)
    with temporary(place.scratch) as folder:
        saved = save(server, place, snapshot, folder, base, pause_s)
        begin_s = time.monotonic()
        name = object_store.upload_part(folder / saved.name, where, is_wanted)
        uploaded_s = time.monotonic() - begin_s
    # The network takes that time, and training continues, also if somebody waits.
    return replace(saved, name=name, paused_s=saved.paused_s + uploaded_s)


def save(
    server: _native.Server,
    place: ServerPart,
    snapshot: int,
    directory: Path,
    base: int | None = None,
    pause_s: float = 0.0,
) -> Saved:
    """Write the view `snapshot` below an existing directory, durably, beside pulls and pushes.

    Of the tables it writes only the rows that were changed since the view `base`, if this process
    has noted them since then. It pauses for `pause_s` in all at most, as long as it takes more than
    a twentieth of a processor, until `hurry`.
    Raises TransientError with the system's message if the disk fails, and Diverged with the first
    weight that is NaN or infinite, since such a checkpoint is useless. No file is left then.
    """
    facts = server.view(snapshot, -1 if base is None else base)
    header = PartHeader(
        server=place.server,
        servers=place.servers,
        version=facts["version"],
        step_base=facts["step_base"],
        trainable=facts["trainable"],
        additive=facts["additive"],
        rows=tuple(facts["written"]),
        workers=facts["workers"],
        run=place.run,
        parameters=ParametersSpec.model_validate_json(facts["spec"]),
        tagged=facts["tagged"],
        delta=facts["delta"],
    )
    path = directory / part_name(place.server, place.servers)
    size, checksum, paused_s = _written(server, snapshot, header, path, pause_s)
    return Saved(
        path.name,
        size,
        checksum,
        header.version,
        sum(facts["rows"]),
        facts["spec"],
        header.delta,
        paused_s,
    )


def _written(
    server: _native.Server, snapshot: int, header: PartHeader, path: Path, pause_s: float
) -> tuple[int, str, float]:
    """Write a complete file or none; return its bytes, its checksum and the seconds of pauses.

    Raises as `save`.
    """
    making = path.with_suffix(".making")
    a_byte_s = pause_s / max(1, Part(header, 0).bytes)
    try:
        # Releases before deltas read a file without the new fields.
        text = header.model_dump_json(exclude_defaults=True)
        size, crc, paused_s, bad = server.save(
            snapshot, str(making), text, header.delta, pause_s=a_byte_s
        )
        if bad is not None:
            making.unlink(missing_ok=True)
            table, at, value = bad
            name = header.parameters.weight_name(table, at)
            raise Diverged(f"{name} is {value} in version {header.version}: the model has diverged")
        making.chmod(FILE_MODE)
        # A repeated Save may find the result of an earlier one.
        os.replace(making, path)
    except OSError as error:
        making.unlink(missing_ok=True)
        raise TransientError(f"cannot write {path}: {error.strerror or error}") from error
    return size, checksum_of(crc), paused_s


@contextmanager
def temporary(parent: Path) -> Iterator[Path]:
    """A directory below `parent` that is there until the block ends.

    It is for files on their way to an object store, or from there.

    Raises TransientError if the disk cannot have it.
    """
    try:
        make_private(parent)
        directory = tempfile.TemporaryDirectory(dir=parent)
    except OSError as error:
        raise TransientError(f"cannot use {parent}: {error.strerror or error}") from error
    with directory as folder:
        yield Path(folder)
