"""Headers of Arrow IPC: what its messages and footers say, without their bodies.

They are flatbuffers; see Message.fbs, Schema.fbs and File.fbs of Arrow's format. pyarrow reads
messages only together with their bodies, which are nearly all of a file.

Every function raises ValueError or struct.error for bytes that are none.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

MAGIC = b"ARROW1"
CONTINUATION = b"\xff\xff\xff\xff"
END_MARK = CONTINUATION + bytes(4)
"""The end of a stream: a message without a header. Any other begins with the header's size."""


class Kind(IntEnum):
    """What a message is."""

    SCHEMA = 1
    DICTIONARY = 2
    BATCH = 3


@dataclass(frozen=True, slots=True)
class Message:
    """What it is, its rows if it is a batch, and the bytes behind its header."""

    kind: Kind
    rows: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Where a record batch of a file is: its header, which begins with its size, then its body."""

    offset: int
    header_bytes: int
    body_bytes: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.header_bytes + self.body_bytes


def header_bytes(start: bytes) -> int:
    """The size of the header, from the first 8 bytes of a message; 0 at the end of the stream."""
    if not start.startswith(CONTINUATION):
        raise ValueError("not a message of Arrow IPC, or one from before Arrow 0.15")
    (size,) = struct.unpack_from("<i", start, len(CONTINUATION))
    if size < 0:
        raise ValueError(f"a header of {size} bytes")
    return int(size)


def message_of(header: bytes) -> Message:
    """The message with this header."""
    (root,) = struct.unpack_from("<I", header)
    kind_at, table_at, body_at = (_field(header, root, number) for number in (1, 2, 3))
    if not 0 < kind_at < len(header) or not table_at:
        raise ValueError("a message without a header")
    kind = Kind(header[kind_at])
    rows_at = _field(header, _target(header, table_at), 0) if kind is Kind.BATCH else 0
    message = Message(kind, _long(header, rows_at), _long(header, body_at))
    if message.rows < 0 or message.body_bytes < 0:
        raise ValueError(f"a message of {message.rows} rows and {message.body_bytes} bytes")
    return message


def batches_of(footer: bytes) -> list[BatchRange]:
    """The record batches that the footer of a file lists, in their order."""
    (root,) = struct.unpack_from("<I", footer)
    list_at = _field(footer, root, 3)
    if not list_at:
        return []
    first = _target(footer, list_at)
    (count,) = struct.unpack_from("<I", footer, first)
    block = struct.Struct("<qi4xq")
    if count * block.size > len(footer):
        raise ValueError(f"a footer of {count} batches in {len(footer)} bytes")
    places = [
        BatchRange(*block.unpack_from(footer, first + 4 + number * block.size))
        for number in range(count)
    ]
    for place in places:
        if min(place.offset, place.header_bytes, place.body_bytes) < 0:
            raise ValueError(f"a record batch at {place}")
    return places


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table is; 0 if it has its default."""
    (back,) = struct.unpack_from("<i", data, table)
    directory = table - back
    if directory < 0:
        raise ValueError("an offset before the beginning")
    (size,) = struct.unpack_from("<H", data, directory)
    if size < 4 + 2 * (number + 1):
        return 0
    (offset,) = struct.unpack_from("<H", data, directory + 4 + 2 * number)
    return table + int(offset) if offset else 0


def _target(data: bytes, at: int) -> int:
    (distance,) = struct.unpack_from("<I", data, at)
    return at + int(distance)


def _long(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<q", data, at)[0]) if at else 0
