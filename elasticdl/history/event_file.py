"""Write TensorBoard event files: curves by step, for people who compare many jobs.

This module needs nothing of TensorBoard. A file is a TFRecord of `Event` messages
(tensorflow/core/util/event.proto). A scalar needs only a few of the fields:

    Event {1: wall_time double, 2: step int64, 3: file_version string,
           5: Summary {1: Value {1: tag string, 2: simple_value float}}}
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import final

from elasticdl.history.raw_file import RawFile
from elasticdl.native._native import crc32c

_LOG = logging.getLogger(__name__)
_VERSION = b"brain.Event:2"
_FIXED64, _LENGTH, _FIXED32 = 1, 2, 5


@final
class EventFile:
    """The scalars of one run.

    The first scalar creates the directory and the file. A full disk loses points and logs a
    warning.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: RawFile | None = None
        self._lost = False

    def add(self, values: Mapping[str, float], step: int, wall_s: float) -> None:
        """Append points of several curves at one step; `wall_s` is unix time.

        TensorBoard shows them when it next reads the file.
        """
        try:
            if self._file is None:
                self._file = self._made(wall_s)
                self._file.write(_record(_double(1, wall_s) + _bytes(3, _VERSION)))
            summary = b"".join(
                _bytes(1, _bytes(1, tag.encode()) + _float(2, value))
                for tag, value in values.items()
            )
            self._file.write(_record(_double(1, wall_s) + _integer(2, step) + _bytes(5, summary)))
        except OSError as error:
            if not self._lost:
                _LOG.warning(
                    "cannot write to %s: %s; TensorBoard lacks points until this is fixed",
                    self._directory,
                    error,
                )
            self._lost = True
            # TensorBoard reads nothing after a partial record, so later points need a new file.
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _made(self, wall_s: float) -> RawFile:
        self._directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a run in the order of their names.
        writer = f"{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        name = f"events.out.tfevents.{int(wall_s):010d}.{writer}.elasticdl"
        return RawFile(self._directory / name, "x")


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    """Encode a non-negative number."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def _integer(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _double(field: int, number: float) -> bytes:
    return _varint(field << 3 | _FIXED64) + struct.pack("<d", number)


def _float(field: int, number: float) -> bytes:
    try:
        packed = struct.pack("<f", number)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if number > 0 else float("-inf"))
    return _varint(field << 3 | _FIXED32) + packed


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _LENGTH) + _varint(len(content)) + content
