"""The flags of a job at an address: where they are, and whether they are still the same."""

from __future__ import annotations

import hashlib

from elasticdl.storage.address import below


def flags_at(address: str) -> str:
    """Return the address of the flags of the job at an address, for -f."""
    return below(address, "job.yaml")


def digest_of(flags: bytes) -> str:
    """Return the SHA-256 of a file of flags."""
    return hashlib.sha256(flags).hexdigest()
