"""What checkpoints a directory has, and whether their files are intact."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from elasticdl.checkpoint import copies, directories
from elasticdl.checkpoint.layout import directory_name, incomplete_checkpoint
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.checkpoint.strategy import strategy_of
from elasticdl.errors import Corrupted, UserError
from elasticdl.storage.address import below


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """A checkpoint by its manifest. Unknown values are None; `problem` then says why.

    `made_at` is unix time. A ring has 0 `servers`. `trained`: records of all epochs that its ledger
    counts as trained. `bytes` is what it wrote. A delta has the version of its full checkpoint in
    `base`, and in `deltas` how many follow it, itself included.
    """

    path: str
    version: int | None = None
    made_at: float | None = None
    bytes: int | None = None
    strategy: str | None = None
    servers: int | None = None
    rows: int | None = None
    trained: int | None = None
    base: int | None = None
    deltas: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """What reading every byte of a checkpoint has shown: `problems` names each damaged file."""

    path: str
    version: int | None
    files: int
    bytes: int
    problems: tuple[str, ...]


def summaries(location: Path) -> list[CheckpointSummary]:
    """Summarize the checkpoints in a directory, newest first. Does not read their parts."""
    listed = [_summary(directory) for directory in directories.complete_ones(location)]
    if incomplete := incomplete_checkpoint(location):
        listed.append(CheckpointSummary(str(incomplete), problem="it has no manifest"))
    return listed


def verify_all(location: Path, version: int | None = None) -> list[Verification]:
    """Read every byte of the checkpoints in a directory, or of one version.

    Raises UserError if there is none, Corrupted if only one without a manifest is left.
    """
    complete = directories.complete_ones(location)
    if not complete and (incomplete := incomplete_checkpoint(location)):
        raise Corrupted(f"no usable checkpoint in {location}: {incomplete} has no manifest")
    verifications = [
        verification
        for directory in complete
        if version is None or version == _version_of(directory)
        for verification in [_verified(directory)]
    ]
    if not verifications:
        raise _none_in(location, version)
    return verifications


def summaries_of_copies(address: str) -> list[CheckpointSummary]:
    """Summarize the checkpoints at an address, newest first, by their manifests.

    A version without one was never complete, or is kept for later ones. Raises UserError,
    TransientError.
    """
    listed = []
    for version in copies.versions(address):
        place = below(address, directory_name(version))
        try:
            if (manifest := copies.manifest_if_there(place)) is not None:
                listed.append(_summary_of(place, manifest))
        except Corrupted as error:
            listed.append(CheckpointSummary(place, version, problem=error.message))
    return listed


def verify_copies(address: str, version: int | None = None) -> list[Verification]:
    """Read every byte of the checkpoints at an address, or of one version.

    Raises UserError if there is none, TransientError.
    """
    verifications = [
        verification
        for candidate in copies.versions(address)
        if version in (None, candidate)
        and (verification := _verified_copy(address, candidate)) is not None
    ]
    if not verifications:
        raise _none_in(address, version)
    return verifications


def _verified_copy(address: str, version: int) -> Verification | None:
    place = below(address, directory_name(version))
    try:
        manifest = copies.manifest_if_there(place)
    except Corrupted as error:
        return Verification(place, version, 0, 0, (error.message,))
    if manifest is None:
        return None
    files, problems = manifest.all_files, []
    for link in manifest.chain:
        for part in link.files:
            try:
                copies.verify_part(address, link.version, part)
            except Corrupted as error:
                problems.append(error.message)
    return Verification(
        place, version, len(files), sum(part.bytes for part in files), tuple(problems)
    )


def _none_in(location: Path | str, version: int | None) -> UserError:
    which = "checkpoint" if version is None else f"checkpoint of version {version}"
    return UserError(
        f"no {which} in {location}",
        hint="see `elasticdl checkpoints list` for those that exist",
    )


def _summary(directory: Path) -> CheckpointSummary:
    try:
        manifest = directories.read_manifest(directory)
    except Corrupted as error:
        return CheckpointSummary(str(directory), _version_of(directory), problem=error.message)
    return _summary_of(str(directory), manifest)


def _summary_of(place: str, manifest: Manifest) -> CheckpointSummary:
    return CheckpointSummary(
        place,
        manifest.version,
        manifest.wall_s,
        manifest.bytes,
        str(strategy_of(manifest)),
        manifest.servers,
        manifest.rows,
        _trained(manifest),
        manifest.links[0].version if manifest.links else None,
        len(manifest.links),
    )


def _trained(manifest: Manifest) -> int | None:
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        return sum(int(count["trained"]) for count in json.loads(manifest.ledger)["counts"])
    return None


def _version_of(directory: Path) -> int | None:
    """The version in the name; that of the manifest if the directory has another name."""
    if (version := directories.version_in_name(directory)) is not None:
        return version
    with suppress(Corrupted):
        return directories.read_manifest(directory).version
    return None


def _verified(directory: Path) -> Verification:
    version = _version_of(directory)
    try:
        manifest = directories.read_manifest(directory)
    except Corrupted as error:
        return Verification(str(directory), version, 0, 0, (error.message,))
    problems = []
    for part in manifest.all_files:
        try:
            directories.verify_part(directory, part)
        except Corrupted as error:
            problems.append(error.message)
    return Verification(
        str(directory),
        version,
        len(manifest.all_files),
        sum(part.bytes for part in manifest.all_files),
        tuple(problems),
    )
