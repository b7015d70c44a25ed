"""Restore checkpoints into a server of any layout, at once or ahead of the last one.

A server that is to take over parameters loads the rows of earlier checkpoints while training goes
on. Then it needs only the deltas since, in which newer rows replace those that it has.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias, final

from elasticdl.addresses import is_address
from elasticdl.checkpoint import directories, object_store
from elasticdl.checkpoint.layout import MANIFEST
from elasticdl.checkpoint.manifest import Link, Manifest, PartFile, name_when_written
from elasticdl.checkpoint.part import Part
from elasticdl.errors import Corrupted, UserError
from elasticdl.native import _native
from elasticdl.ps.checkpoint_files import CheckpointFiles, files_of
from elasticdl.ps.saving import ServerPart
from elasticdl.rpc.native_spec import native_spec

_log = logging.getLogger(__name__)

_Written: TypeAlias = tuple[PartFile, Part]


@final
class Restoration:
    """Restores one server. Use it from one thread; `finish` is the last call."""

    def __init__(self, server: _native.Server, place: ServerPart) -> None:
        self._server = server
        self._place = place
        self._loaded: tuple[Link, ...] = ()
        """The chain whose rows are in the server, with the names that the files first had."""

    def load(self, where: Path | str) -> bool:
        """Load this server's rows of a checkpoint, ahead of one that `finish` takes.

        `where` is a directory or an address. False if the checkpoint was removed or replaced
        meanwhile, because a newer one is complete. Raises Corrupted with the file's name; for an
        address also UserError, TransientError.
        """
        files = files_of(where, self._place)
        manifest = files.manifest_if_there()
        if manifest is None:
            return False
        try:
            self._load(files, manifest, dense=False)
        except Corrupted:
            if files.manifest_if_there() == manifest:
                raise
            return False
        return True

    def finish(self, where: Path | str) -> int:
        """Complete the server with everything in a checkpoint; returns its version.

        Every bit of weights, rows and slots is as it was saved, whatever the number of servers
        was. Only files with a share are read and verified. Raises as `load`.
        """
        files = files_of(where, self._place)
        manifest = files.manifest()
        newest = self._load(files, manifest, dense=True)
        for name, known in _pushes(newest, self._place).items():
            self._server.restore_worker(name, known)
        self._server.end_restore(manifest.version, min(part.header.step_base for _, part in newest))
        return manifest.version

    def _load(self, files: CheckpointFiles, manifest: Manifest, *, dense: bool) -> list[_Written]:
        """Load all rows that the server does not have, and with `dense` its dense weights.

        Returns the parts of the newest link.
        """
        try:
            return self._load_parts(files, manifest, dense=dense)
        except OSError as error:
            raise Corrupted(f"cannot read {files.where}: {error.strerror or error}") from error

    def _load_parts(
        self, files: CheckpointFiles, manifest: Manifest, *, dense: bool
    ) -> list[_Written]:
        if manifest.parameters is None:
            raise UserError(
                f"{files.where} was written by a ring of workers: parameter servers cannot use it",
                hint=(
                    "train with --distribution-strategy AllreduceStrategy, or start without a"
                    " checkpoint"
                ),
            )
        chain, known = tuple(map(_as_written, manifest.chain)), len(self._loaded)
        extends = bool(known) and chain[:known] == self._loaded
        fresh = _links(files, manifest, known if extends else 0)
        if extends and any(not part.header.delta for parts in fresh for _, part in parts):
            # That server came back, perhaps with fewer rows than it had: see `_needed`.
            extends, fresh = False, _links(files, manifest, 0)
        newest = fresh[-1] if fresh else _links(files, manifest, len(chain) - 1)[-1]
        if extends:
            needed = [entry for parts in fresh for entry in parts]
        else:
            self._server.begin_restore(native_spec(manifest.parameters))
            needed = _needed(files.where, fresh)
        # A try that fails in the middle leaves rows of no known state.
        self._loaded = ()
        with_rows, with_dense = ({file.name for file, _ in some} for some in (needed, newest))
        for file, part in [*needed, *(entry for entry in newest if entry[0].name not in with_rows)]:
            self._read(
                files,
                file,
                part,
                rows=file.name in with_rows,
                dense=dense and file.name in with_dense,
            )
        self._loaded = chain
        return newest

    def _read(
        self, files: CheckpointFiles, file: PartFile, part: Part, *, rows: bool, dense: bool
    ) -> None:
        """Read what this server needs of a file, which is verified and fetched at most once."""
        number, of = self._place.server, self._place.servers
        tables = list(part.table_reads(number, of)) if rows else []
        shares = list(part.dense_reads(number, of)) if dense else []
        if not (tables or shares):
            return
        with files.verified(file) as path:
            for table in tables:
                self._server.restore_rows(
                    str(path), table.offset, table.rows, table.table, part.header.tagged
                )
            for share in shares:
                self._server.restore_dense(
                    str(path), share.offset, share.section, share.at, share.count
                )


def _as_written(link: Link) -> Link:
    """A link as it is in every directory that has it."""
    files = tuple(
        file.model_copy(update={"name": name_when_written(file.name)}) for file in link.files
    )
    return link.model_copy(update={"files": files})


def restore(server: _native.Server, place: ServerPart, where: Path | str) -> int:
    """Restore this server's share of a checkpoint at once; returns its version.

    `where` is a checkpoint, or a directory that has checkpoints, of which the newest is taken. See
    `Restoration.finish`.
    """
    if not (is_address(str(where)) or (Path(where) / MANIFEST).exists()):
        where = directories.require(Path(where)).where
    version = Restoration(server, place).finish(where)
    _log.info("restored version %d from %s: %d rows", version, where, server.statistics()["rows"])
    return version


def restore_newest_intact(server: _native.Server, place: ServerPart, where: Path | str) -> int:
    """Restore a restarted server; try earlier checkpoints if this one is damaged.

    The version shows how many updates are lost. Raises Corrupted with all that was tried.
    """
    problems: list[str] = []
    for candidate in _candidates(where):
        try:
            return restore(server, place, candidate)
        except Corrupted as error:
            _log.error("%s: trying the previous checkpoint", error.message)
            problems.append(error.message)
    raise Corrupted(
        f"no usable checkpoint for server {place.server} of {place.servers}: {'; '.join(problems)}"
    )


def _candidates(where: Path | str) -> Iterator[Path | str]:
    """A checkpoint, and those before it beside it."""
    yield where
    yield from (
        object_store.before(text)
        if is_address(text := str(where))
        else directories.before(Path(text))
    )


def _needed(where: str, chain: list[list[_Written]]) -> list[_Written]:
    """The parts that hold all rows, in the order in which newer rows replace older ones.

    A server that was restarted writes all its rows into a delta: its parts before are not needed.
    """
    needed: list[_Written] = []
    for server in range(len(chain[-1])):
        own = [entry for parts in chain for entry in parts if entry[1].header.server == server]
        full = [at for at, (_, part) in enumerate(own) if not part.header.delta]
        if not full:
            raise Corrupted(f"{where} lacks the checkpoint that the delta of ps-{server} needs")
        needed += own[full[-1] :]
    return needed


def _links(files: CheckpointFiles, manifest: Manifest, first: int) -> list[list[_Written]]:
    """The parts of the links from `first` on."""
    return [_parts(files, manifest, link) for link in manifest.chain[first:]]


def _parts(files: CheckpointFiles, manifest: Manifest, link: Link) -> list[_Written]:
    """The parts of one link of the chain."""
    parts = list(zip(link.files, files.headers(link.files), strict=True))
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
            f"{files.where} contains parts of different checkpoints: of servers {servers}, while"
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
