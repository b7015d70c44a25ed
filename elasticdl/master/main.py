"""`python -m elasticdl.master.main`: the master of one job, on this machine or in a pod.

Only this module puts the master's parts together. It never imports TensorFlow, and on one machine
never the Kubernetes client.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import final

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import Cluster, ProcessExited, ProcessName, ProcessObserved
from elasticdl.cluster.kubernetes.planning import SPEC_VARIABLE
from elasticdl.cluster.local.parent_death import die_with_parent
from elasticdl.cluster.logs.log_tails import ends_in
from elasticdl.errors import ElasticDLError, ExitCode, UserError
from elasticdl.formatting import spoken
from elasticdl.history.event_log import METRICS_POLICY, EventLog
from elasticdl.history.job_event import EventKind, meaning
from elasticdl.history.lines import JsonLines
from elasticdl.history.snapshot import StatusReading, about, record_of, snapshot
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_status import JobStatus
from elasticdl.jobdir.last_status import cut_short, last_seen_s
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.master_address import MasterAddress, read_master, write_master
from elasticdl.jobdir.outcome import Outcome
from elasticdl.jobdir.resume_command import after_a_stop
from elasticdl.master.core.commands import Announce, FinishJob
from elasticdl.master.core.events import MasterStarted, StopRequested
from elasticdl.master.core.job_context import Phase
from elasticdl.master.core.ps.steps import Steps
from elasticdl.master.core.state import JobState
from elasticdl.master.driver import Driver
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
from elasticdl.master.gateway.order_streams import OrderStreams
from elasticdl.master.gateway.process_gateway import ProcessGateway
from elasticdl.master.gateway.ps_registry import PsRegistry
from elasticdl.master.gateway.servicer import MasterServer, MasterService, Welcome
from elasticdl.master.gateway.step_turns import StepTurns
from elasticdl.master.journal import JournalFile
from elasticdl.master.outcome import (
    leave_outcome,
    leave_report,
    outcome_of,
    tell_story,
    with_resume_command,
)
from elasticdl.master.platform.platform import Handover, LocalPlatform, MasterEnvironment, Platform
from elasticdl.master.preflight import Preflight
from elasticdl.master.status.access import AccessGuard
from elasticdl.master.status.collector import Collector, MetricsLog
from elasticdl.master.status.job_view import JobView, job_status
from elasticdl.master.status.server import StatusServer
from elasticdl.master.tensorboard_scalars import ScalarRuns
from elasticdl.rpc.open_files import raise_file_limit
from elasticdl.rpc.ps_control import GrpcServerControl
from elasticdl.rpc.rendezvous import Rendezvous
from elasticdl.shard import Source, Task
from elasticdl.tls import MASTER_NAME
from elasticdl.tls.authority import Authority, CertifiedKey
from elasticdl.tls.contexts import server_context
from elasticdl.tokens import process_token

_LOG = logging.getLogger("elasticdl.master")
_MAIN_TASK = {
    Action.TRAIN: Task.TRAINING,
    Action.EVALUATE: Task.EVALUATION,
    Action.PREDICT: Task.PREDICTION,
}


def read_spec(directory: JobDirectory) -> JobSpec:
    """Read the job of a directory. Raises UserError."""
    try:
        return JobSpec.model_validate_json(directory.spec.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the job in {directory.spec}: {error}") from error


@final
class Master:
    """All parts of one master."""

    def __init__(self, environment: MasterEnvironment, spec: JobSpec, platform: Platform) -> None:
        self._environment = environment
        self._spec = self._settled = spec
        """The job as it was submitted, and with what the preflight decides."""
        self._platform = platform
        self._handover = Handover()
        directory = environment.directory
        # Exceed the term of a master that died without removing its file.
        before = read_master(directory)
        self._term = max(environment.term, before.term + 1 if before is not None else 1)
        # Nobody listens at the old address any more.
        directory.master.unlink(missing_ok=True)
        clock = SystemClock()
        self.event_log = EventLog(directory.events, clock.wall_s())
        self._heard_s = max(self.event_log.last_s, last_seen_s(directory))
        """When an earlier master last gave a sign of life, in seconds of the job."""
        self.collector = Collector(directory.series, clock, directory.newest)
        self.collector.paused = True
        scalars = ScalarRuns(spec.checkpoint.tensorboard_log_dir)
        self._metrics = MetricsLog(
            JsonLines(directory.metrics, METRICS_POLICY), self.collector, scalars
        )
        self.queue = EventQueue(clock, self.event_log.began_s)
        self.core = JobState(spec, platform.limits)
        own = self._certified_key()
        self._context = server_context(own.certificate, own.key) if own else None
        self._registry = PsRegistry(
            spec.cluster.num_ps_pods,
            lambda name, address: GrpcServerControl(
                str(name),
                address,
                process_token(environment.token, str(name)),
                self._term,
                environment.trusted,
            ),
        )
        self._between_steps = asyncio.Lock()
        self._fences = Fences(self._registry, self._between_steps)
        self._gateway = ProcessGateway(
            self.queue,
            self._registry,
            self._fences,
            _MAIN_TASK[spec.action],
            self.core.may_attach,
            partial(RingCoordinator, rendezvous=Rendezvous(context=self._context))
            if spec.trains_on_ring
            else None,
        )
        self._archive = CheckpointArchive(spec, directory.checkpoints)
        self._sources: tuple[Source, ...] = ()
        welcome = Welcome(
            environment.token,
            self._term,
            lambda: self._settled.model_dump_json(),
            lambda: self._archive.restore_from,
            lambda: self._sources,
            environment.authority,
        )
        service = MasterService(self.queue, self._gateway, welcome, self.status_json, self.core)
        self._server = MasterServer(service, own)
        self._view = self._job_view()
        self._page = StatusServer(
            self._view,
            AccessGuard(environment.token, environment.page.names),
            self._term,
            directory.logs,
            context=self._page_context(),
        )
        self._begun = asyncio.Event()
        self._finish: FinishJob | None = None

    def _certified_key(self) -> CertifiedKey | None:
        """Make the master's certificate; None: no TLS."""
        if self._environment.authority is None:
            return None
        here = ("localhost", "127.0.0.1", "::1")
        names = (MASTER_NAME, *self._environment.page.names, *here)
        return self._environment.authority.certified_key(names)

    def _page_context(self) -> ssl.SSLContext | None:
        """The user's certificate for browsers; our command line asks for the master by its name."""
        own = self._environment.page.certified_key
        if own is None or self._context is None:
            return self._context
        return server_context(own.certificate, own.key, {MASTER_NAME: self._context})

    def _job_view(self) -> JobView:
        what = about(
            self._spec,
            self.event_log.started_at,
            self._environment.page.namespace,
            after_a_stop(self._spec, self._environment.directory),
        )
        return JobView(what, self.core, self._gateway, self.queue, self.event_log, self.collector)

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

        Every process is gone when it returns or raises, unless it `has_left`.
        """
        environment, directory = self._environment, self._environment.directory
        port = await self._server.start(environment.host, environment.port)
        journal = JournalFile(directory.journal)
        try:
            if self._gateway.ring is not None:
                await self._gateway.ring.start(
                    environment.host.strip("[]"), environment.rendezvous_port
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
            await self._server.close()
            journal.close()
            self._metrics.close()
            self.event_log.close()
            directory.master.unlink(missing_ok=True)

    async def _open_page(self) -> tuple[str, str]:
        """Open the page; return its address, or the problem. A job runs without its page too."""
        wanted = self._environment.page
        try:
            port = await self._page.start(
                wanted.host, wanted.port or self._spec.cluster.status_port
            )
        except OSError as error:
            return "", f"cannot serve the status page: {error.strerror or error}"
        scheme = "http" if self._context is None else "https"
        return f"{scheme}://{wanted.names[0] if wanted.names else wanted.host}:{port}/", ""

    async def _drive(
        self, journal: JournalFile, cluster: Cluster, process_env: ProcessEnv, problem: str
    ) -> FinishJob:
        preparation = JobPreparation(
            self.queue,
            self._spec,
            self._environment.directory,
            self._archive,
            partial(self._platform.check, process_env),
            lambda preflight, start: self._begin(preflight, start, cluster, executor),
        )
        deps = ExecutorDeps(
            Launcher(cluster, process_env),
            self._fences,
            Snapshots(self._registry, between_steps=self._between_steps),
            self._archive,
            self.event_log,
            self._metrics,
            preparation.run,
        )
        executor = Executor(self.queue, self._gateway, deps)
        executor.carry_out(self._start_announcement())
        for warning in (*self._environment.warnings, *([problem] if problem else ())):
            executor.carry_out(Announce("job", warning, level="warning"))
        self.queue.post(MasterStarted(self.queue.at_s()))
        driver = Driver(self.core, journal, self.queue, self._gateway, executor)
        try:
            return await driver.run(self._observed(cluster))
        except asyncio.CancelledError:
            for process in () if self.has_left else self.core.status().processes:
                await cluster.delete(ProcessName.parse(process.name), grace_s=0.0)
            raise

    def _begin(
        self, preflight: Preflight, start: JobStart, cluster: Cluster, executor: Executor
    ) -> None:
        """Begin the job, unless a person has stopped it meanwhile."""
        if not self.core.begun:
            return
        directory = self._environment.directory
        for stale in (directory.receipt, directory.report, directory.newest):
            # These describe the previous run; readers would take them for this run's.
            stale.unlink(missing_ok=True)
        self._sources = (*preflight.training, *preflight.validation, *preflight.prediction)
        self._archive.restore_from = start.restore_from
        if self._gateway.ring is not None:
            self._gateway.ring.begin_from = start.restore_from
        self._view.cluster = cluster
        self.collector.paused = False
        self._train_in_steps(preflight, executor)
        for warning in preflight.raw.get("warnings") or ():
            executor.carry_out(Announce("job", f"Warning: {warning}", level="warning"))
        self._begun.set()

    def _train_in_steps(self, preflight: Preflight, executor: Executor) -> None:
        """Train in synchronous steps if the user or the preflight chose them."""
        if preflight.sync is not None:
            self._settled = self._spec.replace(sync=preflight.sync)
        if self._settled.trains_in_steps:
            self._gateway.train_in_steps(self._turns)
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
            yield event

    async def leave(self, running: asyncio.Future[FinishJob]) -> None:
        """Leave the job to the next master, with a checkpoint if there is time.

        A job that is about to end may do so.
        """
        spec = self._spec
        kept = spec.action is Action.TRAIN and spec.keeps_checkpoints
        await checkpoint_in_time(
            self.core, self.queue, running, lambda: kept and bool(self._registry.attached())
        )
        self.leave_now(running)

    def leave_now(self, running: asyncio.Future[FinishJob]) -> None:
        """Leave at once. A job that a person stopped has no next master: it ends."""
        self._handover.to_the_next = self.core.status().exit_code is None
        running.cancel()

    def _start_announcement(self) -> Announce:
        """Return the event that this master starts or continues the job."""
        away_s = max(0.0, self.queue.at_s() - self._heard_s)
        first = self.event_log.next_seq == 0
        what = f"{self._spec.action} {self._spec.model.model_def}"
        since = "" if self.event_log.ended_before else " without a master"
        text = (
            f"job started: {what}"
            if first
            else f"job resumed after {spoken(away_s)}{since}: {what}"
        )
        details = meaning(EventKind.BEGUN, term=self._term, away_s=0.0 if first else away_s)
        return Announce("job", text, details=details)

    def with_resume_command(self, finish: FinishJob) -> FinishJob:
        """Add the next step to the end of the job."""
        return with_resume_command(
            finish, self._spec.model_dump(mode="json"), self._environment.directory
        )

    def close_record(self, finish: FinishJob) -> None:
        """Record the last event: how the job ended."""
        # "job failed: …" has told why, if the job had begun.
        why = "" if finish.exit_code is ExitCode.JOB_FAILED else f": {finish.message}"
        text = f"job ended with exit code {int(finish.exit_code)}{why}"
        details = meaning(
            EventKind.ENDED,
            exit_code=int(finish.exit_code),
            message=finish.message,
            hint=finish.hint,
        )
        level = "info" if finish.exit_code in (ExitCode.DONE, ExitCode.INTERRUPTED) else "error"
        stamp = {"at": round(self.queue.clock.wall_s(), 3), "at_s": round(self.queue.at_s(), 3)}
        self.event_log.append(
            stamp, {"kind": "job", "text": text, "level": level, "details": details}
        )
        self.event_log.close()

    def snapshot(self, outcome: Outcome, status: JobStatus) -> dict[str, object]:
        """Return the data of page and report for the ended job."""
        now = self.queue.clock.wall_s()
        reading = StatusReading(self._view.about, status, outcome.state, now)
        logs = ends_in(self._environment.directory.logs, status)
        record = record_of(self.event_log, status)
        return snapshot(reading, record, self.collector.as_list(), outcome, logs)

    def _last_status(self, finish: FinishJob) -> JobStatus:
        status = self.status()
        if status.phase == Phase.ENDED:
            return status
        why = finish.message.partition("\n")[0]
        return cut_short(status, finish.message, finish.exit_code, f"killed with the job: {why}")

    def _tell_address(self, address: str, page: str) -> None:
        # In a pod the token stays in its Secret: many users may be able to read a volume.
        token = "" if self._platform.has_next else self._environment.token
        # It travels with the token: who may read one may rely on the other.
        trusted = self._environment.trusted if token else None
        master = MasterAddress(address, page, os.getpid(), self._term, token, trusted or "")
        write_master(self._environment.directory, master)


def on_signals(first: Callable[[str], object], second: Callable[[], object]) -> None:
    """Handle SIGTERM and SIGINT."""
    loop, seen = asyncio.get_running_loop(), 0

    def caught(number: signal.Signals) -> None:
        nonlocal seen
        seen += 1
        _LOG.warning("%s: %s", number.name, "stopping gracefully" if seen == 1 else "exiting now")
        if seen == 1:
            first(f"the master received {number.name}")
        elif seen == 2:
            second()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, caught, number)


async def serve(environment: MasterEnvironment, spec: JobSpec, platform: Platform) -> FinishJob:
    """Run the job and save its outcome, unless the next master continues the job."""
    master = Master(environment, spec, platform)
    running = asyncio.ensure_future(master.run())
    departing: list[asyncio.Future[None]] = []
    if platform.has_next:
        # The node is being drained or the pod preempted, so the next master continues the job.
        on_signals(
            lambda _: departing.append(asyncio.ensure_future(master.leave(running))),
            lambda: master.leave_now(running),
        )
    else:
        on_signals(
            lambda reason: master.queue.post(StopRequested(master.queue.at_s(), reason)),
            running.cancel,
        )
    try:
        finish = await running
    except asyncio.CancelledError:
        finish = _cut_short(master)
    except Exception as error:  # noqa: BLE001 - the top of the process: it ends the job visibly
        _LOG.exception("the master failed")
        hint = (
            f"check {error.filename or environment.directory.path}"
            if isinstance(error, OSError)
            else "this is a bug in ElasticDL"
        )
        finish = FinishJob(ExitCode.JOB_FAILED, f"the master failed: {error!r}", hint)
    for task in departing:
        task.cancel()
    if not master.has_left and finish.exit_code is not ExitCode.UNAVAILABLE:
        finish = master.with_resume_command(finish)
        master.close_record(finish)
        outcome, status = master.outcome(finish)
        leave_outcome(environment.directory, outcome, status)
        if status is not None:
            leave_report(environment.directory, lambda: master.snapshot(outcome, status))
        if platform.has_next:
            tell_story(master.event_log)
        platform.tell(outcome)
    return finish


def _cut_short(master: Master) -> FinishJob:
    if master.has_left:
        return FinishJob(ExitCode.DRAINED, "the master exits; the next one continues the job")
    status = master.core.status()
    if status.exit_code is not None:
        return FinishJob(ExitCode(status.exit_code), status.outcome or "", "")
    return FinishJob(ExitCode.INTERRUPTED, "killed by a second signal", "")


def main() -> int:
    """Run the process; return its exit code."""
    die_with_parent()
    raise_file_limit()
    # Until the loop has its own handlers: exit cleanly.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        finish = _work(_platform())
    except ElasticDLError as error:
        finish = FinishJob(error.exit_code, error.message, error.hint)
    level = (
        logging.INFO if finish.exit_code in (ExitCode.DONE, ExitCode.INTERRUPTED) else logging.ERROR
    )
    _LOG.log(
        level,
        "exit code %d: %s%s",
        finish.exit_code,
        finish.message,
        f"\n{finish.hint}" if finish.hint else "",
    )
    return finish.exit_code


def _platform() -> Platform:
    if SPEC_VARIABLE not in os.environ:
        return LocalPlatform()
    from elasticdl.master.platform.kubernetes import KubernetesPlatform

    return KubernetesPlatform()


def _work(platform: Platform) -> FinishJob:
    """Do this master's part of the job.

    Raises ElasticDLError if even the platform cannot record the error.
    """
    directory: JobDirectory | None = None
    try:
        environment = platform.open()
        directory = environment.directory
        spec = read_spec(directory)
        if spec.uses_tls and environment.authority is None:
            # A job on this machine ends with its master, and so does its authority.
            authority = Authority.new(spec.cluster.job_name)
            environment = replace(environment, authority=authority)
        return asyncio.run(serve(environment, spec, platform))
    except ElasticDLError as error:
        if directory is None and not platform.has_next:
            raise
        code = ExitCode.JOB_FAILED if error.exit_code is ExitCode.USER_ERROR else error.exit_code
        finish = FinishJob(code, error.message, error.hint)
    except KeyboardInterrupt:
        code = ExitCode.DRAINED if platform.has_next else ExitCode.INTERRUPTED
        finish = FinishJob(code, "interrupted before any process started")
    if finish.exit_code not in (ExitCode.DRAINED, ExitCode.UNAVAILABLE):
        outcome = outcome_of(finish, directory)
        if directory is not None:
            leave_outcome(directory, outcome)
        platform.tell(outcome)
    return finish


if __name__ == "__main__":
    sys.exit(main())
