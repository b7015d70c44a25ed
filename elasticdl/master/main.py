"""`python -m elasticdl.master.main`: the master of one job, with processes of this machine.

The one place where the master's environment is read and its parts are put together. Never imports TensorFlow.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import ProcessName
from elasticdl.cluster.leash import die_with_parent
from elasticdl.cluster.local import LocalCluster, usable_cores
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError, UserError
from elasticdl.job import Action, JobSpec, Strategy
from elasticdl.master.archive import Archive, Beginning
from elasticdl.master.core.commands import FinishJob
from elasticdl.master.core.events import JobStarted, StopRequested
from elasticdl.master.core.state import JobState
from elasticdl.master.driver import Driver
from elasticdl.master.fencing import Fences
from elasticdl.master.files import JobDirectory, JsonLines, write_json
from elasticdl.master.front_desk import FrontDesk
from elasticdl.master.hands import Hands, Means
from elasticdl.master.inbox import Inbox
from elasticdl.master.journal import JournalFile
from elasticdl.master.launching import Launcher
from elasticdl.master.placing import Placing
from elasticdl.master.preflight import Preflight, load_preflight, run_preflight, save_preflight
from elasticdl.master.ring_desk import RingDesk
from elasticdl.master.server_roster import ServerRoster
from elasticdl.master.servicer import MasterServer, MasterService, Welcome
from elasticdl.master.snapshots import Snapshots
from elasticdl.rpc.channel import Credentials
from elasticdl.rpc.ps_control import GrpcServerControl
from elasticdl.shard import Task

_LOG = logging.getLogger("elasticdl.master")
PREFLIGHT_S = 600.0
_MAIN_TASK = {Action.TRAIN: Task.TRAINING, Action.EVALUATE: Task.EVALUATION, Action.PREDICT: Task.PREDICTION}


@dataclass(frozen=True, slots=True)
class Environment:
    """What whoever starts a master tells it."""

    directory: JobDirectory
    token: str = field(repr=False)
    host: str
    port: int
    rendezvous_port: int = 0

    @classmethod
    def read(cls) -> Environment:
        """From ELASTICDL_*. The token is taken out: processes get it as a secret, user code of the preflight not at all."""
        try:
            return cls(
                JobDirectory(Path(os.environ["ELASTICDL_JOB_DIR"]).resolve()),
                os.environ.pop("ELASTICDL_TOKEN"),
                os.environ.get("ELASTICDL_BIND_HOST", "127.0.0.1"),
                int(os.environ.get("ELASTICDL_PORT", "0")),
                int(os.environ.get("ELASTICDL_RENDEZVOUS_PORT", "0")),
            )
        except (KeyError, ValueError) as error:
            raise PermanentError(
                f"the environment of the master lacks or garbles {error}", hint="`elasticdl train` sets it"
            ) from error


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known before the first process starts."""

    spec: JobSpec
    preflight: Preflight
    beginning: Beginning
    epoch: int


def plan(directory: JobDirectory) -> Plan:
    """Read the job, look at model and data unless the CLI has, find what to begin with. Raises ElasticDLError."""
    epoch = _next_epoch(directory.master)
    # Nobody listens there any more.
    directory.master.unlink(missing_ok=True)
    try:
        spec = JobSpec.model_validate_json(directory.spec.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{directory.spec} is not a job: {error}") from error
    preflight = load_preflight(directory.preflight)
    if preflight is None:
        preflight = run_preflight(spec, PREFLIGHT_S)
        save_preflight(directory.preflight, preflight)
    return Plan(spec, preflight, Archive(spec, directory.checkpoints).beginning(), epoch)


def _next_epoch(path: Path) -> int:
    """One more than that of a master that did not get to remove its file."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(path.read_text(encoding="utf-8"))["epoch"]) + 1
    return 1


@final
class Master:
    """Everything that one master is made of."""

    def __init__(self, environment: Environment, plan: Plan) -> None:
        self._environment = environment
        self._plan = plan
        self._cluster: LocalCluster | None = None
        directory, spec = environment.directory, plan.spec
        self.inbox = Inbox(SystemClock())
        self.core = JobState(spec)
        credentials = Credentials(environment.token, "master")
        self._roster = ServerRoster(
            spec.cluster.num_ps_pods, lambda name, address: GrpcServerControl(str(name), address, credentials, plan.epoch)
        )
        self._fences = Fences(self._roster)
        self._desk = FrontDesk(self.inbox, self._roster, self._fences, _MAIN_TASK[spec.action], self.core.may_attach)
        if spec.training.distribution_strategy is Strategy.ALLREDUCE:
            self._desk.ring = RingDesk(self._desk.orders, plan.beginning.restore_from)
        self._archive = Archive(spec, directory.checkpoints)
        self._archive.restore_from = plan.beginning.restore_from
        welcome = Welcome(plan.epoch, spec.model_dump_json(), lambda: self._archive.restore_from)
        self._server = MasterServer(MasterService(self.inbox, self._desk, welcome, self.status_json), environment.token)
        self._lines = JsonLines(directory.events), JsonLines(directory.metrics)

    def status(self) -> dict[str, Any]:
        """The core's status with what only an onlooker knows."""
        numbers = self._desk.numbers()
        found = asdict(self.core.status())
        found["records"]["records_per_s"] = numbers["records_per_s"]
        return {**found, **numbers}

    def status_json(self) -> str:
        """The same for the wire."""
        return json.dumps(self.status())

    async def run(self) -> FinishJob:
        """From the first event to the last command. Every process is gone when it returns or raises."""
        environment, directory, cores = self._environment, self._environment.directory, usable_cores()
        port = await self._server.start(environment.host, environment.port)
        address = f"{environment.host}:{port}"
        cluster = LocalCluster(directory.logs, cores)
        journal = JournalFile(directory.journal)
        try:
            self._tell_address(address)
            if self._desk.ring is not None:
                await self._desk.ring.start(environment.host, environment.rendezvous_port)
            placing = Placing(self._plan.spec, str(directory.path), address, environment.token, cores)
            means = Means(Launcher(cluster, placing), self._fences, Snapshots(self._roster), self._archive, *self._lines)
            driver = Driver(self.core, journal, self.inbox, self._desk, Hands(self.inbox, self._desk, means))
            self.inbox.post(self._started())
            return await driver.run(cluster)
        except asyncio.CancelledError:
            for process in self.core.status().processes:
                await cluster.delete(ProcessName.parse(process.name), grace_s=0.0)
            raise
        finally:
            await cluster.close()
            if self._desk.ring is not None:
                await self._desk.ring.close()
            await self._roster.close()
            await self._server.close()
            journal.close()
            for lines in self._lines:
                lines.close()
            directory.master.unlink(missing_ok=True)

    def _started(self) -> JobStarted:
        found, beginning = self._plan.preflight, self._plan.beginning
        return JobStarted(
            self.inbox.at_s(),
            found.training,
            found.validation,
            found.prediction,
            beginning.ledger,
            beginning.version,
            beginning.passed_over,
        )

    def _tell_address(self, address: str) -> None:
        where = {"address": address, "token": self._environment.token, "pid": os.getpid(), "epoch": self._plan.epoch}
        write_json(self._environment.directory.master, where, mode=0o600)


def leave_outcome(directory: JobDirectory, finish: FinishJob, master: Master | None) -> None:
    """Receipt and last status, readable when nobody is there any more. A disk that refuses them changes no outcome."""
    outcome = {"exit_code": int(finish.exit_code), "message": finish.message, "hint": finish.hint}
    try:
        if master is not None:
            write_json(directory.receipt, master.core.receipt())
        write_json(directory.status, {**outcome, "status": master.status() if master is not None else None})
    except OSError as error:
        _LOG.error("cannot leave the outcome in %s: %s", directory.path, error)


def on_signals(stop: Callable[[str], object], end: Callable[[], object]) -> None:
    """The first SIGTERM or SIGINT stops the job in order, the second ends it at once."""
    loop, seen = asyncio.get_running_loop(), 0

    def caught(number: signal.Signals) -> None:
        nonlocal seen
        seen += 1
        _LOG.warning("%s: %s", number.name, "the job is being stopped" if seen == 1 else "ending at once")
        if seen == 1:
            stop(f"the master got {number.name}")
        elif seen == 2:
            end()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, caught, number)


async def serve(environment: Environment, plan: Plan) -> FinishJob:
    """Run the job and leave its outcome on disk."""
    master = Master(environment, plan)
    running = asyncio.ensure_future(master.run())
    on_signals(lambda reason: master.inbox.post(StopRequested(master.inbox.at_s(), reason)), running.cancel)
    try:
        finish = await running
    except asyncio.CancelledError:
        finish = FinishJob(ExitCode.INTERRUPTED, "ended at once by a second signal", "resume it with --resume")
    except Exception as error:  # noqa: BLE001 - the top of the process: it ends the job visibly
        _LOG.exception("the master failed")
        hint = (
            f"see to {error.filename or environment.directory.path}, then use --resume" if isinstance(error, OSError) else "a bug"
        )
        finish = FinishJob(ExitCode.JOB_FAILED, f"the master failed: {error!r}", hint)
    leave_outcome(environment.directory, finish, master)
    return finish


def main() -> int:
    """The process; returns its exit code."""
    die_with_parent()
    # Until the loop has handlers of its own: end in order, so that a child of the preflight ends, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    try:
        environment = Environment.read()
    except ElasticDLError as error:
        _LOG.error("%s\n%s", error.message, error.hint)
        return ExitCode.USAGE
    try:
        finish = asyncio.run(serve(environment, plan(environment.directory)))
    except ElasticDLError as error:
        code = ExitCode.JOB_FAILED if error.exit_code is ExitCode.USER_ERROR else error.exit_code
        finish = FinishJob(code, error.message, error.hint)
        leave_outcome(environment.directory, finish, None)
    except KeyboardInterrupt:
        finish = FinishJob(ExitCode.INTERRUPTED, "ended before any process was started")
        leave_outcome(environment.directory, finish, None)
    level = logging.INFO if finish.exit_code is ExitCode.DONE else logging.ERROR
    _LOG.log(level, "exit code %d: %s%s", finish.exit_code, finish.message, f"\n{finish.hint}" if finish.hint else "")
    return finish.exit_code


if __name__ == "__main__":
    sys.exit(main())
