"""Jobs that come to a cluster, compute for as long as a cost model says, and end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from elasticdl.cluster.base import ProcessExited, ProcessName, ProcessObserved, Role
from elasticdl.cluster.event_bus import ProcessEvent
from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.job import JobSpec
from experiments.figures import Figures, JobTimes, Span, figures
from tests.kubernetes.sharing import SharingJob, running_job

TICK_S = 0.1


@final
@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job that arrives after `arrives_s` and needs `work_s` seconds of one worker.

    A worker computes `start_s` after its pod runs, and n of them n times as fast as one.
    """

    spec: JobSpec
    arrives_s: float
    work_s: float
    start_s: float

    @property
    def name(self) -> str:
        return self.spec.cluster.job_name

    @property
    def wish(self) -> int:
        """Slots that it would take."""
        return self.spec.cluster.num_workers.high + self.spec.cluster.num_ps_pods


@dataclass
class RunningJob:
    """A job between its arrival and its end. Times are those of the experiment."""

    planned: PlannedJob
    since_s: dict[ProcessName, float] = field(default_factory=dict)
    """When each process that runs began to."""
    done_s: float = 0.0
    first_worker_s: float = math.inf
    ended_s: float = math.inf

    def heard(self, event: ProcessEvent, now_s: float) -> None:
        if isinstance(event, ProcessExited):
            self.since_s.pop(event.name, None)
        elif isinstance(event, ProcessObserved) and event.running:
            self.since_s.setdefault(event.name, now_s)
            if event.name.role is Role.WORKER:
                self.first_worker_s = min(self.first_worker_s, now_s)

    def advance(self, begin_s: float, end_s: float) -> None:
        for name, since_s in self.since_s.items():
            if name.role is Role.WORKER:
                self.done_s += max(0.0, end_s - max(begin_s, since_s + self.planned.start_s))

    @property
    def workers(self) -> int:
        return sum(name.role is Role.WORKER for name in self.since_s)


@final
class Experiment:
    """Use it once, from one event loop."""

    def __init__(self, api: ApiServer, namespace: str, slots: int, limit_s: float) -> None:
        self._api, self._namespace = api, namespace
        self._slots, self._limit_s = slots, limit_s
        self._began_s = 0.0
        self._live: dict[str, RunningJob] = {}
        self._sharing: list[SharingJob] = []

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_s

    async def run(self, jobs: Sequence[PlannedJob]) -> Figures:
        """Let all jobs come and end. Raises TimeoutError after the limit."""
        self._began_s = asyncio.get_running_loop().time()
        ended: list[RunningJob] = []
        async with asyncio.timeout(self._limit_s), asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(len(jobs), ended))
            for planned in jobs:
                group.create_task(self._one(planned, ended))
        servers = sum(one.spec.cluster.num_ps_pods for one in jobs)
        return figures(
            watching.result(),
            {
                one.planned.name: JobTimes(one.planned.arrives_s, one.first_worker_s, one.ended_s)
                for one in ended
            },
            {one.name: one.spec.kubernetes.weight for one in jobs},
            self._slots,
            sum(one.work_s for one in jobs) / (self._slots - servers),
            sum(one.preempted for one in self._sharing),
        )

    async def _one(self, planned: PlannedJob, ended: list[RunningJob]) -> None:
        await asyncio.sleep(max(0.0, planned.arrives_s - self._now_s()))
        job = self._live[planned.name] = RunningJob(planned)
        async with running_job(
            self._api,
            self._namespace,
            planned.spec,
            lambda event: job.heard(event, self._now_s()),
        ) as pods:
            self._sharing.append(pods)
            while job.done_s < planned.work_s:
                await asyncio.sleep(TICK_S)
            job.ended_s = self._now_s()
        del self._live[planned.name]
        ended.append(job)

    async def _watch(self, expected: int, ended: list[RunningJob]) -> list[Span]:
        spans: list[Span] = []
        before_s = self._now_s()
        while len(ended) < expected:
            await asyncio.sleep(TICK_S)
            now_s = self._now_s()
            for job in self._live.values():
                job.advance(before_s, now_s)
            spans.append(self._span(before_s, now_s))
            before_s = now_s
        return spans

    def _span(self, begin_s: float, end_s: float) -> Span:
        live = [job for job in self._live.values() if job.ended_s == math.inf]
        return Span(
            begin_s,
            end_s,
            {job.planned.name: job.workers for job in live},
            sum(len(job.since_s) for job in live),
            sum(job.planned.wish for job in live) > self._slots,
        )
