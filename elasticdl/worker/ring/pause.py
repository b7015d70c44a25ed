"""How long a change of the ring's members interrupted training, and what took the time."""

from __future__ import annotations

import time
from typing import final


@final
class Pause:
    """The time from the last step in one ring, or the beginning, to the first step in the next.

    Belongs to the loop's thread.
    """

    def __init__(self) -> None:
        self._begin_s = self._lap_s = time.monotonic()
        self._laps_ms: dict[str, float] = {}

    def lap(self, what: str) -> None:
        """Add the time since the last lap to `what`."""
        now_s = time.monotonic()
        self._laps_ms[what] = self._laps_ms.get(what, 0.0) + (now_s - self._lap_s) * 1e3
        self._lap_s = now_s

    def __str__(self) -> str:
        laps = ", ".join(f"{what} {took_ms:.0f}" for what, took_ms in self._laps_ms.items())
        return f"{(self._lap_s - self._begin_s) * 1e3:.0f} ms ({laps})"
