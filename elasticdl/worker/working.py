"""What a worker does from its first word to the master to its last. The one place where its environment is read.

Importing TensorFlow takes seconds, so a thread does it while the main one attaches and connects.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import ProcessName
from elasticdl.data.files import DataChanged
from elasticdl.errors import ElasticDLError, PermanentError, UserError
from elasticdl.job import Action, Strategy
from elasticdl.model.importing import load_tensorflow
from elasticdl.model.sifting import BadRecords
from elasticdl.rpc.conversation import Attached, Failure
from elasticdl.rpc.master_client import MasterClient
from elasticdl.rpc.parameters import Parameters
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.shard import Task
from elasticdl.worker.ending import CallbackFailed, Done, Draining, Ending, Failed, NonFinite
from elasticdl.worker.gauges import Gauges
from elasticdl.worker.handoff import Ended
from elasticdl.worker.leases import LeaseKeeper
from elasticdl.worker.orders import Orders
from elasticdl.worker.outbox import Outbox
from elasticdl.worker.patience import Patience
from elasticdl.worker.process import leave
from elasticdl.worker.reporter import Reporter
from elasticdl.worker.ring_forms import Forms
from elasticdl.worker.surroundings import Surroundings
from elasticdl.worker.watch import Watch

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.worker.assembly import Worker
    from elasticdl.worker.ring_assembly import RingWorker

_log = logging.getLogger(__name__)

SETTLE_S = 3.0
FLUSH_S = 5.0


@dataclass(frozen=True, slots=True)
class Environment:
    """What the cluster tells a worker."""

    master: str
    token: str
    name: ProcessName
    job_dir: Path
    threads: int

    @classmethod
    def read(cls) -> Environment:
        """From ELASTICDL_*. The token is taken out, so that user code does not pass it on to processes it starts."""
        try:
            return cls(
                os.environ["ELASTICDL_MASTER"],
                os.environ.pop("ELASTICDL_TOKEN"),
                ProcessName.parse(os.environ["ELASTICDL_PROCESS"]),
                Path(os.environ["ELASTICDL_JOB_DIR"]),
                int(os.environ.get("ELASTICDL_THREADS", "0")),
            )
        except (KeyError, ValueError) as error:
            raise PermanentError(f"the environment of this worker lacks or garbles {error}", hint="jobs start workers") from error


def import_tensorflow(threads: int) -> None:
    """Import it, and give it `threads` threads for a step (0: as many as it likes), before it starts any.

    Steps, ids and `feed` are called from three threads. With fewer threads between operations than that, the small calls
    would queue behind the step (measured: 1200 ms instead of 0.8 ms), and nothing would overlap.
    """
    load_tensorflow()
    import tensorflow as tf

    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads + 2)
    import elasticdl.worker.assembly  # noqa: F401 - so that the rest of the model layer is imported here, too


class _Import(threading.Thread):
    """Imports TensorFlow in the background; `wait` raises what that raised."""

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

    def wait(self, ending: Ending) -> None:
        """Block until it is done. Raises Ended if the worker ends first."""
        while self.is_alive():
            if ending:
                raise Ended
            self.join(0.1)
        if self._error is not None:
            raise self._error


@dataclass(frozen=True, slots=True)
class Link:
    """What is there once the master knows this worker, long before the model is built."""

    attached: Attached
    around: Surroundings
    orders: Orders
    reporter: Reporter
    parameters: Parameters
    forms: Forms

    @classmethod
    def make(cls, environment: Environment, client: MasterClient, ending: Ending) -> Link:
        """Attach, connect, and begin to report and to follow orders. Leases wait until there is a model to use them."""
        attached = client.attach(starting=True)
        clock = SystemClock()
        outbox, gauges, watch = Outbox(), Gauges(clock), Watch(clock)
        keeper = LeaseKeeper(client, outbox, ending)
        around = Surroundings(keeper, outbox, gauges, Patience(ending, gauges, clock), watch, ending)
        parameters = ServerPool(attached.servers or ("",), str(environment.name), environment.token)
        # A ring has no servers: the order that names them is empty.
        orders = Orders(client.orders, lambda servers: parameters.move(servers) if servers else None, ending)
        forms = Forms(ending)
        orders.ring_by(forms.follow)
        reporter = Reporter(outbox, gauges, client, attached.heartbeat_s, ending)
        reporter.start()
        orders.start()
        watch.start(ending, lambda: leave(ending))
        return cls(attached, around, orders, reporter, parameters, forms)


def work(environment: Environment, client: MasterClient, link: Link, importing: _Import) -> Worker | RingWorker:
    """Build the worker and let it work until it ends, for whatever reason: that is in `Ending` then."""
    outbox = link.around.outbox
    importing.wait(link.around.ending)
    outbox.starting("build")
    spec = link.attached.spec
    if spec.training.distribution_strategy is Strategy.ALLREDUCE and spec.action is Action.TRAIN:
        return _work_on_ring(environment, client, link)
    from elasticdl.worker.assembly import Assignment, assemble
    from elasticdl.worker.whole import assemble_whole

    begin_s = time.monotonic()
    assignment = Assignment(environment.name, link.attached.spec, environment.job_dir, link.attached.sources)
    with link.around.watch.doing("building the model"):
        if spec.training.distribution_strategy is Strategy.ALLREDUCE:
            worker = assemble_whole(assignment, Path(link.attached.restore_from), link.around)
        else:
            worker = assemble(assignment, link.parameters, link.around)
    link.orders.revoke_by(worker.loading.revoke)
    outbox.starting("weights")
    worker.start()
    outbox.starting("")
    link.around.keeper.start()
    _log.info("ready: the model was built, and has its weights, in %.1f s", time.monotonic() - begin_s)
    worker.run()
    return worker


def _work_on_ring(environment: Environment, client: MasterClient, link: Link) -> RingWorker:
    from elasticdl.worker.assembly import Assignment
    from elasticdl.worker.ring_assembly import assemble_ring

    assignment = Assignment(environment.name, link.attached.spec, environment.job_dir)
    host = environment.master.rpartition(":")[0]
    with link.around.watch.doing("building the model"):
        worker = assemble_ring(assignment, host, client, link.forms, link.around)
    link.forms.copies_by(worker.copies.follow)
    # It says itself when it is warm.
    link.around.outbox.starting("compile")
    worker.run()
    return worker


def wind_down(worker: Worker | RingWorker | None, link: Link) -> None:
    """What the reason to end still asks for, and the last report."""
    around = link.around
    reason = around.ending.reason
    _log.info("leaving: %s", reason or "no more work")
    match reason:
        case Done() | None:
            if worker is not None:
                worker.settle(SETTLE_S)
                worker.callbacks.end()
            around.ending.end(Done())
        case Draining():
            if worker is not None:
                worker.leave()
            if worker is None or worker.settle(SETTLE_S):
                around.outbox.give_back(around.outbox.held())
        case Failed(error):
            _tell_failure(reason, error, link)
    if not link.reporter.flush(FLUSH_S):
        _log.warning("the last report did not get to the master within %g s", FLUSH_S)


def _tell_failure(reason: Failed, error: BaseException, link: Link) -> None:
    """To the log in any case; to the master if it is the user's to mend."""
    log_error(error)
    if isinstance(error, UserError):
        lease = reason.lease
        fatal = lease is None or isinstance(error, (NonFinite, BadRecords, DataChanged))
        if isinstance(error, CallbackFailed) and lease is not None and lease.task is Task.TRAINING:
            lease = None
        text = f"{error.message}\n{error.hint}".strip()
        link.around.outbox.fail(
            Failure(
                task=lease.task if lease else None,
                shard=lease.shard.id if lease and lease.shard else None,
                attempt=lease.attempt if lease else 0,
                error=text,
                fatal=fatal,
            )
        )


def log_error(error: BaseException) -> None:
    """What went wrong, to the log; a traceback only where the error is none of ours. The last line is what the master shows."""
    if isinstance(error, ElasticDLError):
        _log.error("%s: %s%s", type(error).__name__, error.message, f"; {error.hint}" if error.hint else "")
    else:
        _log.error("%s", "".join(traceback.format_exception(error)).rstrip())


def run(ending: Ending) -> None:
    """All of a worker's life but its end as a process."""
    environment = Environment.read()
    importing = _Import(environment.threads)
    client = MasterClient(environment.master, environment.token, str(environment.name))
    link = Link.make(environment, client, ending)
    worker: Worker | RingWorker | None = None
    try:
        worker = work(environment, client, link, importing)
    except Ended:
        _log.info("ended before the first step")
    except Exception as error:  # noqa: BLE001 - the top of the process: it ends the worker visibly
        ending.fail(error)
    try:
        wind_down(worker, link)
    except UserError as error:  # of `on_train_end`
        ending.fail(error)
        wind_down(None, link)
