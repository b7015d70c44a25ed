"""Copies of checkpoints in an object store: `ADDRESS/version-<n>/manifest.json` comes last.

No listing decides what is there. A version counts if its manifest is there and every file that the
manifest names has the right size and checksum; `newest.json` names the newest version beside the
listing, which a store may show late. A store has no hard links: the files of a delta's links are
those of the versions that wrote them.

`object_store.py` makes checkpoints of this layout that are no copies.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from elasticdl.checkpoint import directories
from elasticdl.checkpoint.layout import MANIFEST, VERSION_PREFIX, directory_name
from elasticdl.checkpoint.manifest import (
    Manifest,
    PartFile,
    checksum_of,
    name_when_written,
    parse_manifest,
)
from elasticdl.checkpoint.part import Part, header_of
from elasticdl.errors import Corrupted, TransientError, UserError
from elasticdl.native import _native
from elasticdl.storage import folders
from elasticdl.storage.address import below
from elasticdl.storage.attempts import RUNNING, STARTING, Absent, Limits
from elasticdl.storage.store import store_of

NEWEST = "newest.json"
_LOG = logging.getLogger(__name__)
_AT_ONCE = 8
_CHUNK_BYTES = 8 << 20
_NAME = re.compile(rf"{VERSION_PREFIX}(\d+)")
T = TypeVar("T")
R = TypeVar("R")


def upload(directory: Path, manifest: Manifest, address: str) -> None:
    """Copy a complete checkpoint. Raises UserError and TransientError; the copy is whole or none.

    An object that a killed master left is replaced, or stays without a manifest. Files of links are
    there already, unless their own copy failed.
    """
    there = store_of(address)
    for link in manifest.links:
        for file in link.files:
            target = _place(address, link.version, file.name)
            entry = there.look_at(target)
            if entry is None or entry.size_bytes != file.bytes:
                there.upload(directory / file.name, target)
    names = [*(part.name for part in manifest.files), MANIFEST]
    folders.upload(directory, names, below(address, directory_name(manifest.version)), MANIFEST)
    name_newest(address, manifest.version)


def name_newest(address: str, version: int) -> None:
    """Name the newest version beside the listing. Raises UserError, TransientError."""
    there = store_of(address)
    there.write(below(address, NEWEST), json.dumps({"version": version}).encode())


def prune(address: str, keep: int, newest: int, held: Container[str] = ()) -> None:
    """Keep version `newest` and the complete ones before it, `keep` in all; 0 keeps all.

    Those in the folders `held` stay, and files that one of all these needs. If the manifest of one
    is damaged, its files are not known, and nothing is removed.
    """
    before = [version for version in versions(address) if version <= newest] if keep > 0 else []
    if not before[keep:]:
        return
    kept, whole = set[str](), list[Manifest]()
    for version in before:
        folder = below(address, directory_name(version))
        if len(kept) < keep or folder in held:
            try:
                existing = manifest_if_there(folder)
            except Corrupted as error:
                # Newer checkpoints take its place among the kept ones before long.
                _LOG.warning("removing no old checkpoints in %s: %s", address, error.message)
                return
            if existing is not None:
                kept.add(folder)
                whole.append(existing)
    there, needed = store_of(address), _files_of_links(address, whole)
    for version in before:
        folder = below(address, directory_name(version))
        if folder in kept:
            continue
        # Without its manifest it is no checkpoint, even if the removal is interrupted.
        there.remove(below(folder, MANIFEST))
        if not any(place.startswith(f"{folder}/") for place in needed):
            there.remove_below(folder)
            continue
        for entry in there.listed(folder):
            if entry.address not in needed:
                there.remove(entry.address)


def _files_of_links(address: str, kept: Iterable[Manifest]) -> set[str]:
    """The addresses of files of other versions that the kept ones need."""
    return {
        _place(address, link.version, file.name)
        for whole in kept
        for link in whole.links
        for file in link.files
    }


def _place(address: str, version: int, name: str) -> str:
    """The address of a file in the copy of the version that wrote it."""
    return below(below(address, directory_name(version)), name_when_written(name))


def versions(address: str, limits: Limits = STARTING) -> list[int]:
    """Versions of which there may be a copy, newest first."""
    names = folders.names_in(address, limits)
    numbers = {int(name[1]) for each in names if (name := _NAME.fullmatch(each))}
    with suppress(Absent, ValueError, KeyError, TypeError):
        newest = store_of(address).read(below(address, NEWEST))
        numbers.add(int(json.loads(newest)["version"]))
    return sorted(numbers, reverse=True)


def fetch_newer(address: str, checkpoints: Path, than: int) -> tuple[str, ...]:
    """Bring the newest intact copy of a version above `than` into a directory of checkpoints.

    Returns why newer copies were passed over. Raises UserError, TransientError, OSError.
    """
    newer = [version for version in versions(address, RUNNING) if version > than]
    return _fetch_first(address, newer, checkpoints)[1]


def fetch(address: str, checkpoints: Path) -> tuple[str, ...]:
    """Bring the newest intact copy that an address names into a directory of checkpoints.

    The address is that of one copy, or of the folder of several. Returns why newer ones were passed
    over. Raises UserError if there is none, Corrupted if none is intact, TransientError, OSError.
    """
    place, candidates = named(address, RUNNING)
    fetched, passed_over = _fetch_first(place, candidates, checkpoints)
    if fetched is None and passed_over:
        raise Corrupted(f"no usable checkpoint in {address}: {'; '.join(passed_over)}")
    if fetched is None:
        raise none_in(address)
    return passed_over


def peek(address: str) -> Manifest:
    """The manifest of the newest copy that an address names, as `fetch`, without its files."""
    place, candidates = named(address)
    folders_found = (below(place, directory_name(version)) for version in candidates)
    whole, _ = directories.first_intact(folders_found, manifest_if_there)
    if whole is None:
        raise none_in(address)
    return whole


def named(address: str, limits: Limits = STARTING) -> tuple[str, list[int]]:
    """The folder of the checkpoints that an address names, and their versions, newest first."""
    folder, _, name = address.rstrip("/").rpartition("/")
    version = _NAME.fullmatch(name)
    return (folder, [int(version[1])]) if version else (address, versions(address, limits))


def none_in(address: str) -> UserError:
    """The error for an address without checkpoints that the user named."""
    return UserError(
        f"no checkpoint in {address}",
        hint="name the --checkpoint-dir of a job, or one of the version-<n> folders below it",
    )


def _fetch_first(
    address: str, candidates: Iterable[int], checkpoints: Path
) -> tuple[Manifest | None, tuple[str, ...]]:
    """Fetch the first of these versions that is intact, if there is one; also why others are not.

    What was never complete is left out.
    """

    def fetched(version: int) -> Manifest | None:
        whole = manifest_if_there(below(address, directory_name(version)))
        if whole is not None:
            _fetch(address, whole, checkpoints)
        return whole

    return directories.first_intact(candidates, fetched)


def refuse_foreign(address: str) -> None:
    """Raise UserError if a new job cannot keep its checkpoints here.

    Checkpoints of another job would look like its own to a resume. What was never complete does
    not, and is removed with old checkpoints.
    """
    there = store_of(address, STARTING)
    manifests = (below(address, directory_name(version), MANIFEST) for version in versions(address))
    if any(there.look_at(manifest, STARTING) for manifest in manifests):
        raise UserError(
            f"{address} contains checkpoints of another job",
            hint="choose a new folder, or continue that job with --resume",
        )


def _fetch(address: str, whole: Manifest, checkpoints: Path) -> None:
    """Raises Corrupted if the copy is not whole."""
    making = directories.begin(checkpoints)
    try:
        for link in whole.chain:
            for part in link.files:
                fetch_part(address, link.version, part, making)
        directories.complete(making, whole)
    except BaseException:
        directories.abandon(making)
        raise


def fetch_part(address: str, version: int, part: PartFile, folder: Path) -> None:
    """Bring a file, which that version wrote, into a folder, and verify it.

    Raises Corrupted if it is missing or damaged, UserError, TransientError, OSError.
    """
    try:
        store_of(address).download(_place(address, version, part.name), folder / part.name)
    except Absent as error:
        raise Corrupted(error.message) from error
    directories.verify_part(folder, part)


def verify(address: str, whole: Manifest) -> None:
    """Read every byte of a checkpoint, and keep none. Raises as `verify_part`."""
    parts = [(link.version, file) for link in whole.chain for file in link.files]
    _in_threads(lambda part: verify_part(address, *part), parts)


def verify_part(address: str, version: int, part: PartFile) -> None:
    """Read every byte of a file, which that version wrote.

    Raises Corrupted if it is missing or damaged, UserError, TransientError.
    """
    place, crc = _place(address, version, part.name), 0
    try:
        opened = store_of(place).open(place)
        if opened.size_bytes != part.bytes:
            raise Corrupted(f"{place} has {opened.size_bytes} bytes, expected {part.bytes}")
        for begin in range(0, part.bytes, _CHUNK_BYTES):
            crc = _native.crc32c(opened.read(begin, min(part.bytes, begin + _CHUNK_BYTES)), crc)
    except Absent as error:
        raise Corrupted(error.message) from error
    if (actual := checksum_of(crc)) != part.checksum:
        raise Corrupted(f"{place} has checksum {actual}, expected {part.checksum}")


class FileLost(TransientError):
    """A checkpoint is not complete: the store lacks a file of it, or has a part of the file."""


def require_files(address: str, whole: Manifest) -> None:
    """Raise FileLost if a file of a checkpoint, or of its links, is missing or has another size.

    A master that was paused, or another job, may have removed it, or a lifecycle rule of the
    bucket. Also raises UserError, TransientError.
    """
    there = store_of(address)

    def require(part: tuple[int, PartFile]) -> None:
        version, file = part
        place = _place(address, version, file.name)
        entry = there.look_at(place)
        if entry is None or entry.size_bytes != file.bytes:
            problem = "is gone" if entry is None else f"has {entry.size_bytes} bytes"
            raise FileLost(f"{place} {problem}, expected {file.bytes} bytes")

    _in_threads(require, [(link.version, file) for link in whole.chain for file in link.files])


def headers(address: str, parts: Sequence[tuple[int, PartFile]]) -> list[Part]:
    """The headers of files, each with the version that wrote it.

    Raises Corrupted if one is missing or damaged, UserError, TransientError.
    """
    return _in_threads(lambda part: _header(_place(address, part[0], part[1].name)), parts)


def _header(place: str) -> Part:
    try:
        opened = store_of(place).open(place)
        at = 0

        def following(count: int) -> bytes:
            nonlocal at
            begin, at = at, min(at + count, opened.size_bytes)
            return opened.read(begin, at)

        return header_of(following, opened.size_bytes, place)
    except Absent as error:
        raise Corrupted(error.message) from error


def _in_threads(call: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call for each, several at once: most of the time is the store's latency."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            return list(pool.map(call, items))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def manifest(folder: str) -> Manifest:
    """The manifest of one checkpoint. Raises Corrupted, UserError, TransientError."""
    existing = manifest_if_there(folder)
    if existing is None:
        raise Corrupted(f"{below(folder, MANIFEST)} does not exist")
    return existing


def manifest_if_there(folder: str) -> Manifest | None:
    """The manifest of one checkpoint; None if there is none. Raises as `manifest`."""
    address = below(folder, MANIFEST)
    try:
        return parse_manifest(store_of(address).read(address).decode(), address)
    except Absent:
        return None
    except UnicodeDecodeError as error:
        raise Corrupted(f"{address}: {error}") from error
