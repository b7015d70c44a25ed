"""Tar archives for tests."""

from __future__ import annotations

import io
import tarfile


def add_member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file of this name with this content."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
