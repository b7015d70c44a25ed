"""Keeps the copy of a small folder of a job in an object store, while the job writes to it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import final

from elasticdl.errors import ElasticDLError
from elasticdl.storage.address import below
from elasticdl.storage.attempts import STARTING
from elasticdl.storage.store import store_of

_LOG = logging.getLogger(__name__)
EVERY_S = 30.0
"""A store has no appends: each time, the whole of a file that grew is written."""
_CLOSE_S = 20.0


@final
class FolderCopy:
    """Uploads the files below a folder that have grown. A thread of its own waits for the store."""

    def __init__(self, folder: Path, address: str, every_s: float = EVERY_S) -> None:
        self._folder, self._address, self._every_s = folder, address, every_s
        self._copied_bytes: dict[Path, int] = {}
        self._failed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="folder copy", daemon=True)

    def start(self) -> None:
        """Start to copy."""
        self._thread.start()

    def close(self) -> None:
        """Copy the last changes; waits at most 20 s for the store."""
        self._closing.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while True:
            # Read before the last copy, so that it has what was written before `close`.
            closing = self._closing.wait(self._every_s)
            try:
                self._copy()
                self._failed = False
            except (OSError, ElasticDLError) as error:
                if not self._failed:
                    _LOG.warning(
                        "%s is not copied to %s: %s; trying again every %.0f s",
                        self._folder,
                        self._address,
                        error,
                        self._every_s,
                    )
                self._failed = True
            if closing:
                return

    def _copy(self) -> None:
        for path in sorted(self._folder.rglob("*")):
            if not path.is_file():
                continue
            size_bytes = path.stat().st_size
            if self._copied_bytes.get(path) != size_bytes:
                name = path.relative_to(self._folder).as_posix()
                store_of(self._address, STARTING).upload(path, below(self._address, name), STARTING)
                self._copied_bytes[path] = size_bytes
