"""Memory of parameter servers that outlives their processes.

One file without a name or a disk for each index, which every incarnation of that server inherits.
The kernel frees it when the last process that has it ends, so a job leaves nothing behind.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import final

_log = logging.getLogger(__name__)


@final
class KeptMemories:
    """The holder's end. Use it from one thread."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}
        self._possible = True

    def descriptor(self, index: int) -> int | None:
        """The file of a server, made at the first call; its process inherits the descriptor.

        None if this system has no such files. Servers then do without.
        """
        if index not in self._files and self._possible:
            self._files |= self._made(index)
        return self._files.get(index)

    def free(self, index: int) -> None:
        """Give up the file of a server that will have no further process."""
        if (file := self._files.pop(index, None)) is not None:
            os.close(file)

    def close(self) -> None:
        """Give all up: they end with the processes that still have them."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _made(self, index: int) -> dict[int, int]:
        try:
            file = os.memfd_create(f"elasticdl-ps-{index}")
            # A server reopens it, by this path.
            with suppress(FileNotFoundError):
                os.close(os.open(path_of(file), os.O_RDWR))
                return {index: file}
            os.close(file)
        except OSError as error:
            _log.warning(
                "parameter servers keep no memory beyond their processes: %s",
                error.strerror or error,
            )
        self._possible = False
        return {}


def path_of(descriptor: int) -> str:
    """Where the process that has this descriptor finds the file."""
    return f"/proc/self/fd/{descriptor}"
