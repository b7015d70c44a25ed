"""Jobs on a cluster: find, read and delete them with the user's own rights."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from elasticdl.cluster.kubernetes.apiserver import ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.job_state import JobState, job_state
from elasticdl.cluster.kubernetes.labels import (
    ROLE_LABEL,
    secret_name,
    selector,
    viewer_secret_name,
)
from elasticdl.cluster.kubernetes.manifests import AUTHORITY_KEY, TOKEN_KEY
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
        path = f"/apis/batch/v1/namespaces/{self._namespace}/jobs/{name}"
        try:
            job = await self._api.get(path)
        except ApiRefused as refused:
            if refused.status.code == 404:
                return None
            raise self._not_allowed(refused, "get jobs") from refused
        if (job["metadata"].get("labels") or {}).get("app.kubernetes.io/name") != "elasticdl":
            return None
        wanted = {**selector(name), **({} if whole else {ROLE_LABEL: "master"})}
        own = ",".join(f"{key}={value}" for key, value in wanted.items())
        return job_state(
            job,
            await self._list(
                f"/api/v1/namespaces/{self._namespace}/pods", {"labelSelector": own}, "list pods"
            ),
        )

    async def access(self, state: JobState) -> JobAccess | None:
        """What the job's owner needs to talk to its master; None until that has created it."""
        return await self._access(state, secret_name(state.name))

    async def viewer_access(self, state: JobState) -> JobAccess | None:
        """The same for a viewer, with the viewer's token."""
        return await self._access(state, viewer_secret_name(state.name))

    async def _access(self, state: JobState, secret_name: str) -> JobAccess | None:
        path = f"/api/v1/namespaces/{self._namespace}/secrets/{secret_name}"
        try:
            secret = await self._api.get(path)
        except ApiRefused as refused:
            if refused.status.code == 404:
                return None
            raise self._not_allowed(refused, "get secrets") from refused
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
        try:
            await self._api.delete(
                path, {"propagationPolicy": "Background", "preconditions": {"uid": state.uid}}
            )
        except ApiRefused as refused:
            if refused.status.code not in (404, 409):
                raise self._not_allowed(refused, "delete jobs") from refused

    async def _list(self, path: str, query: Mapping[str, str], what: str) -> list[Json]:
        items: list[Json] = []
        more = ""
        while True:
            page = {**query, "limit": _PAGE, **({"continue": more} if more else {})}
            try:
                answer = await self._api.get(path, page)
            except ApiRefused as refused:
                raise self._not_allowed(refused, what) from refused
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

    def _not_allowed(self, refused: ApiRefused, what: str) -> ClusterRefused:
        if refused.status.code == 401:
            return ClusterRefused(
                "the cluster does not accept your credentials",
                hint="see `kubectl auth whoami` and `kubectl config view`",
            )
        if refused.status.code == 403:
            return ClusterRefused(
                f"you may not {what} in namespace {self._namespace}",
                hint="ask the cluster's administrator; see `kubectl auth can-i --list -n"
                f" {self._namespace}`",
            )
        return ClusterRefused(f"the cluster refuses to {what}: {refused.message}")


def _text(secret: Mapping[str, Any], key: str) -> str:
    try:
        return base64.b64decode((secret.get("data") or {}).get(key, ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
