"""Whether a master may act for its job: another one may have replaced it without its knowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn, Protocol, final


class Tenure(Protocol):
    """The right of one master to act for its job."""

    async def confirm(self, fenced: Callable[[], bool]) -> None:
        """Return when this master may act upon what it has just written into its journal.

        `fenced` tells by the journal that no later master has read it before that. It is asked
        where nothing else tells. Raises MasterSuperseded.
        """

    async def lost(self) -> str:
        """Wait until another master takes the job over; return how."""


@final
class SoleMaster:
    """The tenure of a master whose platform never runs two at once."""

    async def confirm(self, fenced: Callable[[], bool]) -> None:
        return

    async def lost(self) -> NoReturn:
        while True:
            await asyncio.sleep(3600.0)
