"""The Secrets with the tokens of a job's processes.

A pod names one key of one Secret, so its description contains no token, and its process gets no
other process's. Each Secret has the tokens of 64 processes that may come, and lives as long as the
job: the master needs no right but to create Secrets, and churn does not fill the namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias, final

from elasticdl.cluster.base import CreateRefused, ProcessName
from elasticdl.cluster.kubernetes.api_refusals import refusal
from elasticdl.cluster.kubernetes.apiserver import ApiAway, ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.job_objects import process_secret
from elasticdl.cluster.kubernetes.plans import Json, Owner

TokenOf: TypeAlias = Callable[[ProcessName], str]


@final
class ProcessSecrets:
    """Creates them before their pods. Use it from one event loop.

    Equal tokens are derived again after a restart, so an existing Secret of that name has them: its
    name contains the job's uid.
    """

    def __init__(self, api: ApiServer, owner: Owner, token_of: TokenOf) -> None:
        self._api, self._owner, self._token_of = api, owner, token_of
        self._path = f"/api/v1/namespaces/{owner.namespace}/secrets"
        self._created: dict[str, Json] = {}
        self._creating: dict[str, asyncio.Task[None]] = {}

    async def provide(self, name: ProcessName) -> None:
        """Create the Secret of this process, unless it was. Raises CreateRefused."""
        secret = process_secret(self._owner, name, self._token_of)
        if (key := secret["metadata"]["name"]) in self._created:
            return
        # Processes that start together share most Secrets, and one request for each of them.
        creating = self._creating.get(key)
        if creating is None:
            creating = self._creating[key] = asyncio.ensure_future(self._provide(key, secret))
            creating.add_done_callback(lambda _: self._creating.pop(key))
        await asyncio.shield(creating)

    async def _provide(self, key: str, secret: Json) -> None:
        try:
            await self._api.create_unseen(self._path, secret)
        except ApiRefused as refused:
            raise refusal(refused.status.code, refused.message) from refused
        except ApiAway as away:
            raise CreateRefused(f"cannot create secret {key}: {away.message}", retry=True) from away
        self._created[key] = secret

    async def mend(self) -> list[str]:
        """Create what was deleted; return the names. Raises ApiAway, ApiRefused."""
        return [
            name
            for name, secret in tuple(self._created.items())
            if await self._api.create_unseen(self._path, secret)
        ]
