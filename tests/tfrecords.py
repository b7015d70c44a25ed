"""Write TFRecord files without TensorFlow."""

from __future__ import annotations

import struct

from elasticdl.native._native import crc32c


def framed(data: bytes) -> bytes:
    """A record with its length and checksums."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
