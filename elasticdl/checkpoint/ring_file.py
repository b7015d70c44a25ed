"""The one file of a ring's checkpoint: every array of the training state by name, as it was at one
step.

`EDLRING1`, uint64 size of the header, the header as JSON (`version`; of each array name, dtype,
shape), then the bytes of the
arrays in that order, little-endian, C order.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from elasticdl.checkpoint import store
from elasticdl.checkpoint.layout import PartFile
from elasticdl.errors import Corrupted, UserError
from elasticdl.native import _native

NAME = "ring.bin"

_MAGIC = b"EDLRING1"
_FRONT = struct.Struct("<8sQ")
_MAX_HEADER_BYTES = 64 << 20


class _Array(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    dtype: str
    shape: tuple[int, ...]


class _Header(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int
    arrays: tuple[_Array, ...]


def write(directory: Path, version: int, arrays: Mapping[str, NDArray[np.generic]]) -> PartFile:
    """Write the file and make it durable. Raises OSError."""
    told = tuple(
        _Array(name=name, dtype=str(one.dtype), shape=one.shape) for name, one in arrays.items()
    )
    header = _Header(version=version, arrays=told).model_dump_json().encode()
    crc, size = 0, 0
    with (directory / NAME).open("wb") as file:
        for piece in (_FRONT.pack(_MAGIC, len(header)), header, *map(_bytes_of, arrays.values())):
            file.write(piece)
            crc, size = _native.crc32c(piece, crc), size + len(piece)
        file.flush()
        os.fsync(file.fileno())
    return PartFile(name=NAME, bytes=size, checksum=f"crc32c:{crc:08x}")


def read(directory: Path) -> tuple[int, dict[str, NDArray[np.generic]]]:
    """Version and arrays of a checkpoint that a ring wrote.

    Raises Corrupted, and UserError for one of servers.
    """
    manifest = store.read_manifest(directory)
    part = next((one for one in manifest.files if one.name == NAME), None)
    if part is None:
        raise UserError(
            f"{directory} was written by parameter servers: a ring cannot go on from it",
            hint=(
                "train with --distribution-strategy ParameterServerStrategy, or begin without a"
                " checkpoint"
            ),
        )
    store.verify_part(directory, part)
    path = directory / NAME
    with path.open("rb") as file:
        magic, size = _FRONT.unpack(file.read(_FRONT.size))
        if magic != _MAGIC or size > _MAX_HEADER_BYTES:
            raise Corrupted(f"{path} begins with {magic!r}: it is no checkpoint of a ring")
        try:
            header = _Header.model_validate_json(file.read(size))
        except ValidationError as error:
            raise Corrupted(f"{path}: {error}") from error
        return header.version, {
            one.name: _array(file.read(_size(one)), one) for one in header.arrays
        }


def _bytes_of(array: NDArray[np.generic]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _size(one: _Array) -> int:
    return int(np.prod(one.shape, dtype=np.int64)) * np.dtype(one.dtype).itemsize


def _array(data: bytes, one: _Array) -> NDArray[np.generic]:
    return np.frombuffer(data, one.dtype).reshape(one.shape)
