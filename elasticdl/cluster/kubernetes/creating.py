"""Create objects on an API server idempotently: a repeated request finds its own object."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import final

from elasticdl.clock import Clock
from elasticdl.cluster.base import CreateRefused
from elasticdl.cluster.kubernetes.api_refusals import refusal
from elasticdl.cluster.kubernetes.apiserver import ApiAway, ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.labels import JOB_UID_LABEL, collection
from elasticdl.cluster.kubernetes.plans import Json

_LOG = logging.getLogger(__name__)
LIMIT_S = 30.0
IN_FLIGHT = 32
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.2, 5.0


@final
class Creator:
    """Use it from one event loop.

    Creations may run in parallel. When the server asks for a pause, all of them pause.
    """

    def __init__(
        self, api: ApiServer, job_uid: str, clock: Clock, last_pause_s: float = _LAST_PAUSE_S
    ) -> None:
        """`last_pause_s`: the longest pause between two requests for one object."""
        self._api = api
        self._job_uid = job_uid
        self._clock, self._last_pause_s = clock, last_pause_s
        self._in_flight = asyncio.Semaphore(IN_FLIGHT)
        self._held_until_s = 0.0

    async def create(self, path: str, body: Json) -> Json:
        """The object, created now or found to be ours.

        `path` is that of its collection. Raises CreateRefused.
        """
        kind, name = str(body["kind"]), str(body["metadata"]["name"])
        end_s = self._clock.now_s() + LIMIT_S
        pause_s = _FIRST_PAUSE_S
        while True:
            await self._held(end_s)
            try:
                async with self._in_flight:
                    return await self._api.create(path, body)
            except ApiRefused as refused:
                # 409 may be our own object: the answer to an earlier request may have been lost.
                if refused.status.code != 409:
                    raise refusal(refused.status.code, refused.message) from refused
                problem = refused.message
                if refused.status.reason == "AlreadyExists" and (
                    existing := await self._ours(path, body)
                ):
                    return existing
            except ApiAway as away:
                problem = away.message
                if away.status is not None and away.status.code == 429:
                    # Shared by all creations: the server's limit is per client, not per request.
                    self._held_until_s = self._clock.now_s() + away.retry_after_s
                pause_s = max(pause_s, away.retry_after_s)
            pause_s = min(pause_s, self._last_pause_s) * random.uniform(0.8, 1.2)
            if self._clock.now_s() + pause_s > end_s:
                raise CreateRefused(
                    f"cannot create {kind.lower()} {name} within {LIMIT_S:g} s: {problem}",
                    retry=True,
                )
            _LOG.info("retrying to create %s in %.1f s: %s", name, pause_s, problem)
            await asyncio.sleep(pause_s)
            pause_s *= 2

    async def provide(self, objects: Iterable[Json], namespace: str) -> None:
        """Create objects that are missing. Raises CreateRefused."""
        for manifest in objects:
            await self.create(collection(manifest, namespace), manifest)

    async def _held(self, end_s: float) -> None:
        """Wait as long as the server asked all clients to.

        Raises CreateRefused if that is too long.
        """
        while (left_s := self._held_until_s - self._clock.now_s()) > 0:
            if self._clock.now_s() + left_s > end_s:
                raise CreateRefused(
                    f"the API server asks for a pause of {left_s:.0f} s: too many requests",
                    retry=True,
                )
            # Spread the requests after the pause.
            await asyncio.sleep(left_s * random.uniform(1.0, 1.2))

    def _left_behind(self, existing: Json, body: Json) -> bool:
        """Whether it belongs to an earlier Job of our Job's name, and will be deleted."""
        ours = {owner["name"] for owner in body["metadata"].get("ownerReferences") or ()}
        theirs = existing["metadata"].get("ownerReferences") or ()
        return any(
            owner["kind"] == "Job" and owner["name"] in ours and owner["uid"] != self._job_uid
            for owner in theirs
        )

    async def _ours(self, path: str, body: Json) -> Json | None:
        """The object of that name; None if it has gone, or is unreadable now.

        Raises CreateRefused if it is not ours.
        """
        kind, name = str(body["kind"]), str(body["metadata"]["name"])
        try:
            existing = await self._api.find(f"{path}/{name}")
        except ApiAway:
            return None
        except ApiRefused as refused:
            raise refusal(refused.status.code, refused.message) from refused
        if existing is None or (
            (existing["metadata"].get("labels") or {}).get(JOB_UID_LABEL) == self._job_uid
        ):
            return existing
        # The garbage collector deletes it with its Job; retry until then.
        if self._left_behind(existing, body):
            return None
        raise CreateRefused(
            f"{kind.lower()} {name} already exists and does not belong to this job", retry=False
        )
