"""All parts of one master, put together.

It never imports TensorFlow, and on one machine never the Kubernetes client.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from functools import partial
from typing import Protocol, final

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import Cluster, ProcessExited, ProcessName, ProcessObserved, Role
from elasticdl.cluster.logs.log_tails import ends_in
from elasticdl.errors import MasterSuperseded
from elasticdl.history.snapshot import StatusReading, about, record_of, snapshot
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_status import JobStatus
from elasticdl.jobdir.last_status import cut_short
from elasticdl.jobdir.master_address import MasterAddress, write_master
from elasticdl.jobdir.outcome import Outcome
from elasticdl.jobdir.resume_command import after_a_stop
from elasticdl.master.call_port import CallPort
from elasticdl.master.core.commands import Announce, FinishJob
from elasticdl.master.core.events import MasterStarted, MasterTookOver, StopRequested
from elasticdl.master.core.job_context import Phase
from elasticdl.master.core.ps.steps import Steps
from elasticdl.master.core.state import JobState
from elasticdl.master.driver import Driver, Journal
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.checkpoint_archive import CheckpointArchive, JobStart
from elasticdl.master.executor.executor import Executor, ExecutorDeps
from elasticdl.master.executor.fencing import Fences
from elasticdl.master.executor.job_preparation import JobPreparation
from elasticdl.master.executor.launcher import Launcher
from elasticdl.master.executor.process_env import ProcessEnv
from elasticdl.master.executor.ring_coordinator import RingCoordinator
from elasticdl.master.executor.shutdown_checkpoint import checkpoint_in_time
from elasticdl.master.executor.snapshots import Snapshots
from elasticdl.master.executor.tracker_process import TrackerProcess
from elasticdl.master.gateway.copy_holders import CopyHolders
from elasticdl.master.gateway.order_streams import OrderStreams
from elasticdl.master.gateway.process_gateway import ProcessGateway
from elasticdl.master.gateway.ps_registry import PsRegistry
from elasticdl.master.gateway.servicer import MasterService, Welcome
from elasticdl.master.gateway.step_turns import StepTurns
from elasticdl.master.job_record import JobRecord
from elasticdl.master.journal.copies import CopiedJournal
from elasticdl.master.journal.files import Header
from elasticdl.master.journal.recovery import Recovered
from elasticdl.master.journal.writer import JournalFile
from elasticdl.master.outcome import (
    outcome_of,
    with_resume_command,
)
from elasticdl.master.platform.platform import Handover, MasterEnvironment, Platform
from elasticdl.master.preflight import Preflight
from elasticdl.master.status.access import AccessGuard
from elasticdl.master.status.job_view import JobView, job_status
from elasticdl.master.status.server import StatusServer
from elasticdl.rpc.ps_control import GrpcServerControl
from elasticdl.rpc.rendezvous import Rendezvous
from elasticdl.shard import Source, Task
from elasticdl.tokens import process_token, run_name
from elasticdl.tracking.choice import what_to_send

PROGRESS_EVERY_S = 2.0
_EVENTS_PAUSE_S = 0.05
"""Between two portions of events of earlier masters. All processes of the job attach meanwhile."""
_MAIN_TASK = {
    Action.TRAIN: Task.TRAINING,
    Action.EVALUATE: Task.EVALUATION,
    Action.PREDICT: Task.PREDICTION,
}


class MasterJournal(Journal, Protocol):
    """The journal of a master, in a file of its own or also in copies."""

    @property
    def whole(self) -> bool:
        """Whether another master can continue from it."""

    async def aclose(self) -> None:
        """Write what is appended, and close the file and all connections."""


@final
class Master:
    """All parts of one master."""

    def __init__(
        self,
        environment: MasterEnvironment,
        spec: JobSpec,
        platform: Platform,
        calls: CallPort,
        recovered: Recovered | None = None,
    ) -> None:
        """`calls` is the port, at which processes may have connected already. `recovered` is the
        job that this master takes over; None: it begins one.
        """
        self._environment = environment
        self._spec = self._settled = spec
        """The job as it was submitted, and with what the preflight decides."""
        self._platform = platform
        self._handover = Handover()
        self.superseded_by = ""
        """Which master acts in place of this one; '' if none does."""
        directory = environment.directory
        clock = SystemClock()
        self.record = JobRecord(spec, directory, clock)
        self.trackers = tuple(
            TrackerProcess(directory, what, spec.cluster.envs) for what in what_to_send(spec)
        )
        self._recovered = recovered
        self._term = environment.term
        if not environment.replaces:
            # Nobody listens at the old address any more. The next master of a launch will.
            directory.master.unlink(missing_ok=True)
        self.core = recovered.core if recovered else JobState(spec, platform.limits)
        self.queue = EventQueue(clock, max(self.record.event_log.began_s, self.core.now_s))
        self._calls = calls
        self._certificates = self._calls.certificates
        self._registry = self._ps_registry()
        self._between_steps = asyncio.Lock()
        self._fences = Fences(self._registry, self._between_steps)
        self._gateway = self._process_gateway()
        self._archive = CheckpointArchive(spec, directory.checkpoints)
        self._sources: tuple[Source, ...] = ()
        self._view = self._job_view()
        self._page = self._status_server()
        self._begun = asyncio.Event()
        self.acts = False
        """Whether it has begun to handle events. Before, it has changed nothing of the job."""
        self._finish: FinishJob | None = None
        self._journal: MasterJournal | None = None
        if self._recovered is not None:
            # Before it serves: processes of the earlier master attach again at once.
            self._continue()

    def _ps_registry(self) -> PsRegistry:
        servers, return_s = self.core.server_map, self._platform.servers_return_s
        return PsRegistry(servers.number, self._server_control, return_s, first=servers.first)

    def _server_control(self, name: ProcessName, address: str) -> GrpcServerControl:
        environment = self._environment
        token = process_token(environment.token, str(name))
        return GrpcServerControl(str(name), address, token, self._term, environment.trusted)

    def _process_gateway(self) -> ProcessGateway:
        return ProcessGateway(
            self.queue,
            self._registry,
            self._fences,
            _MAIN_TASK[self._spec.action],
            self.core,
            partial(RingCoordinator, rendezvous=Rendezvous(context=self._certificates.own))
            if self._spec.trains_on_ring
            else None,
        )

    def _service(self) -> MasterService:
        return MasterService(
            self.queue, self._gateway, self._welcome(), self.status_json, self.core
        )

    def _status_server(self) -> StatusServer:
        environment = self._environment
        guard = AccessGuard(environment.token, environment.page.names)
        logs, context = environment.directory.logs, self._certificates.page
        return StatusServer(self._view, guard, self._term, logs, context=context)

    def _welcome(self) -> Welcome:
        return Welcome(
            self._environment.token,
            self._term,
            lambda: self._settled.model_dump_json(),
            lambda: self._archive.restore_from,
            lambda: self._sources,
            self._environment.authority,
            workers_serve=lambda: self._settled.workers_hold_journal,
        )

    def _job_view(self) -> JobView:
        what = about(
            self._spec,
            self.record.event_log.started_at,
            self._environment.page.namespace,
            after_a_stop(self._spec, self._environment.directory),
        )
        return JobView(
            what, self.core, self._gateway, self.queue, self.record.event_log, self.record.collector
        )

    def status(self) -> JobStatus:
        """Return the core's status with the measurements of processes."""
        return job_status(self.core, self._gateway)

    def status_json(self) -> str:
        """Return the same as JSON."""
        return json.dumps(self.status().to_json())

    def outcome(self, finish: FinishJob) -> tuple[Outcome, JobStatus | None]:
        """Return the outcome and the last status; the status is None if the job did not begin."""
        directory = self._environment.directory
        if not self.core.begun:
            return outcome_of(finish, directory), None
        status = self._last_status(finish)
        return outcome_of(finish, directory, self._spec, status, self.core.receipt()), status

    @property
    def has_left(self) -> bool:
        """Whether the job continues without this master."""
        return self._handover.to_the_next

    async def run(self) -> FinishJob:
        """Run from the first event to the last command.

        Every process is gone when it returns, unless it `has_left`. After an error, local processes
        end with the job. The record stays open.
        """
        environment, directory = self._environment, self._environment.directory
        try:
            journal = self._journal = self._open_journal()
            port = await self._calls.open()
            self._calls.serve(self._service())
            if self._gateway.ring is not None:
                await self._gateway.ring.start(
                    environment.host.strip("[]"),
                    environment.rendezvous_port,
                    reuse_port=environment.rendezvous_port in environment.reserved,
                )
            process_env = self._platform.process_env(self._spec, environment, port)
            page, problem = await self._open_page()
            async with self._platform.cluster(self._handover) as cluster:
                self._tell_address(process_env.address, page)
                self._finish = await self._drive(journal, cluster, process_env, problem)
                return self._finish
        finally:
            await self._page.close(self._finish and self.with_resume_command(self._finish))
            if self._gateway.ring is not None:
                await self._gateway.ring.close()
            await self._registry.close()
            await self._calls.server.close()
            if self._journal is not None:
                await self._journal.aclose()
            directory.master.unlink(missing_ok=True)

    def _open_journal(self) -> MasterJournal:
        environment, recovered = self._environment, self._recovered
        journal = JournalFile(
            environment.directory.journal,
            Header(run_name(environment.token), self._term, recovered and recovered.end),
            lambda: self.core.image(self._spec),
            run=recovered.run if recovered else None,
            tenure=environment.tenure,
            limits=environment.journal,
        )
        if environment.copies is None:
            return journal
        role = Role.PS if self._spec.servers else Role.WORKER
        holders = CopyHolders(self._gateway.sessions, role, self.core.node)
        return CopiedJournal(journal, environment.copies, holders)

    async def _open_page(self) -> tuple[str, str]:
        """Open the page; return its address, or the problem. A job runs without its page too."""
        wanted = self._environment.page
        port = wanted.port or self._spec.cluster.status_port
        try:
            port = await self._page.start(
                wanted.host, port, reuse_port=port in self._environment.reserved
            )
        except OSError as error:
            return "", f"cannot serve the status page: {error.strerror or error}"
        scheme = "http" if self._certificates.page is None else "https"
        return f"{scheme}://{wanted.names[0] if wanted.names else wanted.host}:{port}/", ""

    async def _drive(
        self, journal: Journal, cluster: Cluster, process_env: ProcessEnv, problem: str
    ) -> FinishJob:
        preparation = JobPreparation(
            self.queue,
            self._spec,
            self._environment.directory,
            self._archive,
            partial(self._platform.check, process_env),
            lambda preflight, start: self._begin(preflight, start, executor),
        )
        deps = ExecutorDeps(
            Launcher(cluster, process_env),
            self._fences,
            Snapshots(
                self._registry,
                between_steps=self._between_steps,
                lives=lambda worker: ProcessName.parse(worker) in self._gateway.sessions,
            ),
            self._archive,
            self.record.event_log,
            self.record.metrics,
            preparation.run,
        )
        executor = Executor(self.queue, self._gateway, deps)
        self._view.cluster = cluster
        if self._recovered is None:
            self._tell_end_of_predecessor()
            executor.carry_out(self.record.begins(self._term, self.queue.at_s()))
            self.queue.post(MasterStarted(self.queue.at_s()))
        else:
            self._take_over(self._recovered, executor)
            self._track(executor)
        for warning in (*self._environment.warnings, *([problem] if problem else ())):
            executor.carry_out(Announce("job", warning, level="warning"))
        if why := self._environment.stopped_for:
            self.queue.post(StopRequested(self.queue.at_s(), why))
        self.queue.spawn("progress", self._tell_progress())
        self.queue.spawn("events of earlier masters", self._read_events())
        driver = Driver(self.core, journal, self.queue, self._gateway, executor)
        self.acts = True
        try:
            return await driver.run(self._observed(cluster))
        except MasterSuperseded:
            self._handover.to_the_next = True
            raise
        except asyncio.CancelledError:
            for name in () if self.has_left else self.core.going:
                await cluster.delete(name, grace_s=0.0)
            raise

    def _tell_end_of_predecessor(self) -> None:
        if (before := self._environment.predecessor) is not None:
            self.record.predecessor_ended(before, self.queue.clock.wall_s(), self.queue.at_s())

    def _take_over(self, recovered: Recovered, executor: Executor) -> None:
        """Give the orders again that an earlier master may not have carried out."""
        unrecorded = recovered.records_after(self.record.event_log.last_s)
        # They get the present time, so they come after the end of the earlier master.
        self._tell_end_of_predecessor()
        for command in unrecorded:
            executor.carry_out(command)
        at_s = self.queue.at_s()
        self.queue.post(MasterTookOver(at_s, self._term, self.record.away_s(at_s)))

    def _continue(self) -> None:
        """Continue with the job and the processes of an earlier master."""
        started, presence = self.core.started, self.core.presence()
        assert started is not None
        self._settled = self.core.spec
        self._resume_work(
            (*started.training, *started.validation, *started.prediction),
            started.restore_from,
            presence.restore_from,
        )
        self._gateway.restore(presence)

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            self._platform.progressed(self.core.records_done)

    async def _read_events(self) -> None:
        await self._view.all_events_read(_EVENTS_PAUSE_S)

    def _resume_work(
        self, sources: tuple[Source, ...], begin_from: str, restore_from: str | None
    ) -> None:
        """Let processes attach: all that they need to hear is known now."""
        self._sources = sources
        self._archive.restore_from = begin_from if restore_from is None else restore_from
        if self._gateway.ring is not None:
            self._gateway.ring.begin_from = begin_from
        self.record.collector.paused = False
        if self._settled.trains_in_steps:
            self._gateway.train_in_steps(self._turns)
        self._begun.set()

    def _begin(self, preflight: Preflight, start: JobStart, executor: Executor) -> None:
        """Begin the job, unless a person has stopped it meanwhile."""
        if not self.core.begun:
            return
        directory = self._environment.directory
        for stale in (directory.receipt, directory.report, directory.newest):
            # These describe the previous run; readers would take them for this run's.
            stale.unlink(missing_ok=True)
        self._settled = self.core.spec
        for warning in preflight.raw.get("warnings") or ():
            executor.carry_out(Announce("job", f"Warning: {warning}", level="warning"))
        self._tell_choice_of_steps(preflight, executor)
        sources = (*preflight.training, *preflight.validation, *preflight.prediction)
        self._resume_work(sources, start.restore_from, None)
        self._track(executor)

    def _track(self, executor: Executor) -> None:
        self.record.start_copies(executor.carry_out)
        for tracker in self.trackers:
            self.queue.spawn("start of a tracker", tracker.start(executor.carry_out))

    @staticmethod
    def _tell_choice_of_steps(preflight: Preflight, executor: Executor) -> None:
        """Tell people why the workers train in synchronous steps, or why not."""
        choice = preflight.raw.get("steps") or {}
        if text := choice.get("text"):
            level = "warning" if choice.get("level") == "warning" else "info"
            executor.carry_out(Announce("staleness", str(text), level=level))

    def _turns(self, orders: OrderStreams) -> StepTurns:
        spec = self._settled
        return StepTurns(
            Steps(spec.gradients_per_step, spec.training.backup_workers),
            self.core.step_outlook,
            self.queue,
            self._registry,
            orders,
            self._between_steps,
        )

    async def _observed(self, cluster: Cluster) -> AsyncIterator[ProcessObserved | ProcessExited]:
        """Yield what the cluster shows, once the job has begun.

        A pod that an earlier master could not end keeps its name. The core must hear of its end
        only after it has ordered a process of that name; the next one gets another name.
        """
        await self._begun.wait()
        async for event in cluster.observe():
            # A master that takes over is shown thousands that it knows from the journal.
            if not isinstance(event, ProcessObserved) or self.core.is_news(event):
                yield event

    async def leave(self, running: asyncio.Future[FinishJob]) -> None:
        """Leave the job to the next master.

        If that cannot continue from the journal, take a checkpoint first, if there is time. A job
        that is about to end may do so.
        """
        spec = self._spec
        if not self._is_kept:
            saves = spec.action is Action.TRAIN and spec.keeps_checkpoints
            await checkpoint_in_time(
                self.core, self.queue, running, lambda: saves and bool(self._registry.attached())
            )
        self.leave_now(running)

    def leave_now(self, running: asyncio.Future[FinishJob]) -> None:
        """Leave at once. A job that a person stopped ends, unless the next master can end it."""
        self._handover.to_the_next = self._is_kept or self.core.status().exit_code is None
        running.cancel()

    def give_way(self, running: asyncio.Future[FinishJob], why: str) -> None:
        """Leave at once, because another master acts."""
        self.superseded_by, self._handover.to_the_next = why, True
        running.cancel()

    @property
    def _is_kept(self) -> bool:
        """Whether the next master can continue where this one is."""
        return self._journal is not None and self._journal.whole

    def with_resume_command(self, finish: FinishJob) -> FinishJob:
        """Add the next step to the end of the job."""
        return with_resume_command(
            finish, self._spec.model_dump(mode="json"), self._environment.directory
        )

    def close_record(self, finish: FinishJob) -> None:
        """Record the last event: how the job ended."""
        self.record.ends(finish, self.queue.clock.wall_s(), self.queue.at_s())

    def snapshot(self, outcome: Outcome, status: JobStatus) -> dict[str, object]:
        """Return the data of page and report for the ended job."""
        now = self.queue.clock.wall_s()
        reading = StatusReading(self._view.about, status, outcome.state, now)
        logs = ends_in(self._environment.directory.logs, status)
        record = record_of(self.record.event_log, status)
        return snapshot(reading, record, self.record.collector.as_list(), outcome, logs)

    def _last_status(self, finish: FinishJob) -> JobStatus:
        status = self.status()
        if status.phase == Phase.ENDED:
            return status
        return cut_short(status, finish.message, finish.exit_code, "killed with the job")

    def _tell_address(self, address: str, page: str) -> None:
        # In a pod the token stays in its Secret: many users may be able to read a volume.
        token = "" if self._platform.has_next else self._environment.token
        # It travels with the token: who may read one may rely on the other.
        trusted = self._environment.trusted if token else None
        master = MasterAddress(address, page, os.getpid(), self._term, token, trusted or "")
        write_master(self._environment.directory, master)
