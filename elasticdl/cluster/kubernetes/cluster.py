"""Processes as pods of a Kubernetes cluster, owned by the job's `batch/v1` Job.

Pods outlive the master that created them; its successor observes the existing pods. A creation that
was interrupted is repeated and adopts its own pod. Objects of others are never touched.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, final

from elasticdl.clock import Clock, SystemClock
from elasticdl.cluster.base import (
    CreateRefused,
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessSpec,
    Role,
)
from elasticdl.cluster.event_bus import EventBus, ProcessEvent
from elasticdl.cluster.kubernetes.apiserver import ApiAway, ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.creating import Creator
from elasticdl.cluster.kubernetes.job_objects import pod as pod_manifest
from elasticdl.cluster.kubernetes.labels import JOB_UID_LABEL, pod_name
from elasticdl.cluster.kubernetes.log_archive import LogArchive
from elasticdl.cluster.kubernetes.plans import Json, Owner, PodPlan
from elasticdl.cluster.kubernetes.pod_tracker import (
    NODE_LOST,
    NOMINATED_LIMIT_S,
    OVERDUE_S,
    Life,
    PodTracker,
)
from elasticdl.cluster.kubernetes.pods import is_process, process_name, uid
from elasticdl.cluster.kubernetes.process_secrets import ProcessSecrets
from elasticdl.cluster.kubernetes.reflector import Reflector, Sink, Timing
from elasticdl.cluster.kubernetes.worker_places import WorkerPlaces
from elasticdl.cluster.logs.log_files import TAIL_BYTES, TAIL_LINES
from elasticdl.errors import ElasticDLError

_LOG = logging.getLogger(__name__)
PlanOf: TypeAlias = Callable[[ProcessSpec], PodPlan]
CLOSE_GRACE_S = 3.0
CLOSE_LIMIT_S = 120.0
DELETE_LIMIT_S = 120.0
LIST_LIMIT_S = 30.0
KEEP_ENDED = 50
"""Pods of ended processes to keep for `kubectl logs` and `describe`."""
_TEND_S = 1.0
_LAST_LINES_LIMIT_S = 2.0
"""How long to wait for logs in transit after all pods have gone."""
_LOG_LIMIT_S = 5.0
_CUT_MESSAGE_BYTES = 2000
"""A termination message of this length lacks its beginning; the log has the whole tail."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Time limits of the cluster, where it copies logs to, and who learns of its pods."""

    clock: Clock = field(default_factory=SystemClock)
    timing: Timing = field(default_factory=Timing)
    overdue_s: float = OVERDUE_S
    """How long after its grace an unfinished pod is considered lost with its node."""
    nominated_s: float = NOMINATED_LIMIT_S
    """How long a pod may wait on the node that the scheduler chose for it."""
    logs: Path | None = None
    """Directory of the log files; None: keep no logs."""
    places: WorkerPlaces = field(default_factory=WorkerPlaces)
    """Learns which processes live and which have ended."""


@final
class KubernetesCluster:
    """Starts, stops and watches the pods of one job.

    Use it from one event loop. The creator of `api` closes it.
    """

    def __init__(
        self,
        api: ApiServer,
        owner: Owner,
        plan_of: PlanOf,
        habits: ClusterOptions | None = None,
        secrets: ProcessSecrets | None = None,
    ) -> None:
        """`plan_of` returns the plan of a process's pod; it is called again for each process.

        `secrets` are for processes that have any.
        """
        habits = habits or ClusterOptions()
        self._api, self._owner, self._plan_of = api, owner, plan_of
        self._secrets, self._places = secrets, habits.places
        self._path = f"/api/v1/namespaces/{owner.namespace}/pods"
        self._bus = EventBus()
        self._tracker = PodTracker(self._bus, habits.clock, habits.overdue_s, habits.nominated_s)
        self._creator = Creator(api, owner.uid, habits.clock)
        sink = Sink(self._changed, self._gone, self._listed)
        self._reflector = Reflector(
            api, self._path, f"{JOB_UID_LABEL}={owner.uid}", sink, habits.clock, habits.timing
        )
        self._logs = None if habits.logs is None else LogArchive(api, habits.logs)
        self._servers_on_their_way: set[asyncio.Event] = set()
        """Of servers whose pods are being created. Each ends with the limit of a creation."""
        self._whole = asyncio.Event()
        self._standing: list[asyncio.Task[None]] = []
        self._beside: set[asyncio.Task[object]] = set()
        self._ended: dict[str, Life] = {}
        """Existing pods of ended processes, by uid, the oldest first."""
        self._publishing: set[str] = set()
        """Uids of pods whose end is being published."""
        self._closed = False
        self._failure: BaseException | None = None
        """A bug in this class, raised to observers, since no more events would come."""

    @property
    def view_age_s(self) -> float:
        """Seconds since the API server last answered: the maximum age of the view."""
        return self._reflector.age_s

    def has_ended(self, name: ProcessName) -> bool:
        """Whether a process existed and has ended."""
        return isinstance(self._bus.newest(name), ProcessExited)

    async def create(self, spec: ProcessSpec) -> None:
        """Create a pod, unless that name was started before.

        Raises CreateRefused.
        """
        if self._closed:
            raise CreateRefused("the cluster is closed", retry=False)
        if spec.name.role is not Role.PS:
            return await self._create(spec)
        created = asyncio.Event()
        self._servers_on_their_way.add(created)
        try:
            await self._create(spec)
        finally:
            self._servers_on_their_way.discard(created)
            created.set()

    async def _servers_created(self) -> None:
        """Wait for servers that were ordered before: workers get places near those that exist."""
        for created in [*self._servers_on_their_way]:
            await created.wait()

    async def _create(self, spec: ProcessSpec) -> None:
        self._watch()
        # The place of a worker, and whether a server runs already, follow from the pods there are.
        if not await self._looked():
            raise CreateRefused("the API server does not say which pods there are", retry=True)
        if spec.name.role is Role.WORKER:
            await self._servers_created()
        if spec.name in self._bus:
            # A node that starts a process in its predecessor's pod may come before its order.
            self._tracker.tell_again(spec.name)
            return
        created = False
        try:
            if self._secrets is not None:
                await self._secrets.provide(spec.name)
            manifest = pod_manifest(self._owner, self._plan_of(spec), spec)
            self._reflector.add(await self._creator.create(self._path, manifest))
            created = True
        finally:
            if not created:
                self._places.ended(spec.name)

    async def delete(self, name: ProcessName, *, grace_s: float, for_good: bool = False) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s` (whole seconds, at least 1).

        The request with the earliest deadline counts. If a later request shortens the grace, the
        exit is published in time, but the process may live on for the first grace, since nodes do
        not shorten it. The caller must fence a process whose state it takes over, and tell one that
        listens to end itself.
        """
        if self.has_ended(name):
            return
        self._watch()
        self._tracker.ask(name, grace_s)
        life = self._tracker.life(name)
        if life is None and name.role is Role.PS and await self._looked():
            # It may run in the pod of an earlier incarnation.
            if self.has_ended(name):
                return
            self._tracker.ask(name, grace_s)
            life = self._tracker.life(name)
        await self._delete(
            pod_name(self._owner.job, name) if life is None else str(life.pod["metadata"]["name"]),
            "" if life is None else uid(life.pod),
            _whole_seconds(grace_s),
        )

    async def _looked(self) -> bool:
        """Wait for the first list of pods; False if the API server was away for too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LIST_LIMIT_S):
                await self._whole.wait()
        return self._whole.is_set()

    async def observe(self) -> AsyncGenerator[ProcessEvent]:
        """Every live process, then every ended one, then all events, until closed.

        No event comes before the first list of pods. While the API server is unreachable,
        `view_age_s` grows and the log says why.
        """
        if not self._closed:
            self._watch()
            await self._whole.wait()
        async for event in self._bus.listen():
            yield event
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """End every remaining process; returns when all have ended, or after two minutes.

        Processes left then end with their Job.
        """
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await self._end_all()
        except TimeoutError:
            left = ", ".join(map(str, self._tracker.names())) or "what it may have"
            _LOG.error(
                "the cluster did not end %s within %g s; the deletion of job %s will end it",
                left,
                CLOSE_LIMIT_S,
                self._owner.job,
            )
        await self._rest()

    async def leave(self) -> None:
        """Stop watching and leave every process running, for the next master.

        The cluster is unusable afterwards.
        """
        self._closed = True
        await self._rest()

    async def _rest(self) -> None:
        tasks = [*self._standing, *self._beside]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._logs is not None:
            await self._logs.finish(0.0)
        self._whole.set()
        self._bus.close()

    async def _end_all(self) -> None:
        if not self._standing:
            return  # Nothing was started or looked at: the preflight of the job failed.
        # A pod missing from the first list was created here, so the tracker has it.
        await self._whole.wait()
        # By pod: a process may have started in its predecessor's pod beside one that was ordered.
        await asyncio.gather(*map(self._end_life, self._tracker.lives()))
        while self._tracker.names() or self._beside:
            await asyncio.sleep(0.05)
        if self._logs is not None:
            await self._logs.finish(_LAST_LINES_LIMIT_S)

    async def _end_life(self, life: Life) -> None:
        self._tracker.ask(life.name, CLOSE_GRACE_S)
        life.asked = True
        await self._delete_life(life, _whole_seconds(CLOSE_GRACE_S))

    def _watch(self) -> None:
        if not self._standing:
            self._standing = [
                asyncio.ensure_future(self._reflector.run()),
                asyncio.ensure_future(self._tend()),
            ]
            for task in self._standing:
                task.add_done_callback(self._finished)

    def _listed(self) -> None:
        self._whole.set()

    def _changed(self, pod: Json) -> None:
        if (ended := self._tracker.changed(pod)) is not None:
            self._places.ended(ended.name)
            self._publishing.add(uid(pod))
            self._spawn(self._tell_end(ended, gone=False))
            if ended.abandoned:
                self._spawn(self._delete_life(ended, 1))
        elif self._tracker.follows(pod):
            self._places.observed(process_name(pod), pod["metadata"].get("labels") or {})
        if self._logs is not None and is_process(pod):
            self._logs.changed(pod)

    def _gone(self, pod: Json) -> None:
        self._ended.pop(uid(pod), None)
        self._publishing.discard(uid(pod))
        if self._logs is not None:
            self._logs.gone(pod)
        if is_process(pod):
            self._places.ended(process_name(pod))
        if (ended := self._tracker.gone(pod)) is not None:
            self._spawn(self._tell_end(ended, gone=True))

    async def _tell_end(self, life: Life, *, gone: bool) -> None:
        status = life.exit_status()
        if not gone and len(status.log_tail.encode()) >= _CUT_MESSAGE_BYTES:
            status = replace(status, log_tail=await self._log_tail(life) or status.log_tail)
        self._bus.post(ProcessExited(life.name, status))
        if uid(life.pod) in self._publishing:
            self._publishing.discard(uid(life.pod))
            self._ended[uid(life.pod)] = life
            # Only after the end was published with its log.
            await self._prune()

    async def _log_tail(self, life: Life) -> str:
        """The log's tail.

        '' if it is unreadable: the node may be gone, or the right to read logs missing.
        """
        path, query = (
            f"{self._path}/{life.pod['metadata']['name']}/log",
            {"tailLines": str(TAIL_LINES)},
        )
        try:
            async with asyncio.timeout(_LOG_LIMIT_S):
                return (await self._api.text(path, query))[-TAIL_BYTES:]
        except (ElasticDLError, TimeoutError) as error:
            _LOG.info("cannot read the log of %s: %s", life.name, error or "timed out")
            return ""

    async def _prune(self) -> None:
        while len(self._ended) > KEEP_ENDED and not self._closed:
            await self._delete_life(self._ended.pop(next(iter(self._ended))), 1)

    async def _tend(self) -> None:
        """Act on states that last too long, for which no event comes."""
        while True:
            await asyncio.sleep(_TEND_S)
            for life in self._tracker.hopeless():
                self._spawn(self._give_up(life))
            for life in self._tracker.overstaying():
                self._spawn(self._delete_life(life, 0))
            for life in self._tracker.lost():
                self._places.ended(life.name)
                lost = ExitStatus(
                    reason=NODE_LOST, conditions=life.exit_status().conditions, asked=life.asked
                )
                self._bus.post(ProcessExited(life.name, lost))

    async def _give_up(self, life: Life) -> None:
        # A pod that was not placed when this master last saw it may run by now.
        version = str(life.pod["metadata"]["resourceVersion"]) if life.not_placed else ""
        if not await self._delete_life(life, 1, version) and life.not_placed:
            self._tracker.wait_again(life)

    async def _delete_life(self, life: Life, grace_s: int, version: str = "") -> bool:
        return await self._delete(
            str(life.pod["metadata"]["name"]), uid(life.pod), grace_s, version
        )

    async def _delete(self, name: str, identity: str, grace_s: int, version: str = "") -> bool:
        """Repeat the request until the server has received it; False if it has not, or if the pod
        no longer has that `resourceVersion`.

        A grace of 0 removes the pod at once, while its process may run on.
        """
        path = f"{self._path}/{name}"
        try:
            async with asyncio.timeout(DELETE_LIMIT_S):
                while True:
                    try:
                        options = {"gracePeriodSeconds": grace_s}
                        await self._api.delete(path, options, uid=identity, version=version)
                        return True
                    except ApiAway as away:
                        _LOG.info("%s: %s; retrying", path, away.message)
                        await asyncio.sleep(away.retry_after_s)
        except TimeoutError:
            _LOG.error(
                "cannot delete %s: the API server was unreachable for %g s", name, DELETE_LIMIT_S
            )
        except ApiRefused as refused:
            if not (version and refused.status.code == 409):
                _LOG.error("the cluster refuses to delete %s: %s", name, refused.message)
        return False

    def _spawn(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.ensure_future(work)
        self._beside.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[object]) -> None:
        self._beside.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a task of the cluster failed", exc_info=error)
            self._failure = error
            self._whole.set()
            self._bus.close()


def _whole_seconds(grace_s: float) -> int:
    return max(1, math.ceil(grace_s))
