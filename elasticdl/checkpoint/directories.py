"""Checkpoints as local directories: written under a temporary name, then renamed; verified at use.

The directory of a delta has hard links to the files of the checkpoints before it. So each directory
is whole by itself, and the file system frees a file when the last checkpoint that needs it is gone.

Servers write their parts into the directory from `begin`. `complete` adds the manifest and renames
the directory to `version-<n>`. A crash at any moment leaves the earlier checkpoints and at most a
`.making-…` directory. During the renaming, an old checkpoint of the same version is
`version-<n>.replaced`.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from elasticdl.checkpoint.layout import MANIFEST, VERSION_PREFIX, directory_name
from elasticdl.checkpoint.manifest import Link, Manifest, PartFile, checksum_of, parse_manifest
from elasticdl.errors import Corrupted, UserError
from elasticdl.native import _native
from elasticdl.private_file import make_private, private, sync_entry

_LOG = logging.getLogger(__name__)
_MAKING = ".making-"
_REPLACED = ".replaced"
_NAME = re.compile(rf"{VERSION_PREFIX}(\d+)({re.escape(_REPLACED)})?")
_CHUNK_BYTES = 4 << 20
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A verified checkpoint, in a directory or at an address, and why newer ones were rejected."""

    where: str
    manifest: Manifest
    rejected: tuple[str, ...] = ()


def begin(checkpoints: Path) -> Path:
    """A new directory for the parts of one checkpoint.

    Removes leftovers of a master that died. Raises OSError.
    """
    make_private(checkpoints)
    # Only one checkpoint is made at a time, so any other directory is a leftover.
    for leftover in checkpoints.glob(f"{_MAKING}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_MAKING, dir=checkpoints))


def link_base(
    making: Path, base: Path, manifest: Manifest, *, any_length: bool = False
) -> tuple[Link, ...]:
    """Give a new directory the files of an earlier checkpoint, for a delta; returns its links.

    There are none if the chain is as long as it may be, unless it may have `any_length`, if a file
    is gone, or if the file system has no hard links: the checkpoint is then a full one.
    """
    links = () if manifest.chain_ends and not any_length else manifest.as_base
    try:
        for file, linked in zip(
            manifest.all_files if links else (),
            (file for link in links for file in link.files),
            strict=True,
        ):
            os.link(base / file.name, making / linked.name)
    except OSError as error:
        _LOG.info("a full checkpoint, since %s cannot be linked: %s", base, error)
        unlink(making, links)
        return ()
    return links


def unlink(making: Path, links: tuple[Link, ...]) -> None:
    """Remove the files of links from a new directory."""
    for link in links:
        for file in link.files:
            # One that stays does no harm: no manifest names it.
            with suppress(OSError):
                (making / file.name).unlink()


def complete(making: Path, manifest: Manifest) -> Path:
    """Write the manifest, make everything durable and rename the directory; returns it.

    Raises OSError.
    """
    path = making / MANIFEST
    with open(path, "w", encoding="utf-8", opener=private) as file:
        file.write(manifest.as_json())
        file.flush()
        os.fsync(file.fileno())
    # The files' names must be durable before the directory gets its final name.
    sync_entry(making)
    final = making.parent / directory_name(manifest.version)
    replaced = final.with_name(final.name + _REPLACED)
    if final.exists():
        # The same version again: a resumed job trained nothing, or servers restarted from that
        # checkpoint.
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    making.rename(final)
    # Only now is the rename durable; `replaced` may go after that and not before.
    sync_entry(making.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def abandon(making: Path) -> None:
    """Remove the directory of an incomplete checkpoint."""
    shutil.rmtree(making, ignore_errors=True)


def prune(checkpoints: Path, keep: int, newest: int, held: Container[str] = ()) -> None:
    """Keep version `newest` and the complete checkpoints before it, `keep` in all; 0 keeps all.

    The directories `held` stay, too.

    Later versions are damaged ones that were rejected; they are removed once the job has passed
    them. Raises OSError.
    """
    if keep <= 0:
        return
    for directory in [
        directory for version, directory in _versions(checkpoints) if version <= newest
    ][keep:]:
        if str(directory) in held:
            continue
        # Without its manifest it is no checkpoint, even if the removal is interrupted.
        with suppress(FileNotFoundError):
            (directory / MANIFEST).unlink()
        shutil.rmtree(directory, ignore_errors=True)


def newest(location: Path) -> FoundCheckpoint | None:
    """The newest checkpoint that verifies, in `location` or below it.

    None if there is none at all. Raises Corrupted, with all that was tried, if none verifies.
    """
    newest_intact = first_intact(
        complete_ones(location),
        lambda directory: FoundCheckpoint(str(directory), verify(directory)),
    )
    return usable(*newest_intact, location)


def first_intact(
    candidates: Iterable[T], take: Callable[[T], R | None]
) -> tuple[R | None, tuple[str, ...]]:
    """What `take` makes of the first candidate that is intact, and why those before it are not.

    `take` raises Corrupted for a damaged one, and returns None for one that was never complete.
    """
    rejected: list[str] = []
    for candidate in candidates:
        try:
            if (taken := take(candidate)) is not None:
                return taken, tuple(rejected)
        except Corrupted as error:
            rejected.append(error.message)
    return None, tuple(rejected)


def usable(
    checkpoint: FoundCheckpoint | None, rejected: tuple[str, ...], place: Path | str
) -> FoundCheckpoint | None:
    """The newest checkpoint of a place; None if it has none. Raises Corrupted if none is intact."""
    if checkpoint is None and rejected:
        raise Corrupted(
            f"no usable checkpoint in {place}: {'; '.join(rejected)}",
            hint="restore it from a copy, or start without a checkpoint",
        )
    return checkpoint and replace(checkpoint, rejected=rejected)


def before(directory: Path) -> list[Path]:
    """Complete checkpoints of earlier versions beside this one, newest first. Not verified."""
    name = _NAME.fullmatch(directory.name)
    return (
        [path for version, path in _versions(directory.parent) if version < int(name.group(1))]
        if name
        else []
    )


def require(location: Path) -> FoundCheckpoint:
    """Return the newest checkpoint of a place that the user named. Raises UserError if none."""
    checkpoint = newest(location) if location.is_dir() else None
    if checkpoint is None:
        raise UserError(
            f"no checkpoint in {location}",
            hint=("name a directory with version-<n> directories, such as <job-dir>/checkpoints"),
        )
    return checkpoint


def peek(location: Path) -> Manifest | None:
    """The manifest of the newest checkpoint, without verification; `location` as for `newest`."""
    return first_intact(complete_ones(location), read_manifest)[0]


def read_manifest(directory: Path) -> Manifest:
    """The manifest of one checkpoint, without verification of its parts. Raises Corrupted."""
    try:
        text = (directory / MANIFEST).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Corrupted(f"{directory / MANIFEST}: {error}") from error
    return parse_manifest(text, str(directory / MANIFEST))


def verify(directory: Path) -> Manifest:
    """Read every byte of a checkpoint.

    Raises Corrupted that names the first file with a wrong size or checksum.
    """
    manifest = read_manifest(directory)
    for part in manifest.all_files:
        verify_part(directory, part)
    return manifest


def verify_part(directory: Path, part: PartFile) -> None:
    """Read every byte of one file. Raises Corrupted if its size or checksum is wrong."""
    path = directory / part.name
    try:
        size = path.stat().st_size
        if size != part.bytes:
            raise Corrupted(f"{path} has {size} bytes, expected {part.bytes}")
        actual = checksum(path)
    except OSError as error:
        raise Corrupted(f"{path}: {error.strerror or error}") from error
    if actual != part.checksum:
        raise Corrupted(f"{path} has checksum {actual}, expected {part.checksum}")


def checksum(path: Path) -> str:
    """`crc32c:` and 8 hex digits of a whole file. Raises OSError."""
    crc = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc = _native.crc32c(chunk, crc)
    return checksum_of(crc)


def complete_ones(location: Path) -> list[Path]:
    """The complete checkpoints in `location`, or that it is, newest first. Not verified."""
    return (
        [location]
        if (location / MANIFEST).exists()
        else [directory for _, directory in _versions(location)]
    )


def version_in_name(directory: Path) -> int | None:
    """The version that a checkpoint's name says; None if it has another name."""
    name = _NAME.fullmatch(directory.name)
    return int(name.group(1)) if name else None


def _versions(checkpoints: Path) -> Sequence[tuple[int, Path]]:
    """Complete checkpoints with their versions, newest first."""
    numbered = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for directory in checkpoints.iterdir():
            name = _NAME.fullmatch(directory.name)
            if name and (directory / MANIFEST).exists():
                numbered.append((int(name.group(1)), not name.group(2), directory))
    return [(version, directory) for version, _, directory in sorted(numbered, reverse=True)]
