"""The single file of a ring's checkpoint: every array of the training state by name, at one step.

`EDLRING1`, uint64 size of the header, the header as JSON (`version`; name, dtype and shape of each
array), then the bytes of the arrays in that order, little-endian, C order.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from elasticdl.checkpoint import directories
from elasticdl.checkpoint.manifest import PartFile, checksum_of
from elasticdl.errors import Corrupted, UserError
from elasticdl.native import _native
from elasticdl.private_file import private

NAME = "ring.bin"
_NAMES = re.compile(r"ring(-[0-9a-f]+)?\.bin")
"""In an object store the name is new each time."""

_MAGIC = b"EDLRING1"
_FRONT = struct.Struct("<8sQ")
_MAX_HEADER_BYTES = 64 << 20
_MAX_RANK = 32  # of NumPy 1; no variable comes near


@final
@dataclass(frozen=True, slots=True)
class ArrayShape:
    """The shape of an array, and the name of its dtype."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"shape {self.shape}, {self.dtype}"


class _Array(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    dtype: str
    shape: tuple[Annotated[int, Field(ge=0, le=2**62)], ...]


class _Header(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = Field(ge=0, le=2**62)
    arrays: tuple[_Array, ...]


def write(directory: Path, version: int, arrays: Mapping[str, NDArray[np.generic]]) -> PartFile:
    """Write the file and make it durable. Raises OSError."""
    described = tuple(
        _Array(name=name, dtype=str(array.dtype), shape=array.shape)
        for name, array in arrays.items()
    )
    header = _Header(version=version, arrays=described).model_dump_json().encode()
    crc, size = 0, 0
    with open(directory / NAME, "wb", opener=private) as file:
        for piece in (_FRONT.pack(_MAGIC, len(header)), header, *map(_bytes_of, arrays.values())):
            file.write(piece)
            # Computed while writing: reading the file again would only test the page cache.
            crc, size = _native.crc32c(piece, crc), size + len(piece)
        file.flush()
        os.fsync(file.fileno())
    return PartFile(name=NAME, bytes=size, checksum=checksum_of(crc))


def read(directory: Path) -> tuple[int, dict[str, NDArray[np.generic]]]:
    """Version and arrays of a ring's checkpoint.

    Raises Corrupted, and UserError for a checkpoint of servers.
    """
    part = _part(directory)
    directories.verify_part(directory, part)
    with (directory / part.name).open("rb") as file:
        header, sizes = _header(file, part)
        return header.version, {
            array.name: np.frombuffer(file.read(bytes_), array.dtype).reshape(array.shape)
            for array, bytes_ in zip(header.arrays, sizes, strict=True)
        }


def shapes(directory: Path) -> dict[str, ArrayShape]:
    """The arrays of a ring's checkpoint by name, without their values. Raises as `read`."""
    part = _part(directory)
    try:
        with (directory / part.name).open("rb") as file:
            header, _ = _header(file, part)
    except OSError as error:
        raise Corrupted(f"{directory / part.name}: {error.strerror or error}") from error
    return {array.name: ArrayShape(array.shape, array.dtype) for array in header.arrays}


def _part(directory: Path) -> PartFile:
    manifest = directories.read_manifest(directory)
    part = next((file for file in manifest.files if _NAMES.fullmatch(file.name)), None)
    if part is None:
        raise UserError(
            f"{directory} was written by parameter servers: a ring cannot use it",
            hint=(
                "train with --distribution-strategy ParameterServerStrategy, or start without a"
                " checkpoint"
            ),
        )
    return part


def _header(file: BinaryIO, part: PartFile) -> tuple[_Header, list[int]]:
    """Read the header, and the bytes of each array. Raises Corrupted."""
    front = file.read(_FRONT.size)
    if len(front) < _FRONT.size:
        raise Corrupted(f"{file.name} has only {len(front)} bytes: not a checkpoint of a ring")
    magic, size = _FRONT.unpack(front)
    if magic != _MAGIC or size > _MAX_HEADER_BYTES:
        raise Corrupted(f"{file.name} begins with {magic!r}: not a checkpoint of a ring")
    try:
        header = _Header.model_validate_json(file.read(size))
        sizes = [_size(array) for array in header.arrays]
    except (ValidationError, ValueError) as error:
        raise Corrupted(f"{file.name}: {error}") from error
    whole = _FRONT.size + size + sum(sizes)
    if whole != part.bytes:
        raise Corrupted(f"{file.name} has {part.bytes} bytes, its header says {whole}")
    return header, sizes


def _bytes_of(array: NDArray[np.generic]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _size(array: _Array) -> int:
    """Return an array's bytes. Raises ValueError for a type or shape that no array has."""
    try:
        dtype = np.dtype(array.dtype)
    except TypeError as error:
        raise ValueError(f"{array.name} has type {array.dtype!r}") from error
    if dtype.hasobject or dtype.itemsize == 0 or len(array.shape) > _MAX_RANK:
        raise ValueError(f"{array.name} has type {array.dtype!r} and shape {array.shape}")
    return math.prod(array.shape) * dtype.itemsize
