"""Copies the job's small files to the address of `--job-dir` while this master runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import final

from elasticdl.jobdir.address_copy import AddressCopy
from elasticdl.jobdir.address_owner import AddressLost
from elasticdl.jobdir.working_directory import WorkingDirectory
from elasticdl.master.core.commands import Announce
from elasticdl.storage.attempts import RUNNING
from elasticdl.storage.copy_thread import CopyThread, Pace

PACE = Pace(first_s=0.0, patience_s=RUNNING.give_up_s)
"""The first copy is at once: without it another machine could not go on."""


@final
class DirectoryCopy:
    """Copies every 30 s. The job's command copies what is left when the job has ended."""

    def __init__(
        self, address: str, announce: Callable[[Announce], None], pace: Pace = PACE
    ) -> None:
        """Use it on the event loop, on which `announce` is called."""
        self._address, self._announce, self._pace = address, announce, pace
        self._loop = asyncio.get_running_loop()
        self._copy = AddressCopy(WorkingDirectory.of(address))
        self._lost = False
        self._thread = CopyThread(self._copy_changed, self._changed, pace)

    def start(self) -> None:
        """Start to copy."""
        self._thread.start()

    def close(self) -> None:
        """Stop before the next file; waits at most 20 s for those on their way."""
        self._copy.stop()
        self._thread.close(last=False)

    def _copy_changed(self) -> None:
        try:
            self._copy.copy()
        except AddressLost as error:
            # The other command may be refused, and leave the address to us.
            if not self._lost:
                self._tell(error.message, "warning")
            self._lost = True
            return
        if self._lost:
            self._lost = False
            self._changed("")

    def _tell(self, text: str, level: str) -> None:
        """Announce an event; called in the thread that copies."""
        with suppress(RuntimeError):  # The loop has ended, and the record with it.
            event = Announce("checkpoint", text, level=level)
            self._loop.call_soon_threadsafe(self._announce, event)

    def _changed(self, why: str) -> None:
        if why:
            text = f"the job's files are not copied to {self._address}: {why}"
            self._tell(f"{text}; trying again every {self._pace.every_s:.0f} s", "warning")
        else:
            self._tell(f"the job's files are copied to {self._address} again", "info")
