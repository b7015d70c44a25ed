"""The processes of an earlier master that have yet to attach again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, final

from elasticdl.cluster.base import ProcessName

_FEW: Final = 50
"""At most this many attach at once without delay, whatever else a master has to do."""
_QUIET_S: Final = 1.0
"""When none has attached for so long, nobody waits for the rest: they may have died."""
_LOOKS: Final = 5
"""How many times the master checks, a second apart; then nobody waits any longer."""


@final
class ReturningProcesses:
    """Lets them attach again before anybody reports. Use it from one event loop.

    Thousands come at once. Most of them have a report, which costs a master twice as much as an
    attachment. In the order in which they come, the last one would wait for the reports of all.
    """

    def __init__(self) -> None:
        self._missing: set[ProcessName] = set()
        self._all_are_back: asyncio.Future[None] | None = None
        """While reports wait."""

    def expect(self, names: Iterable[ProcessName]) -> None:
        """Expect these processes, from now on."""
        self._missing.update(names)
        if len(self._missing) > _FEW:
            self._all_are_back = asyncio.get_running_loop().create_future()
            self._look_later(_LOOKS)

    def came(self, name: ProcessName) -> None:
        """Note that a process has attached again, or never will."""
        self._missing.discard(name)
        if not self._missing:
            self._go_on()

    async def all_are_back(self) -> None:
        """Wait until all have attached again, or the rest does not come."""
        if self._all_are_back is not None:
            # A call may be cancelled; the others wait on.
            await asyncio.shield(self._all_are_back)

    def _look_later(self, looks: int) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(_QUIET_S, self._look, len(self._missing), looks - 1)

    def _look(self, missed: int, looks: int) -> None:
        # Nobody can attach before the master serves, which takes a moment: the first check does
        # not count.
        none_came = len(self._missing) == missed and looks < _LOOKS - 1
        if none_came or not looks:
            self._go_on()
        elif self._all_are_back is not None:
            self._look_later(looks)

    def _go_on(self) -> None:
        if self._all_are_back is not None:
            self._all_are_back.set_result(None)
            self._all_are_back = None
