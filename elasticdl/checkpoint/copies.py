"""Copies of checkpoints in an object store: `ADDRESS/version-<n>/manifest.json` comes last.

No listing decides what is there. A version counts if its manifest is there and every file that the
manifest names has the right size and checksum; `newest.json` names the newest version beside the
listing, which a store may show late.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

from elasticdl.checkpoint import store
from elasticdl.checkpoint.layout import MANIFEST, VERSION_PREFIX, directory_name
from elasticdl.checkpoint.manifest import Manifest, parse_manifest
from elasticdl.errors import Corrupted, UserError
from elasticdl.storage import folders
from elasticdl.storage.address import below
from elasticdl.storage.attempts import Absent
from elasticdl.storage.store import store_of

_NEWEST = "newest.json"
_NAME = re.compile(rf"{VERSION_PREFIX}(\d+)")


def upload(directory: Path, manifest: Manifest, address: str) -> None:
    """Copy a complete checkpoint. Raises UserError and TransientError; the copy is whole or none.

    An object that a killed master left is replaced, or stays without a manifest.
    """
    names = [*(part.name for part in manifest.files), MANIFEST]
    folders.upload(directory, names, below(address, directory_name(manifest.version)), MANIFEST)
    store_of(address).write(
        below(address, _NEWEST), json.dumps({"version": manifest.version}).encode()
    )


def prune(address: str, keep: int, newest: int) -> None:
    """Keep version `newest` and the copies before it, `keep` in all; 0 keeps all."""
    if keep <= 0:
        return
    for version in [one for one in versions(address) if one <= newest][keep:]:
        folder = below(address, directory_name(version))
        # Without its manifest it is no checkpoint, even if the removal is interrupted.
        store_of(address).remove(below(folder, MANIFEST))
        store_of(address).remove_below(folder)


def versions(address: str) -> list[int]:
    """Versions of which there may be a copy, newest first."""
    numbers = {
        int(name[1]) for each in folders.names_in(address) if (name := _NAME.fullmatch(each))
    }
    with suppress(Absent, ValueError, KeyError, TypeError):
        opened = store_of(address).open(below(address, _NEWEST))
        numbers.add(int(json.loads(opened.read(0, opened.size_bytes))["version"]))
    return sorted(numbers, reverse=True)


def fetch_newer(address: str, checkpoints: Path, than: int) -> tuple[str, ...]:
    """Bring the newest intact copy of a version above `than` into a directory of checkpoints.

    Returns why newer copies were passed over. Raises UserError, TransientError, OSError.
    """
    passed_over: list[str] = []
    for version in versions(address):
        if version <= than:
            break
        folder = below(address, directory_name(version))
        try:
            _fetch(folder, checkpoints)
            break
        except Corrupted as error:
            passed_over.append(error.message)
    return tuple(passed_over)


def refuse_foreign(address: str) -> None:
    """Raise UserError if a new job cannot keep its checkpoints here.

    Checkpoints of another job would look like its own to a resume.
    """
    if versions(address):
        raise UserError(
            f"--checkpoint-dir {address} contains checkpoints of another job",
            hint="choose a new folder, or continue that job with --resume",
        )


def _fetch(folder: str, checkpoints: Path) -> None:
    """Raises Corrupted if the copy is not whole."""
    making = store.begin(checkpoints)
    try:
        manifest = _manifest(below(folder, MANIFEST))
        for part in manifest.files:
            try:
                store_of(folder).download(below(folder, part.name), making / part.name)
            except Absent as error:
                raise Corrupted(error.message) from error
            store.verify_part(making, part)
        store.complete(making, manifest)
    except BaseException:
        store.abandon(making)
        raise


def _manifest(address: str) -> Manifest:
    try:
        opened = store_of(address).open(address)
        return parse_manifest(opened.read(0, opened.size_bytes).decode(), address)
    except Absent as error:
        raise Corrupted(error.message) from error
    except UnicodeDecodeError as error:
        raise Corrupted(f"{address}: {error}") from error
