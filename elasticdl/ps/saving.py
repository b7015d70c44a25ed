"""Write a server's part of a checkpoint from a view, and restore it into a server of any layout."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from elasticdl.checkpoint import store
from elasticdl.checkpoint.layout import MANIFEST, part_name
from elasticdl.checkpoint.manifest import Manifest, PartFile
from elasticdl.checkpoint.part import Part, PartHeader, read_header
from elasticdl.embedding.spec import ParametersSpec
from elasticdl.errors import Corrupted, PermanentError, TransientError, UserError
from elasticdl.native import _native
from elasticdl.private_file import FILE_MODE
from elasticdl.rpc.native_spec import native_spec

_log = logging.getLogger(__name__)

_Written = tuple[PartFile, Part]


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


@dataclass(frozen=True, slots=True)
class Saved:
    """A file that was written. `rows` are those of the view, written or not."""

    name: str
    bytes: int
    checksum: str
    version: int
    rows: int
    parameters: str
    delta: bool


def save(
    server: _native.Server,
    place: ServerPart,
    snapshot: int,
    directory: Path,
    base: int | None = None,
) -> Saved:
    """Write the view `snapshot` below an existing directory, durably, beside pulls and pushes.

    Of the tables it writes only the rows that were changed since the view `base`, if this process
    has noted them since then.
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
    making = path.with_suffix(".making")
    try:
        # Releases before deltas read a file without the new fields.
        text = header.model_dump_json(exclude_defaults=True)
        size, crc, bad = server.save(snapshot, str(making), text, header.delta)
        if bad is not None:
            making.unlink(missing_ok=True)
            table, at, value = bad
            name = header.parameters.weight_name(table, at)
            raise Diverged(f"{name} is {value} in version {header.version}: the model has diverged")
        making.chmod(FILE_MODE)
        # A complete file or none: a repeated Save may find the result of an earlier one.
        os.replace(making, path)
    except OSError as error:
        making.unlink(missing_ok=True)
        raise TransientError(f"cannot write {path}: {error.strerror or error}") from error
    return Saved(
        path.name,
        size,
        f"crc32c:{crc:08x}",
        header.version,
        sum(facts["rows"]),
        facts["spec"],
        header.delta,
    )


def restore(server: _native.Server, place: ServerPart, directory: Path) -> int:
    """Restore this server's share of a checkpoint; returns its version.

    `directory` is a checkpoint, or has checkpoints, of which the newest is taken. Every bit of
    weights, rows and slots is as it was saved, whatever the number of servers was. Only files with
    a share are read and verified. Raises Corrupted with the file's name.
    """
    if not (directory / MANIFEST).exists():
        directory = store.require(directory).directory
    manifest = store.read_manifest(directory)
    try:
        version = _restore(server, place, directory, manifest)
    except OSError as error:
        raise Corrupted(f"cannot read {directory}: {error.strerror or error}") from error
    _log.info(
        "restored version %d from %s: %d rows", version, directory, server.statistics()["rows"]
    )
    return version


def restore_newest_intact(server: _native.Server, place: ServerPart, directory: Path) -> int:
    """Restore a restarted server; try earlier checkpoints if this one is damaged.

    The version shows how many updates are lost. Raises Corrupted with all that was tried.
    """
    problems: list[str] = []
    for candidate in (directory, *store.before(directory)):
        try:
            return restore(server, place, candidate)
        except Corrupted as error:
            _log.error("%s: trying the previous checkpoint", error.message)
            problems.append(error.message)
    raise Corrupted(
        f"no usable checkpoint for server {place.server} of {place.servers}: {'; '.join(problems)}"
    )


def _restore(server: _native.Server, place: ServerPart, directory: Path, manifest: Manifest) -> int:
    if manifest.parameters is None:
        raise UserError(
            f"{directory} was written by a ring of workers: parameter servers cannot use it",
            hint=(
                "train with --distribution-strategy AllreduceStrategy, or start without a"
                " checkpoint"
            ),
        )
    chain = [_parts(directory, manifest, link.files) for link in manifest.chain]
    needed = _needed(directory, chain)
    parts = chain[-1]
    server.begin_restore(native_spec(manifest.parameters))
    for file, part in needed:
        newest = file in manifest.files
        dense = list(part.dense_reads(place.server, place.servers)) if newest else []
        tables = list(part.table_reads(place.server, place.servers))
        path = str(directory / file.name)
        if dense or tables:
            store.verify_part(directory, file)
        for share in dense:
            server.restore_dense(path, share.offset, share.section, share.at, share.count)
        for table in tables:
            server.restore_rows(path, table.offset, table.rows, table.table, part.header.tagged)
    for name, known in _pushes(parts, place).items():
        server.restore_worker(name, known)
    server.end_restore(manifest.version, min(part.header.step_base for _, part in parts))
    return manifest.version


def _needed(directory: Path, chain: list[list[_Written]]) -> list[_Written]:
    """The parts that hold all rows, in the order in which newer rows replace older ones.

    A server that was restarted writes all its rows into a delta: its parts before are not needed.
    """
    needed: list[_Written] = []
    for server in range(len(chain[-1])):
        own = [one for parts in chain for one in parts if one[1].header.server == server]
        full = [at for at, (_, part) in enumerate(own) if not part.header.delta]
        if not full:
            raise Corrupted(f"{directory} lacks the checkpoint that the delta of ps-{server} needs")
        needed += own[full[-1] :]
    return needed


def _parts(directory: Path, manifest: Manifest, files: tuple[PartFile, ...]) -> list[_Written]:
    """The parts of one link of the chain."""
    parts = [(file, read_header(directory / file.name)) for file in files]
    servers = sorted(part.header.server for _, part in parts)
    # By the number of files first: the manifest's own number may be anything.
    whole = (
        len(parts) == manifest.servers
        and servers == list(range(len(parts)))
        and all(part.header.servers == manifest.servers for _, part in parts)
    )
    if not (parts and whole) or any(
        part.header.parameters != manifest.parameters for _, part in parts
    ):
        raise Corrupted(
            f"{directory} contains parts of different checkpoints: of servers {servers}, while"
            f" {manifest.servers} wrote it"
        )
    return parts


def _pushes(parts: list[_Written], place: ServerPart) -> dict[str, tuple[int, int, int, int, int]]:
    """The last push of each worker here, or with another number of servers that in every part.

    Pushes of another run are ignored, since its workers' names come again.
    """
    if any(part.header.run != place.run for _, part in parts):
        return {}
    own = [
        part.header
        for _, part in parts
        if (part.header.server, part.header.servers) == (place.server, place.servers)
    ]
    headers = own or [part.header for _, part in parts]
    # With another number of servers each server holds ids of all old ones: a push counts only if
    # every old part has it.
    everywhere = set.intersection(*(set(header.workers) for header in headers))
    return {
        name: min((header.workers[name] for header in headers), key=lambda push: push[1])
        for name in sorted(everywhere)
    }
