"""The tenure of a master in a pod: it holds the job's Lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import final

from elasticdl.cluster.kubernetes.master_lease import MasterLease
from elasticdl.errors import MasterSuperseded

_LOG = logging.getLogger(__name__)
_LOOK_EVERY_S = 0.1
_TELL_AFTER_S = 2.0


@final
class LeaseTenure:
    """Renews the Lease while its context lasts. Use it from one event loop.

    While the API server is away, the Lease cannot be renewed and becomes doubtful. Then the journal
    decides: a master acts as long as that shows no later one. So an outage stops no job.
    """

    def __init__(self, lease: MasterLease) -> None:
        self._lease = lease
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LeaseTenure:
        self._renewing = asyncio.ensure_future(self._lease.keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._renewing is not None
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)

    async def confirm(self, fenced: Callable[[], bool]) -> None:
        waited_s = 0.0
        while not self._lease.valid and not fenced():
            if self._renewing is not None and self._renewing.done():
                await self._renewing  # Raises MasterSuperseded.
            if waited_s < _TELL_AFTER_S <= waited_s + _LOOK_EVERY_S:
                _LOG.warning(
                    "cannot renew the job's Lease, and the journal does not tell whether another"
                    " master acts: waiting for the API server"
                )
            waited_s += _LOOK_EVERY_S
            await asyncio.sleep(_LOOK_EVERY_S)

    async def lost(self) -> str:
        assert self._renewing is not None
        try:
            # A cancelled caller must not end the renewals.
            await asyncio.shield(self._renewing)
        except MasterSuperseded as superseded:
            return superseded.message
        raise AssertionError("the Lease is renewed until it is lost")
