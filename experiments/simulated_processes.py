"""Processes of pods on simulated nodes, which start none themselves.

A master is the product's, in a process of its own. Workers and servers speak the product's protocol
with it and compute nothing: a cost model says how long a worker needs.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.cluster.kubernetes import pods
from elasticdl.cluster.kubernetes.apiserver import ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.job_objects import TOKEN_KEY
from elasticdl.cluster.kubernetes.labels import JOB_LABEL, secret_name
from elasticdl.cluster.kubernetes.plans import MASTER_PORT, Json, Owner
from elasticdl.cluster.kubernetes.reflector import Reflector, Sink
from elasticdl.jobdir.layout import JobDirectory, write_json
from elasticdl.master.preflight import Preflight, save_preflight
from elasticdl.shard import Source
from experiments.process_client import Away, Client, Released, Unexpected

OURS = "app.kubernetes.io/name=elasticdl"
SHARD_RECORDS = 100
PREEMPTED = "DisruptionTarget:PreemptionByScheduler"


@final
@dataclass(frozen=True, slots=True)
class CostModel:
    """How long simulated workers take.

    A worker is ready `start_s` after its pod runs, and needs `shard_s` for a shard. If `whole` is
    not 0, a worker computes only while so many of its job are ready, as in a ring of fixed size.
    """

    shard_s: float
    start_s: float
    whole: int = 0


@dataclass
class JobProcesses:
    """What runs of a job. Times are those of the event loop."""

    owner: Owner
    directory: JobDirectory
    address: str
    cost: CostModel
    running: dict[str, ProcessName] = field(default_factory=dict)
    """Of pods that run and are not being deleted, by uid."""
    held: dict[str, ProcessName] = field(default_factory=dict)
    """Of pods that have a node and have not ended, by uid."""
    ready: set[str] = field(default_factory=set)
    """Uids of workers that may compute."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    first_worker_s: float | None = None
    ordered_s: float | None = None
    """When the master's first order became a pod."""
    over_s: float | None = None
    """When the master released a process: all records are trained."""
    preempted: int = 0
    ended: asyncio.Future[int] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """The exit code of the master."""

    def count(self, role: Role) -> int:
        return sum(name.role is role for name in self.running.values())

    def counted(self) -> None:
        """Tell the workers whether there are enough of them."""
        if len(self.ready) >= self.cost.whole:
            self.complete.set()
        else:
            self.complete.clear()


class Worker(Client):
    """A client that computes by the cost model."""

    FIRST_SHARE = (0.8, 1.2)

    def __init__(
        self, job: JobProcesses, token: str, name: ProcessName, enough: asyncio.Event
    ) -> None:
        address = f"{job.address}:{MASTER_PORT}"
        super().__init__(address, token, str(name), job.cost.shard_s, Away(address))
        self._job, self._enough = job, enough

    async def may_work(self) -> None:
        await self._enough.wait()
        await self._job.complete.wait()


@final
class SimulatedProcesses:
    """Runs a process for each running pod of one namespace. Use it from one event loop."""

    def __init__(
        self,
        api: ApiServer,
        kubeconfig: Path,
        namespace: str,
        folder: Path,
        least_workers: int = 0,
    ) -> None:
        """No worker computes before `least_workers` of all jobs are ready."""
        self._api, self._kubeconfig, self._folder = api, kubeconfig, folder
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._secrets = f"/api/v1/namespaces/{namespace}/secrets"
        self.jobs: dict[str, JobProcesses] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tokens: dict[str, str] = {}
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._least_workers, self._enough = least_workers, asyncio.Event()
        self._counted()

    def expect(self, owner: Owner, shards: int, cost: CostModel) -> JobProcesses:
        """Prepare the directory of a job that was submitted: it has passed its preflight."""
        directory = JobDirectory(self.job_directory(owner.job))
        directory.logs.mkdir(parents=True)
        claim = {"namespace": owner.namespace, "job": owner.job, "uid": owner.uid}
        write_json(directory.kubernetes, claim)
        records = shards * SHARD_RECORDS
        counted = {"ok": True, "training": [{"name": "records", "records": records}]}
        sources = (Source("records", records),)
        save_preflight(directory.preflight, Preflight(sources, (), (), counted))
        address = f"127.0.1.{len(self.jobs) + 1}"
        made = self.jobs[owner.job] = JobProcesses(owner, directory, address, cost)
        made.counted()
        return made

    def job_directory(self, job: str) -> Path:
        return self._folder / job / "directory"

    async def run(self) -> None:
        """Run until cancelled. Raises RuntimeError if a process fails."""
        sink = Sink(self._changed, self._gone, lambda: None)
        watching = asyncio.ensure_future(
            Reflector(self._api, self._path, OURS, sink, SystemClock()).run()
        )
        try:
            await self._failure
        finally:
            watching.cancel()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(watching, *self._tasks.values(), return_exceptions=True)

    def _changed(self, pod: Json) -> None:
        uid, job = pods.uid(pod), self.jobs.get(pod["metadata"]["labels"][JOB_LABEL])
        if job is None:
            return
        name = pods.process_name(pod)
        if name.role is not Role.MASTER and job.ordered_s is None:
            job.ordered_s = asyncio.get_running_loop().time()
        ended = pods.has_ended(pod)
        if ended:
            job.held.pop(uid, None)
        elif pod["spec"].get("nodeName"):
            job.held[uid] = name
        if ended or "deletionTimestamp" in pod["metadata"]:
            self._stopped(job, uid)
        elif pods.is_running(pod) and uid not in self._tasks:
            job.running[uid] = name
            if name.role is Role.WORKER and job.first_worker_s is None:
                job.first_worker_s = asyncio.get_running_loop().time()
            task = self._tasks[uid] = asyncio.ensure_future(self._process(job, pod, name))
            task.add_done_callback(self._over)

    def _gone(self, pod: Json) -> None:
        uid, job = pods.uid(pod), self.jobs.get(pod["metadata"]["labels"][JOB_LABEL])
        if job is None:
            return
        job.held.pop(uid, None)
        job.preempted += PREEMPTED in pods.exit_status(pod, asked=False).conditions
        self._stopped(job, uid)

    def _stopped(self, job: JobProcesses, uid: str) -> None:
        job.running.pop(uid, None)
        job.ready.discard(uid)
        job.counted()
        if (task := self._tasks.get(uid)) is not None:
            task.cancel()

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._failure.done():
            self._failure.set_exception(error)

    def _counted(self) -> None:
        if sum(len(job.ready) for job in self.jobs.values()) >= self._least_workers:
            self._enough.set()

    async def _process(self, job: JobProcesses, pod: Json, name: ProcessName) -> None:
        if name.role is Role.MASTER:
            code = await self._master(job, pod)
        else:
            await asyncio.sleep(job.cost.start_s)
            code = await self._client(job, pod, name)
        await self._ended(pod, code)

    async def _master(self, job: JobProcesses, pod: Json) -> int:
        """Run the master of a pod; return its exit code."""
        meta = pod["metadata"]
        variables = {
            "KUBECONFIG": str(self._kubeconfig),
            "ELASTICDL_NAMESPACE": job.owner.namespace,
            "ELASTICDL_JOB_NAME": job.owner.job,
            "ELASTICDL_JOB_UID": job.owner.uid,
            "ELASTICDL_POD_NAME": meta["name"],
            "ELASTICDL_POD_ADDRESS": job.address,
        }
        folder = job.directory.path.parent
        module = (sys.executable, "-m", "experiments.master_process", job.address, str(folder))
        # It ends with us, however that is.
        command = ("setpriv", "--pdeathsig", "KILL", *module)
        with (folder / "master.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, env={**os.environ, **variables}, stdout=log, stderr=log
            )
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        job.ended.set_result(code)
        if code != 0:
            said = (folder / "master.log").read_text()[-2000:]
            raise RuntimeError(f"the master of {meta['name']} ended with {code}:\n{said}")
        return code

    async def _client(self, job: JobProcesses, pod: Json, name: ProcessName) -> int:
        token = await self._token(job.owner.job)
        if name.role is Role.WORKER:
            job.ready.add(pods.uid(pod))
            job.counted()
            self._counted()
        client = Worker(job, token, name, self._enough)
        try:
            await client.serve()
        finally:
            await client.close()
        match client.error:
            case Released():
                if job.over_s is None:
                    job.over_s = asyncio.get_running_loop().time()
                return 0
            case Unexpected():
                return 1
            case _:
                raise RuntimeError(f"{pod['metadata']['name']}: {client.failure}")

    async def _token(self, job: str) -> str:
        """Return the job's token. Its master creates the Secret before any other pod."""
        if job not in self._tokens:
            secret = await self._api.get(f"{self._secrets}/{secret_name(job)}")
            self._tokens[job] = base64.b64decode(secret["data"][TOKEN_KEY]).decode()
        return self._tokens[job]

    async def _ended(self, pod: Json, code: int) -> None:
        """Say how a process ended, as its node does."""
        container = pod["spec"]["containers"][0]
        state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
        status = {"name": container["name"], "image": container["image"], "imageID": ""}
        ended: dict[str, Any] = {**status, "ready": False, "restartCount": 0, "state": state}
        phase = "Failed" if code else "Succeeded"
        change = {"status": {"phase": phase, "containerStatuses": [ended]}}
        try:
            await self._api.patch(f"{self._path}/{pod['metadata']['name']}/status", change)
        except ApiRefused as refused:
            if refused.status.code != 404:
                raise
