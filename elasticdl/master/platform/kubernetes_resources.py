"""What a pod provides before its master starts: rights, the Lease, tokens, Kubernetes objects.

It can also end the processes of an earlier master, if this one cannot take them over.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NoReturn, TypeVar, final

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import CreateRefused
from elasticdl.cluster.kubernetes import rights
from elasticdl.cluster.kubernetes.api_refusals import refusal
from elasticdl.cluster.kubernetes.apiserver import ApiAway, ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.creating import Creator
from elasticdl.cluster.kubernetes.job_objects import (
    AUTHORITY_KEY,
    AUTHORITY_PRIVATE_KEY,
    TOKEN_KEY,
    UID_KEY,
    network_policy,
    services,
    token_secret,
    viewer_secret,
)
from elasticdl.cluster.kubernetes.labels import JOB_UID_LABEL, collection, master_selector
from elasticdl.cluster.kubernetes.master_lease import MasterLease
from elasticdl.cluster.kubernetes.plans import Json, Owner
from elasticdl.cluster.kubernetes.pods import has_ended, is_process, is_running, process_name, uid
from elasticdl.cluster.kubernetes.process_secrets import ProcessSecrets
from elasticdl.errors import (
    ClusterRefused,
    ElasticDLError,
    ExitCode,
    MasterSuperseded,
    TransientError,
)
from elasticdl.tls import CertifiedKey
from elasticdl.tls.authority import Authority
from elasticdl.tokens import new_token, viewer_token

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class Timing:
    """Limits and intervals, in seconds."""

    limit_s: float = 180.0
    """Time limit of all steps, including short outages of the API server. Then the pod restarts."""
    rights_limit_s: float = 10.0
    """The job's role may be new, so its rights may take a moment to apply."""
    namesake_s: float = 90.0
    """A master's grace period, and some time for the cluster to delete the old job."""
    force_after_s: float = 5.0
    stuck_after_s: float = 10.0
    """A finalizer holds a pod beyond this, and its process has ended or is refused."""
    look_every_s: float = 0.5
    keep_every_s: float = 30.0
    secret_again_s: float = 1.0


@final
@dataclass(frozen=True, slots=True)
class ProvisionedResources:
    """`replaces`: there was an earlier master of the job.

    Token and authority are those of all masters of the job; `authority` is None without TLS.
    """

    token: str = field(repr=False)
    replaces: bool
    authority: CertifiedKey | None = None


@final
class KubernetesResources:
    """Provides the resources. Use it from one event loop."""

    def __init__(
        self,
        api: ApiServer,
        owner: Owner,
        pod_name: str,
        token_folder: Path,
        timing: Timing = Timing(),
        *,
        secured: bool = False,
        pod_group: Json | None = None,
    ) -> None:
        """`secured`: the job's processes use TLS. `pod_group` is that of a job with a gang."""
        self._pod_group = pod_group
        self._timing, self._secured = timing, secured
        self._api, self._owner = api, owner
        self._creator = Creator(api, owner.uid, SystemClock())
        self._pod_name, self._token_folder = pod_name, token_folder
        self._pods = f"/api/v1/namespaces/{owner.namespace}/pods"

    async def take_over(self, lease: MasterLease) -> int:
        """Check the rights, and acquire the Lease once no other master acts; return the term.

        Raises PermanentError (exit code 3) if the cluster refuses, TransientError (69) after three
        minutes, MasterSuperseded if our pod is gone.
        """
        async with self._in_time():
            lacking = await self._heard(
                lambda: rights.lasting(self._missing, self._timing.rights_limit_s)
            )
            if lacking:
                raise _refused(rights.in_words(lacking, self._owner.namespace))
            await self._await_previous_master()
            least = await self._heard(self._created_s)
            return await self._heard(lambda: lease.acquire(least))

    async def provide(self) -> ProvisionedResources:
        """Create what is missing. Raises as `take_over`."""
        async with self._in_time():
            mounted = self._mounted()
            token, authority = mounted or await self._made()
            # A Secret of an earlier job of this name is in the way until the cluster deletes it;
            # `keep` creates ours then.
            await self._create_secret(self._viewer(token, authority))
            await self._objects()
        return ProvisionedResources(token, mounted is not None, authority)

    async def end_earlier(self) -> int:
        """End the processes of an earlier master; return their number. Raises as `take_over`."""
        async with self._in_time():
            return await self._heard(self._end_earlier)

    async def running(self) -> frozenset[str]:
        """Return the names of the job's processes that run. Raises ApiAway, ApiRefused."""
        selector = {"labelSelector": f"{JOB_UID_LABEL}={self._owner.uid}"}
        pods = (await self._api.get(self._pods, selector))["items"]
        return frozenset(
            str(process_name(pod)) for pod in pods if is_process(pod) and is_running(pod)
        )

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timing.limit_s):
                yield
        except TimeoutError as error:
            raise _unavailable(
                f"could not create the job's Kubernetes resources within"
                f" {self._timing.limit_s:g} s; see the log"
            ) from error

    async def _missing(self) -> rights.Rights:
        return await rights.missing(self._api, self._owner.namespace)

    async def _heard(self, call: Callable[[], Awaitable[T]]) -> T:
        return await heard(call, self._timing.secret_again_s)

    async def _created_s(self) -> int:
        """Return our pod's creation time by the API server's clock.

        It orders the terms of a job's masters also if somebody deletes their Lease. Raises
        MasterSuperseded if the pod is gone.
        """
        own = await self._api.find(f"{self._pods}/{self._pod_name}")
        if own is None:
            # By force, so that this process still runs: the Job makes another pod.
            raise MasterSuperseded(f"pod {self._pod_name} of this master was deleted")
        return int(datetime.fromisoformat(own["metadata"]["creationTimestamp"]).timestamp())

    async def _await_previous_master(self) -> None:
        """Wait for the master of a deleted job of the same name.

        It may use the same directory, and ends when the cluster deletes that job.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._timing.namesake_s
        while names := await self._heard(self._namesakes):
            if loop.time() > end_s:
                _LOG.warning(
                    "%s of an earlier job of this name still exists: continuing without waiting",
                    ", ".join(names),
                )
                return
            _LOG.info("waiting for %s of an earlier job of this name to end", ", ".join(names))
            await asyncio.sleep(self._timing.look_every_s)

    async def _namesakes(self) -> list[str]:
        masters = (
            await self._api.get(self._pods, {"labelSelector": master_selector(self._owner.job)})
        )["items"]
        return [
            str(pod["metadata"]["name"])
            for pod in masters
            if not has_ended(pod) and not self._owns(pod)
        ]

    def _owns(self, pod: Json) -> bool:
        return any(
            owner.get("uid") == self._owner.uid
            for owner in pod["metadata"].get("ownerReferences") or ()
        )

    # the token

    def _mounted(self) -> tuple[str, CertifiedKey | None] | None:
        """Return token and authority that an earlier master of this job made.

        None if there was none, or if it belongs to another job of this name.
        """

        def read(key: str) -> str:
            return (self._token_folder / key).read_text(encoding="ascii")

        try:
            if read(UID_KEY) != self._owner.uid:
                return None
            signing = (
                CertifiedKey(read(AUTHORITY_KEY), read(AUTHORITY_PRIVATE_KEY))
                if self._secured
                else None
            )
            return read(TOKEN_KEY), signing
        except OSError:
            return None

    async def _made(self) -> tuple[str, CertifiedKey | None]:
        """Create the Secret.

        An existing Secret may be ours, if the answer to our request was lost, or that of a deleted
        job of the same name. We may not read it, but a node mounts ours within a minute or two.
        """
        token = new_token()
        authority = Authority.new(self._owner.job).own if self._secured else None
        secret = token_secret(self._owner, token, authority)
        while True:
            if await self._create_secret(secret):
                return token, authority
            if mounted := self._mounted():
                return mounted
            _LOG.info(
                "Secret %s already exists: waiting until it is mounted or deleted",
                secret["metadata"]["name"],
            )
            await asyncio.sleep(self._timing.secret_again_s)

    async def _create_secret(self, secret: Json) -> bool:
        """Create a Secret; False if there is one of its name."""
        path = f"/api/v1/namespaces/{self._owner.namespace}/secrets"
        return await self._heard(lambda: self._api.create_unseen(path, secret))

    # pods and objects

    async def _end_earlier(self) -> int:
        """End the pods of an earlier master and wait until their names are free.

        The master gives up pods that do not end. Their processes have an earlier term, so everyone
        refuses them, however long they live. Such a pod keeps its name. A start of that process is
        then reported as lost, and its next incarnation has another name.
        """
        loop = asyncio.get_running_loop()
        force_at_s, stuck_at_s = loop.time() + self._timing.force_after_s, math.inf
        asked: set[tuple[str, int]] = set()
        processes: set[str] = set()
        while pods := (
            await self._api.get(self._pods, {"labelSelector": f"{JOB_UID_LABEL}={self._owner.uid}"})
        )["items"]:
            now_s = loop.time()
            processes |= {uid(pod) for pod in pods if is_process(pod)}
            if now_s > stuck_at_s:
                held = ", ".join(str(pod["metadata"]["name"]) for pod in pods)
                _LOG.warning(
                    "%s of the previous master cannot be deleted, perhaps because of a finalizer:"
                    " continuing without waiting",
                    held,
                )
                break
            grace_s = 1 if now_s < force_at_s else 0
            if not grace_s:
                # Count from the request, which may be late if this process was suspended.
                stuck_at_s = min(stuck_at_s, now_s + self._timing.stuck_after_s)
            for pod in pods:
                if (key := (str(pod["metadata"]["uid"]), grace_s)) not in asked:
                    asked.add(key)
                    await self._end(pod, grace_s)
            await asyncio.sleep(self._timing.look_every_s)
        return len(processes)

    async def _end(self, pod: Json, grace_s: int) -> None:
        name = pod["metadata"]["name"]
        _LOG.info("deleting %s of the previous master%s", name, "" if grace_s else " by force")
        path = f"{self._pods}/{name}"
        await self._api.delete(path, {"gracePeriodSeconds": grace_s}, uid=uid(pod))

    async def _objects(self) -> None:
        """Create what `_lasting` has before the first process needs it."""
        while True:
            try:
                await self._creator.provide(self._lasting(), self._owner.namespace)
                return
            except CreateRefused as refused:
                if not refused.retry:
                    raise _refused(refused.reason) from refused
                _LOG.warning("%s; retrying in %g s", refused.reason, self._timing.secret_again_s)
                await asyncio.sleep(self._timing.secret_again_s)

    # later

    def _lasting(self) -> list[Json]:
        return [
            *services(self._owner, secured=self._secured),
            network_policy(self._owner),
            *([self._pod_group] if self._pod_group is not None else []),
        ]

    async def keep(
        self, token: str, secrets: ProcessSecrets, authority: CertifiedKey | None = None
    ) -> NoReturn:
        """Recreate deleted objects until cancelled.

        Without its Secret no pod starts; without the Services no process finds another.
        """
        while True:
            await asyncio.sleep(self._timing.keep_every_s)
            try:
                await self._mend(token, secrets, authority)
            except (ElasticDLError, CreateRefused) as error:
                _LOG.info("cannot check the job's Kubernetes resources: %s", error)

    async def _mend(
        self, token: str, secrets: ProcessSecrets, authority: CertifiedKey | None
    ) -> None:
        for manifest in self._lasting():
            name, path = manifest["metadata"]["name"], collection(manifest, self._owner.namespace)
            if await self._api.find(f"{path}/{name}") is None:
                _LOG.warning("%s %s was deleted: creating it again", manifest["kind"], name)
                await self._creator.create(path, manifest)
        # We may not read a Secret, so try to create it; usually it exists.
        again = await secrets.mend()
        own = token_secret(self._owner, token, authority)
        for secret in (own, self._viewer(token, authority)):
            if await self._create_secret(secret):
                again.append(secret["metadata"]["name"])
        for name in again:
            _LOG.warning("Secret %s was deleted: creating it again", name)

    def _viewer(self, token: str, authority: CertifiedKey | None) -> Json:
        return viewer_secret(self._owner, viewer_token(token), authority)


async def heard(call: Callable[[], Awaitable[T]], again_s: float) -> T:
    """Retry while the API server is away, and every `again_s` while the refusal is temporary.

    It has no limit of its own. Raises ClusterRefused.
    """
    while True:
        try:
            return await call()
        except ApiAway as away:
            _LOG.warning("%s; retrying in %g s", away.message, away.retry_after_s)
            await asyncio.sleep(away.retry_after_s)
        except ApiRefused as refused:
            verdict = refusal(refused.status.code, refused.message)
            if not verdict.retry:
                raise _refused(verdict.reason) from refused
            _LOG.warning("%s; retrying in %g s", verdict.reason, again_s)
            await asyncio.sleep(again_s)


def _refused(message: str) -> ElasticDLError:
    return ClusterRefused(
        message,
        hint="run `elasticdl check` with the job's flags to test the cluster",
    )


def _unavailable(message: str) -> ElasticDLError:
    return TransientError(
        message, hint="the cluster will restart the master", exit_code=ExitCode.UNAVAILABLE
    )
