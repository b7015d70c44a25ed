"""Names of the files and directories of checkpoints: `checkpoints/version-<n>/manifest.json`."""

from __future__ import annotations

from pathlib import Path

MANIFEST = "manifest.json"
"""It is written last, so a directory with a manifest is complete."""
VERSION_PREFIX = "version-"


def directory_name(version: int) -> str:
    """The directory of a version's checkpoint."""
    return f"{VERSION_PREFIX}{version}"


def part_name(server: int, servers: int) -> str:
    """The file of one server."""
    return f"server-{server}-of-{servers}.bin"


def incomplete_checkpoint(location: Path) -> Path | None:
    """Return a checkpoint in the directory that has lost its manifest; None if there is none.

    Checkpoints under construction have other names.
    """
    return next(
        (
            path
            for path in sorted(location.glob(f"{VERSION_PREFIX}*"))
            if not (path / MANIFEST).exists()
        ),
        None,
    )


def has_checkpoint(location: Path) -> bool:
    """Return whether a directory is, or contains, a completed checkpoint.

    Damage shows only when the checkpoint is read.
    """
    return (location / MANIFEST).exists() or any(location.glob(f"{VERSION_PREFIX}*/{MANIFEST}"))
