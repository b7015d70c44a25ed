"""One server's file of a checkpoint, and what a server of any layout reads of it.

Pure except for `read_header` and `header_of`; C++ moves the bytes themselves (checkpoint/native).

A file is `EDLPART1`, uint64 size of the header, the header as JSON padded with spaces, and the
sections in this order: trainable weights, each optimizer slot, additive weights,
then for each table blocks of at most 16,384 rows. A block has its int64 ids, the tags of its rows
if the file is `tagged`, then `dim x (1 + slots)` values of each row. All values are float32 or
float64, as the parameters in the header say. A tag is a uint32 step and a float32 learning rate:
when the row last moved.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from elasticdl.checkpoint.manifest import corrupted
from elasticdl.embedding.spec import ParametersSpec, even_slice
from elasticdl.errors import Corrupted

ADDITIVE, WEIGHTS = -2, -1
"""Sections of dense values; optimizer slots are 0, 1, ...."""

_MAGIC = b"EDLPART1"
_FRONT = struct.Struct("<8sQ")
_MAX_HEADER_BYTES = 64 << 20
_ID_BYTES = _TAG_BYTES = 8

# What the servers' C++ counts in.
_Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
_UInt64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
_Count = Annotated[int, Field(ge=0, le=2**62)]


class PartHeader(BaseModel):
    """The header of a file. Ranges are [begin, end) of the trainable and of the additive vector.

    `workers` has (session, sequence, shard, attempt, offset) of each worker's last push in it,
    which are valid only within the same `run`. The optimizer's step is `version - step_base`.
    `tagged`: rows are as they are stored, and their tags say which steps they have to make up for;
    if not, they are as they are at that step. `delta`: of the tables the file has only the rows
    that were changed since the checkpoint before it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: int = Field(ge=0)
    servers: int = Field(ge=1, le=2**31)
    version: _Count
    step_base: int = Field(ge=-(2**62), le=2**62)
    trainable: tuple[int, int]
    additive: tuple[int, int]
    rows: tuple[_Count, ...]
    workers: dict[str, tuple[_UInt64, _Int64, _Int64, _Int64, _Int64]]
    run: str
    parameters: ParametersSpec
    tagged: bool = False
    delta: bool = False

    def problem(self) -> str | None:
        """What contradicts itself in it, or cannot be held by any server; None if nothing does.

        Sizes are trusted after this only: memory is allocated by them.
        """
        spec = self.parameters
        if (unfit := spec.problem()) is not None:
            return unfit
        if self.server >= self.servers:
            return f"server {self.server} of {self.servers}"
        for name, mine, size in (
            ("trainable", self.trainable, spec.trainable_size),
            ("additive", self.additive, spec.additive_size),
        ):
            share = even_slice(size, self.server, self.servers)
            if mine != (share.start, share.stop):
                return f"{name} is {mine}: expected {share.start} to {share.stop}"
        if len(self.rows) != len(spec.tables):
            return f"rows of {len(self.rows)} tables, the parameters have {len(spec.tables)}"
        return None


@dataclass(frozen=True, slots=True)
class DenseRead:
    """Copy `count` values at `offset` of the file to [at, at + count) of `section`'s slice."""

    section: int
    offset: int
    at: int
    count: int


@dataclass(frozen=True, slots=True)
class TableRead:
    """`rows` rows of a table begin at `offset`; the reader takes those that it owns."""

    table: int
    offset: int
    rows: int


@dataclass(frozen=True, slots=True)
class Part:
    """A header, and where the sections begin in the file."""

    header: PartHeader
    begin: int

    def dense_reads(self, server: int, servers: int) -> Iterator[DenseRead]:
        """What server `server` of `servers` reads of the dense sections."""
        header, spec = self.header, self.header.parameters
        size = spec.dtype.bytes
        mine = even_slice(spec.trainable_size, server, servers)
        trainable = header.trainable[1] - header.trainable[0]
        for number in range(1 + spec.optimizer.slots):
            begin = self.begin + number * trainable * size
            yield from _overlap(WEIGHTS + number, begin, header.trainable, mine, size)
        begin = self.begin + (1 + spec.optimizer.slots) * trainable * size
        yield from _overlap(
            ADDITIVE, begin, header.additive, even_slice(spec.additive_size, server, servers), size
        )

    def table_reads(self, server: int, servers: int) -> Iterator[TableRead]:
        """Tables that may have rows of server `server` of `servers`.

        None if no id can belong to both.
        """
        # Server s of n owns the ids with id % n == s. Some id fits both layouts only if the two
        # remainders agree modulo gcd(n, m) (Chinese remainder theorem).
        if (self.header.server - server) % math.gcd(self.header.servers, servers):
            return
        offset = self._tables_begin()
        for table, rows in enumerate(self.header.rows):
            if rows:
                yield TableRead(table, offset, rows)
            offset += rows * self._row_bytes(table)

    @property
    def bytes(self) -> int:
        """Size of the whole file."""
        return self._tables_begin() + sum(
            rows * self._row_bytes(table) for table, rows in enumerate(self.header.rows)
        )

    def _tables_begin(self) -> int:
        header = self.header
        trainable, additive = (
            header.trainable[1] - header.trainable[0],
            header.additive[1] - header.additive[0],
        )
        return (
            self.begin
            + (trainable * (1 + header.parameters.optimizer.slots) + additive)
            * header.parameters.dtype.bytes
        )

    def _row_bytes(self, table: int) -> int:
        spec = self.header.parameters
        tag_bytes = _TAG_BYTES if self.header.tagged else 0
        return (
            _ID_BYTES
            + tag_bytes
            + spec.tables[table].dim * (1 + spec.optimizer.slots) * spec.dtype.bytes
        )


def _overlap(
    section: int, begin: int, theirs: tuple[int, int], mine: slice, size: int
) -> Iterator[DenseRead]:
    """The part of a section of values of `size` bytes that is `mine`."""
    first, last = max(theirs[0], mine.start), min(theirs[1], mine.stop)
    if first < last:
        yield DenseRead(
            section, begin + (first - theirs[0]) * size, first - mine.start, last - first
        )


def read_header(path: Path) -> Part:
    """Read a file's header.

    Raises Corrupted if it is no part of a checkpoint, if its header contradicts itself, or if it
    has another size than its header says; and OSError.
    """
    with path.open("rb") as file:
        return header_of(file.read, path.stat().st_size, str(path))


def header_of(read: Callable[[int], bytes], size_bytes: int, where: str) -> Part:
    """Read the header of a file of that size; `read` returns its next bytes.

    Raises Corrupted as `read_header`, and what `read` raises.
    """
    front = read(_FRONT.size)
    if len(front) < _FRONT.size:
        raise Corrupted(f"{where} has only {len(front)} bytes: not a part of a checkpoint")
    magic, size = _FRONT.unpack(front)
    # A damaged size must not make us read gigabytes.
    if magic != _MAGIC or size > _MAX_HEADER_BYTES:
        raise Corrupted(f"{where} begins with {front!r}: not a part of a checkpoint")
    try:
        header = PartHeader.model_validate_json(read(size))
    except ValidationError as error:
        raise corrupted(f"{where}: header", error) from error
    if (contradiction := header.problem()) is not None:
        raise Corrupted(f"{where}: {contradiction}")
    part = Part(header, _FRONT.size + size)
    if part.bytes != size_bytes:
        raise Corrupted(f"{where} has {size_bytes} bytes, its header says {part.bytes}")
    return part
