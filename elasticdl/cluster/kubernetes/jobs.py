"""Jobs on a cluster: find, read and delete them with the user's own rights."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

from elasticdl.cluster.kubernetes.apiserver import ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.job_objects import AUTHORITY_KEY, TOKEN_KEY
from elasticdl.cluster.kubernetes.job_state import JobState, job_state
from elasticdl.cluster.kubernetes.labels import (
    ROLE_LABEL,
    secret_name,
    selector,
    viewer_secret_name,
)
from elasticdl.cluster.kubernetes.plans import Json
from elasticdl.cluster.kubernetes.pods import uid
from elasticdl.cluster.kubernetes.usage import ClusterUsage, cluster_usage
from elasticdl.errors import ClusterRefused
from elasticdl.job_name import is_valid

_ALL = "app.kubernetes.io/name=elasticdl"
_PAGE = "500"


@final
@dataclass(frozen=True, slots=True)
class JobAccess:
    """The job's token, and the certificate (PEM) that verifies its master; None: no TLS."""

    token: str = field(repr=False)
    authority: str | None


@final
class Jobs:
    """The jobs of one namespace.

    Every method raises PermanentError (exit code 3) if a right is missing, and ApiAway.
    """

    def __init__(self, api: ApiServer, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    async def all(self, *, everywhere: bool = False) -> tuple[JobState, ...]:
        """Every job, the newest first, without its workers' pods.

        `everywhere`: in all namespaces.
        """
        within = "" if everywhere else f"/namespaces/{self._namespace}"
        jobs = await self._list(
            f"/apis/batch/v1{within}/jobs", {"labelSelector": _ALL}, "list jobs"
        )
        masters = await self._list(
            f"/api/v1{within}/pods", {"labelSelector": f"{_ALL},{ROLE_LABEL}=master"}, "list pods"
        )
        every = [job_state(job, masters) for job in jobs]
        return tuple(sorted(every, key=lambda state: -state.created_wall_s))

    async def usage(self, now_wall_s: float, *, everywhere: bool = False) -> ClusterUsage:
        """What the jobs have, want and wait for, and the cluster's utilisation.

        `everywhere`: jobs of all namespaces. Nodes and pods of others that the user may not list
        are left out of account.
        """
        within = "" if everywhere else f"/namespaces/{self._namespace}"
        jobs, pods = await asyncio.gather(
            self._list(f"/apis/batch/v1{within}/jobs", {"labelSelector": _ALL}, "list jobs"),
            self._list(f"/api/v1{within}/pods", {"labelSelector": _ALL}, "list pods"),
        )
        nodes, every_pod = await asyncio.gather(
            self._list_if_allowed("/api/v1/nodes"), self._list_if_allowed("/api/v1/pods")
        )
        return cluster_usage(jobs, pods, nodes, every_pod, now_wall_s)

    async def namespaces(self) -> list[str]:
        """The names of the cluster's namespaces, if the user may list them."""
        return [
            str(namespace["metadata"]["name"])
            for namespace in await self._list("/api/v1/namespaces", {}, "list namespaces")
        ]

    async def one(self, name: str, *, whole: bool = False) -> JobState | None:
        """A job with its masters' pods, or (`whole`) with all its pods.

        None if there is no ElasticDL job of that name.
        """
        if not is_valid(name):
            return None  # such a name cannot be a job's, and would change the URL
        with self._allowed_to("get jobs"):
            job = await self._api.find(f"/apis/batch/v1/namespaces/{self._namespace}/jobs/{name}")
        labels = {} if job is None else job["metadata"].get("labels") or {}
        if job is None or labels.get("app.kubernetes.io/name") != "elasticdl":
            return None
        wanted = {**selector(name), **({} if whole else {ROLE_LABEL: "master"})}
        own = ",".join(f"{key}={value}" for key, value in wanted.items())
        return job_state(
            job,
            await self._list(
                f"/api/v1/namespaces/{self._namespace}/pods", {"labelSelector": own}, "list pods"
            ),
        )

    async def access(self, state: JobState, *, read_only: bool = False) -> JobAccess | None:
        """What the job's owner needs to talk to its master; None until that has created it.

        `read_only`: what a viewer needs, with the viewer's token.
        """
        name = viewer_secret_name(state.name) if read_only else secret_name(state.name)
        with self._allowed_to("get secrets"):
            secret = await self._api.find(f"/api/v1/namespaces/{self._namespace}/secrets/{name}")
        if secret is None:
            return None
        owners = {owner.get("uid") for owner in secret["metadata"].get("ownerReferences") or ()}
        token = _text(secret, TOKEN_KEY)
        if not token or state.uid not in owners:
            return None
        return JobAccess(token, _text(secret, AUTHORITY_KEY) or None)

    async def latest_warning(self, about: Mapping[str, Any]) -> str:
        """The cluster's latest warning about a pod or a Job.

        '' if there is none or it is hidden.
        """
        query = {"fieldSelector": f"involvedObject.uid={uid(about)},type=Warning", "limit": _PAGE}
        try:
            events = (
                await self._api.get(f"/api/v1/namespaces/{self._namespace}/events", query)
            ).get("items") or []
        except ApiRefused:
            return ""
        newest: Json = max(
            events,
            key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""),
            default={},
        )
        return str(newest.get("message") or "").strip()

    async def delete(self, state: JobState) -> None:
        """Delete the Job, and with it all objects that it owns. It may be gone already."""
        path = f"/apis/batch/v1/namespaces/{self._namespace}/jobs/{state.name}"
        with self._allowed_to("delete jobs"):
            await self._api.delete(path, {"propagationPolicy": "Background"}, uid=state.uid)

    async def _list(self, path: str, query: Mapping[str, str], what: str) -> list[Json]:
        items: list[Json] = []
        more = ""
        while True:
            page = {**query, "limit": _PAGE, **({"continue": more} if more else {})}
            with self._allowed_to(what):
                answer = await self._api.get(path, page)
            items += answer.get("items") or []
            more = str((answer.get("metadata") or {}).get("continue") or "")
            if not more:
                return items

    async def _list_if_allowed(self, path: str) -> list[Json] | None:
        """None without the right; raises ApiAway."""
        try:
            return await self._list(path, {}, "list")
        except ClusterRefused:
            return None

    @contextmanager
    def _allowed_to(self, what: str) -> Iterator[None]:
        """Say what the user lacks to do that, if the API server refuses it."""
        try:
            yield
        except ApiRefused as refused:
            message, hint = f"the cluster refuses to {what}: {refused.message}", ""
            if refused.status.code == 401:
                message = "the cluster does not accept your credentials"
                hint = "see `kubectl auth whoami` and `kubectl config view`"
            elif refused.status.code == 403:
                message = f"you may not {what} in namespace {self._namespace}"
                see = f"`kubectl auth can-i --list -n {self._namespace}`"
                hint = f"ask the cluster's administrator; see {see}"
            raise ClusterRefused(message, hint=hint) from refused


def _text(secret: Mapping[str, Any], key: str) -> str:
    try:
        return base64.b64decode((secret.get("data") or {}).get(key, ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
