"""The life of a worker, from its registration at the master to its last report.

Only this module reads the process's environment. TensorFlow's import takes seconds, so a thread
imports it while the main thread attaches and connects.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticdl.clock import Clock, SystemClock
from elasticdl.cluster.local.machine import free_memory_bytes
from elasticdl.cluster.role_environment import MASTER_AWAY_S, RoleEnvironment, step_threads
from elasticdl.data.files import DataChanged
from elasticdl.errors import CannotRun, UserError
from elasticdl.formatting import BUILDING, GIVING_PART, IMPORTING
from elasticdl.job_choices import Strategy
from elasticdl.model.bad_record_filter import BadRecords
from elasticdl.model.horovod import horovod
from elasticdl.model.tensorflow_import import load_tensorflow
from elasticdl.on_train_end import ON_TRAIN_END
from elasticdl.own_process import log_error, log_to_stderr
from elasticdl.rpc.conversation import Attached, Failure, Servers
from elasticdl.rpc.master_client import MasterClient
from elasticdl.rpc.parameters import Parameters
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.shard import Task
from elasticdl.time_use import TimeUse
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.leases import LeaseKeeper
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.reporter import Reporter
from elasticdl.worker.pipeline.retry import ServerRetry
from elasticdl.worker.pipeline.state_reports import StateReports
from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.hang_watch import HangWatch, StoodStill
from elasticdl.worker.process.interpreter_watch import watch_interpreter
from elasticdl.worker.process.journal_holder import hold_journal_copy
from elasticdl.worker.process.order_receiver import OrderReceiver
from elasticdl.worker.process.os_process import leave
from elasticdl.worker.process.shutdown import (
    CallbackFailed,
    Done,
    Draining,
    Failed,
    NonFinite,
    Shutdown,
)
from elasticdl.worker.process.thread_queue import Ended
from elasticdl.worker.ps.kept_pushes import kept_bytes
from elasticdl.worker.ps.revival import Revival
from elasticdl.worker.ps.turns import Turns
from elasticdl.worker.ring.generations import Generations

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.worker.ps.wiring import Worker
    from elasticdl.worker.ring.wiring import RingWorker

_log = logging.getLogger(__name__)

SETTLE_S = 3.0
FLUSH_S = 5.0


def import_tensorflow(threads: int) -> None:
    """Import TensorFlow, and limit its threads per step (0: no limit) before it starts any.

    Three threads call steps, ids and `feed`. With fewer threads between operations than that, the
    small calls would queue behind the step (measured: 1200 ms instead of 0.8 ms), and nothing would
    overlap.
    """
    load_tensorflow()
    import tensorflow as tf

    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads + 2)
    import elasticdl.worker.ps.wiring  # noqa: F401 - so that the rest of the model layer is imported here, too


def preload() -> None:
    """Import in a template of workers what each of them would import (`cluster/local/template.py`).

    It must not start a thread, connect, or run an operation of TensorFlow: a fork loses these.
    """
    log_to_stderr()
    import_tensorflow(threads=0)
    import numpy.random  # noqa: F401 - the order of records is drawn with it


def preload_ring() -> None:
    """Import in a template what each member of a ring would import. As `preload`."""
    preload()
    import elasticdl.worker.ring.wiring  # noqa: F401

    with suppress(CannotRun):  # the preflight refuses the job
        horovod()


class _Import(threading.Thread):
    """Imports TensorFlow in the background; `wait` raises the import's error."""

    def __init__(self, threads: int) -> None:
        super().__init__(name="import", daemon=True)
        self._threads = threads
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            import_tensorflow(self._threads)
        except BaseException as error:  # noqa: BLE001 - the top of a thread: `wait` raises it
            self._error = error

    def wait(self, shutdown: Shutdown) -> None:
        """Block until the import is done. Raises Ended if the worker ends first."""
        while self.is_alive():
            if shutdown:
                raise Ended
            self.join(0.1)
        if self._error is not None:
            raise self._error


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What a worker reaches outside of itself, besides the master.

    `connect` creates a client of the servers. `leave` ends the process at once.
    """

    clock: Clock
    gauges: Gauges
    watch: HangWatch
    connect: Callable[[Attached], Parameters]
    leave: Callable[[], None]

    @classmethod
    def real(cls, environment: RoleEnvironment, shutdown: Shutdown) -> ProcessContext:
        """Return the context of a process of its own."""
        clock = SystemClock()

        def connect(attached: Attached) -> ServerPool:
            return ServerPool(
                attached.servers or ("",),
                str(environment.name),
                attached.bulk_tokens or ("",),
                authority=environment.authority,
                precision=attached.spec.wire_precision,
                first=attached.first_server,
                kept_bytes=kept_bytes(attached.spec, free_memory_bytes()),
            )

        return cls(clock, Gauges(clock), HangWatch(clock), connect, lambda: leave(shutdown))


@dataclass(frozen=True, slots=True)
class Link:
    """Everything that exists once the master knows this worker, long before the model is built."""

    attached: Attached
    context: WorkerContext
    orders: OrderReceiver
    reporter: Reporter
    parameters: Parameters
    generations: Generations
    revival: Revival
    turns: Turns | None

    @classmethod
    def make(cls, client: MasterClient, around: ProcessContext, shutdown: Shutdown) -> Link:
        """Attach, connect, and start to report and to follow orders.

        Leases wait until there is a model to use them.
        """
        attached = client.attach(starting=True)
        gauges, watch, outbox = around.gauges, around.watch, Outbox()
        # The master accounts for the time until it attached.
        gauges.times.begin()
        keeper = LeaseKeeper(client, outbox, shutdown)
        context = WorkerContext(
            keeper, outbox, gauges, ServerRetry(shutdown, gauges, around.clock), watch, shutdown
        )
        parameters = around.connect(attached)
        revival = Revival(shutdown)
        spec = attached.spec
        alone = spec.cluster.num_workers.high == 1
        turns = Turns(client, keeper, shutdown, alone=alone) if spec.trains_in_steps else None

        def move(servers: Servers) -> None:
            # A ring has no servers: the order that names them is empty.
            if servers.addresses:
                parameters.move(servers.addresses, servers.first, servers.tokens)
                revival.moved(servers.addresses)

        generations = Generations(shutdown, around.clock, outbox.drop)
        states = StateReports(outbox, watch)
        orders = OrderReceiver(
            client.orders,
            shutdown,
            move=move,
            revoke=keeper.revoke,
            ring=generations.follow,
            tell_state=states.ask,
            settled=turns.settled if turns is not None else lambda order: None,
        )
        reporter = Reporter(outbox, gauges, client, attached.heartbeat_s, shutdown, states)
        reporter.start()
        orders.start()

        def report(error: StoodStill) -> None:
            _report_standstill(error, outbox, reporter)

        watch.start(shutdown, around.leave, report)
        return cls(attached, context, orders, reporter, parameters, generations, revival, turns)


def work(
    environment: RoleEnvironment, client: MasterClient, link: Link, importing: _Import
) -> Worker | RingWorker:
    """Build the worker and let it work until it ends; `Shutdown` then has the reason."""
    context = link.context
    watch_interpreter(link.attached.spec.model.model_zoo)
    importing.wait(context.shutdown)
    context.starting("build")
    spec = link.attached.spec
    if spec.trains_on_ring:
        return _work_on_ring(environment, client, link)
    from elasticdl.worker.pipeline.assignment import Assignment
    from elasticdl.worker.ps.wiring import assemble

    begin_s = time.monotonic()
    assignment = Assignment.of(environment.name, environment.job_dir, link.attached)
    with context.watch.starting(f"{IMPORTING}, or {BUILDING},", spec.model.model_zoo):
        if spec.training.distribution_strategy is Strategy.ALLREDUCE:
            from elasticdl.worker.ring.evaluation import assemble_local

            worker = assemble_local(assignment, link.attached.restore_from, context)
        else:
            worker = assemble(assignment, link.parameters, context, link.turns)
    context.starting("weights")
    if worker.start():
        context.starting(GIVING_PART)
    link.revival.start(worker.trainer.revive)
    context.starting("")
    context.keeper.start()
    _log.info("ready: built the model and got its weights in %.1f s", time.monotonic() - begin_s)
    worker.run()
    return worker


def _work_on_ring(environment: RoleEnvironment, client: MasterClient, link: Link) -> RingWorker:
    from elasticdl.worker.pipeline.assignment import Assignment
    from elasticdl.worker.ring.wiring import MasterOfRing, assemble_ring

    assignment = Assignment.of(environment.name, environment.job_dir, link.attached)
    master = MasterOfRing(environment.master.rpartition(":")[0], environment.authority)
    with link.context.watch.starting(
        f"{IMPORTING}, or {BUILDING},", link.attached.spec.model.model_zoo
    ):
        worker = assemble_ring(assignment, master, client, link.generations, link.context)
    # The worker reports itself when it has compiled.
    link.context.starting("compile")
    worker.run()
    return worker


def wind_down(worker: Worker | RingWorker | None, link: Link) -> None:
    """Do what the reason to end still requires, and send the last report."""
    context = link.context
    context.gauges.times.now(TimeUse.ENDING)
    reason = context.shutdown.reason
    _log.info("leaving: %s", reason or "no more work")
    match reason:
        case Done() | None:
            if worker is not None:
                worker.settle(SETTLE_S)
                # `end` also calls the last `on_epoch_end`: the limit and its text cover both.
                context.shutdown.in_train_end = True
                with context.watch.doing(ON_TRAIN_END):
                    worker.callbacks.end()
                context.shutdown.in_train_end = False
            context.shutdown.end(Done())
        case Draining():
            if worker is not None:
                worker.leave()
            if worker is None or worker.settle(SETTLE_S):
                context.outbox.give_back(context.outbox.held())
        case Failed(error):
            _tell_failure(reason, error, link)
    if not link.reporter.flush(FLUSH_S):
        _log.warning("the master did not receive the last report within %g s", FLUSH_S)


def _tell_failure(reason: Failed, error: BaseException, link: Link) -> None:
    """Log the failure, and report it to the master if the user can fix it."""
    log_error(_log, error)
    if isinstance(error, UserError):
        lease = reason.lease
        fatal = lease is None or isinstance(error, (NonFinite, BadRecords, DataChanged))
        if isinstance(error, CallbackFailed) and lease is not None and lease.task is Task.TRAINING:
            lease = None
        text = f"{error.message}\n{error.hint}".strip()
        link.context.outbox.fail(
            Failure(
                task=lease.task if lease else None,
                shard=lease.shard.id if lease and lease.shard else None,
                attempt=lease.attempt if lease else 0,
                error=text,
                fatal=fatal,
            )
        )


def _report_standstill(error: StoodStill, outbox: Outbox, reporter: Reporter) -> None:
    """Report user code that stood still; another worker may try it, within the job's budget."""
    outbox.fail(
        Failure(
            task=None, shard=None, attempt=0, error=f"{error.message}\n{error.hint}", fatal=False
        )
    )
    if not reporter.flush(FLUSH_S):
        _log.warning("the last report did not get to the master within %g s", FLUSH_S)


def run(shutdown: Shutdown) -> None:
    """Run a worker's whole life, except for its end as a process."""
    environment = RoleEnvironment.read()
    importing = _Import(step_threads())
    client = MasterClient(
        environment.master,
        environment.token,
        str(environment.name),
        away_s=MASTER_AWAY_S,
        authority=environment.authority,
    )
    link = Link.make(client, ProcessContext.real(environment, shutdown), shutdown)
    worker: Worker | RingWorker | None = None
    try:
        _copy = hold_journal_copy(environment, client, link.attached)
        worker = work(environment, client, link, importing)
    except Ended:
        _log.info("ended before the first step")
    except Exception as error:  # noqa: BLE001 - the top of the process: it ends the worker visibly
        shutdown.fail(error)
    try:
        wind_down(worker, link)
    except UserError as error:  # of `on_train_end`
        shutdown.fail(error)
        wind_down(None, link)
