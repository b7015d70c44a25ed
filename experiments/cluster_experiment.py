"""Jobs that come to a cluster of simulated nodes, compute as long as a cost model says, and end.

API server, scheduler, pods and masters are real. See `simulated_processes`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.cluster.kubernetes.apiserver import ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.labels import MASTER, pod_name
from elasticdl.cluster.kubernetes.planning import job_object
from elasticdl.cluster.kubernetes.plans import Json, Owner
from elasticdl.job import JobSpec
from experiments.fair_share import Demand, fair_makespan_s, ideal_makespan_s
from experiments.figures import Figures, JobTimes, Span, figures
from experiments.services import Services
from experiments.simulated_processes import (
    SHARD_RECORDS,
    CostModel,
    JobProcesses,
    SimulatedProcesses,
)
from tests.kubernetes.sharing import spec_of, submitted
from tests.kubernetes.target_cluster import TargetCluster

TICK_S = 0.1
NODE_CPUS = 32
CLEAR_LIMIT_S = 120.0


@final
@dataclass(frozen=True, slots=True)
class Lab:
    """A cluster with simulated nodes and a namespace for jobs. `folder` keeps jobs' files."""

    api: ApiServer
    place: TargetCluster
    namespace: str
    folder: Path

    async def clear(self) -> None:
        """Remove all jobs and pods. Raises TimeoutError."""
        jobs = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        async with asyncio.timeout(CLEAR_LIMIT_S):
            for path in (jobs, pods):
                for found in (await self.api.get(path))["items"]:
                    await self._remove(f"{path}/{found['metadata']['name']}")
            while (await self.api.get(pods))["items"]:
                await asyncio.sleep(TICK_S)

    async def _remove(self, path: str) -> None:
        """Not every control plane here has the controller that takes finalizers away."""
        with suppress(ApiRefused):
            await self.api.patch(path, {"metadata": {"finalizers": None}})
            await self.api.delete(
                path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
            )


@contextmanager
def cordoned(place: TargetCluster, count: int) -> Iterator[None]:
    """Keep pods away from so many of the simulated nodes."""
    nodes = [f"fake-{number}" for number in range(count)]
    place.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        place.kubectl("uncordon", *nodes)


def cpu_of_slot(slots_a_node: int) -> str:
    """The CPUs of a slot on a node with so many."""
    return f"{NODE_CPUS * 1000 // slots_a_node}m"


def spec(name: str, cpu: str, **flags: object) -> JobSpec:
    """A job whose servers and workers take `cpu` each, and its master none."""
    return spec_of(
        name,
        **{
            "worker_resource_request": f"cpu={cpu}",
            "ps_resource_request": f"cpu={cpu}",
            "master_resource_request": "",
            "records_per_task": SHARD_RECORDS,
            "minibatch_size": SHARD_RECORDS,
            "checkpoint_seconds": 0,
            "tls": "off",
            **flags,
        },
    )


@final
@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job that arrives after `arrives_s` and has `shards` to compute."""

    spec: JobSpec
    arrives_s: float
    shards: int
    cost: CostModel

    @property
    def name(self) -> str:
        return self.spec.cluster.job_name

    @property
    def work_s(self) -> float:
        """Seconds that one worker would compute."""
        return self.shards * self.cost.shard_s

    @property
    def servers(self) -> int:
        """Slots of servers; they take none if they request nothing."""
        return self.spec.servers if self.spec.kubernetes.ps_resource_request else 0

    @property
    def demand(self) -> Demand:
        workers = self.spec.cluster.num_workers.high
        return Demand(self.arrives_s, self.work_s, workers, self.servers)

    @property
    def wish(self) -> int:
        """Slots that it would take."""
        return self.spec.cluster.num_workers.high + self.servers


@dataclass
class _RunningJob:
    planned: PlannedJob
    processes: JobProcesses

    @property
    def wishes(self) -> bool:
        """Whether the master has asked for pods, and the job is not over."""
        return self.processes.ordered_s is not None and self.processes.over_s is None

    def slots(self, pods: Mapping[str, ProcessName]) -> int:
        """How many slots these pods of the job take."""
        roles = (Role.WORKER, Role.PS) if self.planned.servers else (Role.WORKER,)
        return sum(name.role in roles for name in pods.values())


@final
class Experiment:
    """Use it once, from one event loop."""

    def __init__(
        self,
        lab: Lab,
        slots: int,
        limit_s: float,
        services: Services | None = None,
        least_workers: int = 0,
    ) -> None:
        """`services` take slots, too. `least_workers`: see `SimulatedProcesses`."""
        self._lab, self._slots, self._limit_s = lab, slots, limit_s
        self._services = services
        self._began_s = asyncio.get_running_loop().time()
        self._processes = SimulatedProcesses(
            lab.api, lab.place.kubeconfig, lab.namespace, lab.folder, least_workers
        )
        self._jobs: dict[str, _RunningJob] = {}
        self._spans: list[Span] = []

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_s

    async def run(self, jobs: Sequence[PlannedJob], *, stall_s: float | None = None) -> Figures:
        """Let all jobs come and end. With services, the end of their plan is the end.

        `stall_s`: jobs may wait for each other; they have so long from the end of the services on.

        Raises TimeoutError after the limit.
        """
        self._began_s = asyncio.get_running_loop().time()
        coming = asyncio.gather(*(self._one(planned) for planned in jobs))
        plan = self._services.run(self._all_wish(jobs)) if self._services is not None else None
        served = asyncio.ensure_future(plan) if plan is not None else None
        end = asyncio.ensure_future(_end(coming, served, stall_s))
        tasks: set[asyncio.Future[Any]] = {
            coming,
            end,
            *([served] if served is not None else []),
            asyncio.ensure_future(self._processes.run()),
            asyncio.ensure_future(self._sample()),
        }
        try:
            async with asyncio.timeout(self._limit_s):
                await _until(end, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._lab.clear()
        return self._figures(jobs, {planned.name for planned in jobs} & self._jobs.keys())

    def _figures(self, jobs: Sequence[PlannedJob], came: set[str]) -> Figures:
        demands = [one.demand for one in jobs]
        servers = sum(one.servers for one in jobs)
        fixed = self._services is None and self._slots > servers
        found = figures(
            self._spans,
            {name: self._times(self._jobs[name]) for name in sorted(came)},
            {one.name: one.spec.kubernetes.weight for one in jobs},
            self._slots,
            ideal_makespan_s(demands, self._slots) if fixed else None,
            fair_makespan_s(demands, self._slots) if fixed else None,
            sum(job.processes.preempted for job in self._jobs.values()),
        )
        if self._services is None:
            return found
        return replace(found, more=self._services.as_row())

    def _times(self, job: _RunningJob) -> JobTimes:
        processes = job.processes
        times = (processes.ordered_s, processes.first_worker_s, processes.over_s)
        passed = [math.inf if at_s is None else at_s - self._began_s for at_s in times]
        return JobTimes(job.planned.arrives_s, *passed)

    async def _one(self, planned: PlannedJob) -> None:
        await asyncio.sleep(max(0.0, planned.arrives_s - self._now_s()))
        directory = self._processes.job_directory(planned.name)
        made = planned.spec.replace(job_dir=str(directory))
        owner = await submitted(self._lab.api, self._lab.namespace, made)
        processes = self._processes.expect(owner, planned.shards, planned.cost)
        self._jobs[planned.name] = _RunningJob(planned, processes)
        await self._lab.api.create(
            f"/api/v1/namespaces/{owner.namespace}/pods", master_pod(made, owner)
        )
        await processes.ended

    async def _all_wish(self, jobs: Sequence[PlannedJob]) -> None:
        while sum(job.wishes for job in self._jobs.values()) < len(jobs):
            await asyncio.sleep(TICK_S)

    async def _sample(self) -> None:
        before_s = self._now_s()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self._now_s()
            self._spans.append(self._span(before_s, now_s))
            before_s = now_s

    def _span(self, begin_s: float, end_s: float) -> Span:
        live = {name: job for name, job in self._jobs.items() if job.wishes}
        services = self._services
        placed, wished = (services.placed, services.wished) if services is not None else (0, 0)
        return Span(
            begin_s,
            end_s,
            {name: job.processes.count(Role.WORKER) for name, job in live.items()},
            sum(job.slots(job.processes.running) for job in live.values()) + placed,
            sum(job.planned.wish for job in live.values()) + wished > self._slots,
            placed,
            placed < wished,
            sum(job.slots(job.processes.held) for job in self._jobs.values()) + placed,
        )


async def _end(
    jobs: asyncio.Future[Any], services: asyncio.Future[None] | None, stall_s: float | None
) -> None:
    if services is None:
        await jobs
        return
    await services
    if stall_s is not None:
        await asyncio.wait([jobs], timeout=stall_s)


async def _until(end: asyncio.Future[None], tasks: set[asyncio.Future[Any]]) -> None:
    """Wait for the end; raise what any task raises before."""
    pending = set(tasks)
    while not end.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


def master_pod(made: JobSpec, owner: Owner) -> Json:
    """The pod that the Job would have made. The Job is suspended: not every control plane here has
    its controller.
    """
    template = job_object(made, owner.namespace)["spec"]["template"]
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner.job, "uid": owner.uid}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template["metadata"],
            "name": pod_name(owner.job, MASTER),
            "ownerReferences": [reference],
        },
        "spec": template["spec"],
    }
