"""Restore checkpoints into a server of any layout, at once or ahead of the last one.

A server that is to take over parameters loads the rows of earlier checkpoints while training goes
on. Then it needs only the deltas since, in which newer rows replace those that it has.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeAlias, final

from elasticdl.checkpoint import store
from elasticdl.checkpoint.layout import MANIFEST
from elasticdl.checkpoint.manifest import Link, Manifest, PartFile, name_when_written
from elasticdl.checkpoint.part import Part, read_header
from elasticdl.errors import Corrupted, UserError
from elasticdl.native import _native
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
        self._verified: set[str] = set()
        """Files of the checkpoint that is being read whose checksums are right."""

    def load(self, directory: Path) -> bool:
        """Load this server's rows of a checkpoint, ahead of one that `finish` takes.

        False if the checkpoint was removed or replaced meanwhile, because a newer one is complete.
        Raises Corrupted with the file's name.
        """
        manifest = _manifest(directory)
        if manifest is None:
            return False
        try:
            self._load(directory, manifest)
        except Corrupted:
            if _manifest(directory) == manifest:
                raise
            return False
        return True

    def finish(self, directory: Path) -> int:
        """Complete the server with everything in a checkpoint; returns its version.

        Every bit of weights, rows and slots is as it was saved, whatever the number of servers
        was. Only files with a share are read and verified. Raises Corrupted with the file's name.
        """
        manifest = store.read_manifest(directory)
        newest = self._load(directory, manifest)
        self._read_dense(directory, newest)
        for name, known in _pushes(newest, self._place).items():
            self._server.restore_worker(name, known)
        self._server.end_restore(manifest.version, min(part.header.step_base for _, part in newest))
        return manifest.version

    def _load(self, directory: Path, manifest: Manifest) -> list[_Written]:
        """Load all rows that the server does not have; returns the parts of the newest link."""
        self._verified.clear()
        try:
            return self._load_rows(directory, manifest)
        except OSError as error:
            raise _unreadable(directory, error) from error

    def _load_rows(self, directory: Path, manifest: Manifest) -> list[_Written]:
        if manifest.parameters is None:
            raise UserError(
                f"{directory} was written by a ring of workers: parameter servers cannot use it",
                hint=(
                    "train with --distribution-strategy AllreduceStrategy, or start without a"
                    " checkpoint"
                ),
            )
        chain, known = tuple(map(_as_written, manifest.chain)), len(self._loaded)
        extends = bool(known) and chain[:known] == self._loaded
        fresh = _links(directory, manifest, known if extends else 0)
        if extends and any(not part.header.delta for parts in fresh for _, part in parts):
            # That server came back, perhaps with fewer rows than it had: see `_needed`.
            extends, fresh = False, _links(directory, manifest, 0)
        if extends:
            needed = [one for parts in fresh for one in parts]
        else:
            self._server.begin_restore(native_spec(manifest.parameters))
            needed = _needed(directory, fresh)
        # A try that fails in the middle leaves rows of no known state.
        self._loaded = ()
        for file, part in needed:
            self._read_rows(directory, file, part)
        self._loaded = chain
        return fresh[-1] if fresh else _links(directory, manifest, len(chain) - 1)[-1]

    def _read_rows(self, directory: Path, file: PartFile, part: Part) -> None:
        tables = list(part.table_reads(self._place.server, self._place.servers))
        if not tables:
            return
        self._verify(directory, file)
        path = str(directory / file.name)
        for table in tables:
            self._server.restore_rows(
                path, table.offset, table.rows, table.table, part.header.tagged
            )

    def _verify(self, directory: Path, file: PartFile) -> None:
        """Compare a file with its checksum, once: the newest has rows and dense weights."""
        if file.name not in self._verified:
            store.verify_part(directory, file)
            self._verified.add(file.name)

    def _read_dense(self, directory: Path, newest: list[_Written]) -> None:
        for file, part in newest:
            shares = list(part.dense_reads(self._place.server, self._place.servers))
            if not shares:
                continue
            self._verify(directory, file)
            path = str(directory / file.name)
            try:
                for share in shares:
                    self._server.restore_dense(
                        path, share.offset, share.section, share.at, share.count
                    )
            except OSError as error:
                raise _unreadable(directory, error) from error


def _unreadable(directory: Path, error: OSError) -> Corrupted:
    return Corrupted(f"cannot read {directory}: {error.strerror or error}")


def _manifest(directory: Path) -> Manifest | None:
    """The manifest of a checkpoint that may be removed meanwhile; None if it is gone."""
    try:
        return store.read_manifest(directory)
    except Corrupted:
        if (directory / MANIFEST).exists():
            raise
        return None


def _as_written(link: Link) -> Link:
    """A link as it is in every directory that has it."""
    files = tuple(
        file.model_copy(update={"name": name_when_written(file.name)}) for file in link.files
    )
    return link.model_copy(update={"files": files})


def restore(server: _native.Server, place: ServerPart, directory: Path) -> int:
    """Restore this server's share of a checkpoint at once; returns its version.

    `directory` is a checkpoint, or has checkpoints, of which the newest is taken. See
    `Restoration.finish`.
    """
    if not (directory / MANIFEST).exists():
        directory = store.require(directory).directory
    version = Restoration(server, place).finish(directory)
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


def _links(directory: Path, manifest: Manifest, first: int) -> list[list[_Written]]:
    """The parts of the links from `first` on."""
    return [_parts(directory, manifest, link.files) for link in manifest.chain[first:]]


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
