"""Run a server, from its registration at the master until the job ends."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc

from elasticdl.clock import SystemClock
from elasticdl.cluster.role_environment import MASTER_AWAY_S, RoleEnvironment
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError
from elasticdl.native import _native
from elasticdl.private_file import FILE_MODE
from elasticdl.ps.gauges import Gauges
from elasticdl.ps.os_process import before_leaving, in_thread
from elasticdl.ps.restoring import Restoration, restore, restore_newest_intact
from elasticdl.ps.saving import ServerPart
from elasticdl.ps.servicer import ControlService
from elasticdl.rpc.channel import SyncChecks, server_options
from elasticdl.rpc.conversation import (
    Attached,
    Drain,
    Finish,
    Load,
    Order,
    Report,
    Restore,
    State,
    TellState,
)
from elasticdl.rpc.elasticdl_pb2_grpc import (
    add_JournalCopiesServicer_to_server,
    add_ParameterServerServicer_to_server,
)
from elasticdl.rpc.journal_copy import JournalCopyService
from elasticdl.rpc.master_client import MasterClient
from elasticdl.rpc.secured import bound_port
from elasticdl.rpc.term_guard import TermGuard
from elasticdl.stacks import stacks
from elasticdl.tls import CertifiedKey

if TYPE_CHECKING:
    from elasticdl.tls.authority import KeyPair

_log = logging.getLogger(__name__)

_CONTROL_THREADS = 8
_FAREWELL_CALL_S = 2.0
_NEXT_MASTER_S = 20.0
_LOOK_EVERY_S = 0.1


def control_server(
    environment: RoleEnvironment,
    service: ControlService,
    guard: TermGuard,
    certified: CertifiedKey | None = None,
) -> tuple[grpc.Server, int]:
    """Start the gRPC server for the master; returns it with its port."""
    checks = SyncChecks(guard.proof, guard.check)
    control = grpc.server(
        ThreadPoolExecutor(_CONTROL_THREADS),
        interceptors=[checks],
        options=server_options(),
    )
    add_ParameterServerServicer_to_server(service, control)
    add_JournalCopiesServicer_to_server(JournalCopyService(guard.is_replaced), control)
    port = bound_port(control, environment.listen_address(), certified)
    if port == 0:
        raise PermanentError(
            f"cannot listen on {environment.bind_host}", hint="set ELASTICDL_BIND_HOST"
        )
    control.start()
    return control, port


def serve(environment: RoleEnvironment) -> ExitCode:
    """Attach, restore, serve and report until the job ends or the process has to leave.

    Returns the exit code.
    """
    environment = _identified(environment)
    client = _client(environment, MASTER_AWAY_S)
    pair = _key_pair(environment)
    attached = client.attach(public_key=pair.public if pair is not None else b"")
    certified = CertifiedKey(attached.certificate, pair.private) if pair is not None else None
    guard = TermGuard(environment.token)
    guard.learn(attached.term)
    place = ServerPart(attached.place, attached.places, attached.run)
    # What a killed process left: the next one of its pod has the same disk.
    shutil.rmtree(place.scratch, ignore_errors=True)
    server = _native_server(place, attached, certified, environment.kept_memory)
    asked = threading.Event()
    # Before the restore, which may take minutes: silence would get this process replaced.
    in_thread("report", lambda: _report(server, client, attached.heartbeat_s, asked))
    orders = client.orders()
    version = None if attached.stands_by or attached.rolls_back else _take_on(server)
    kept = version is not None
    if attached.stands_by:
        restored = _stand_by(Restoration(server, place), client, orders, asked)
        if isinstance(restored, ExitCode):
            return restored
        version = restored
    elif version is None:
        version = _restored(server, place, environment, attached.restore_from)
    # Listen only after the restore: a worker must never see a half-restored server.
    bulk = environment.reachable_address(server.listen(environment.bind_host))
    _check_connections(server, attached.spec.cluster.num_workers.high)
    service = ControlService(server, place, guard)
    _control, port = control_server(environment, service, guard, certified)
    before_leaving(lambda: hand_over(environment, service))
    control_address = environment.reachable_address(port)
    client.attach(control_address, bulk, version, memory=server.memory_id, kept=kept)
    _log.info(
        "%s serves %s, version %s",
        environment.name,
        bulk,
        "none yet" if version is None else version,
    )
    while not isinstance(last := _follow_orders(orders, asked), ExitCode):
        continue  # an order came twice
    return last


def _key_pair(environment: RoleEnvironment) -> KeyPair | None:
    """A new pair of keys in a job with TLS; None in others."""
    if environment.authority is None:
        return None
    # The import takes 30 ms.
    from elasticdl.tls.authority import KeyPair

    return KeyPair.new()


def _check_connections(server: _native.Server, most_workers: int) -> None:
    if 2 * most_workers > server.most_connections:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        _log.warning(
            "%d workers need %d connections, and the limit of %d open files allows %d: raise it"
            " (`ulimit -Hn`, or LimitNOFILE of the container runtime), or use fewer workers",
            most_workers,
            2 * most_workers,
            files,
            server.most_connections,
        )


def _identified(environment: RoleEnvironment) -> RoleEnvironment:
    """Ask the master who this process is, if several follow one another in one place."""
    if not environment.in_place:
        return environment
    client = _client(environment, MASTER_AWAY_S)
    try:
        name = client.who()
    finally:
        client.close()
    _log.info("%s starts in the place of %s", name, environment.name)
    return replace(environment, name=name)


def _take_on(server: _native.Server) -> int | None:
    """Take on the memory of the process before; returns its version, None if there is none."""
    begin_s = time.monotonic()
    if server.take_on():
        _log.info(
            "took on version %d with %d rows, as the process before had them, in %.3f s",
            server.version,
            server.statistics()["rows"],
            time.monotonic() - begin_s,
        )
        return server.version
    if server.discarded:
        _log.error("cannot use the memory that the process before kept: %s", server.discarded)
    return None


def _restored(
    server: _native.Server, place: ServerPart, environment: RoleEnvironment, restore_from: str
) -> int | None:
    """Restore a checkpoint; returns its version, None if there is none."""
    if not restore_from:
        return None
    # The master has verified the first checkpoint against its ledger, so only a restarted server
    # may use an older one.
    take = restore_newest_intact if environment.name.incarnation else restore
    return take(server, place, restore_from)


def _native_server(
    place: ServerPart,
    attached: Attached,
    certified: CertifiedKey | None,
    memory: str | None,
) -> _native.Server:
    (key,) = attached.bulk_tokens
    certificate, private_key = (
        (certified.certificate, certified.key) if certified is not None else ("", "")
    )

    def create(memory: str) -> _native.Server:
        return _native.Server(
            place.server,
            place.servers,
            key,
            certificate,
            private_key,
            turns=attached.spec.turns_per_step,
            memory=memory,
            run=attached.run,
        )

    try:
        if memory:
            # In a pod, the first process of a server has to make the file.
            os.close(os.open(memory, os.O_RDWR | os.O_CREAT, FILE_MODE))
        return create(memory or "")
    except (MemoryError, OSError) as error:
        if not memory:
            raise
        # A limit on addresses or on the size of a file, such as `ulimit -v`.
        _log.warning("this server keeps no memory beyond its process: %s", error or "no addresses")
        # A later process must not take on what is older than this one's state.
        with suppress(FileNotFoundError):
            os.truncate(memory, 0)
        return create("")


def _stand_by(
    restoration: Restoration,
    client: MasterClient,
    orders: Iterator[Order],
    asked: threading.Event,
) -> int | ExitCode:
    """Load what the master says, until it says what to restore; returns the version of that."""
    while True:
        order = _follow_orders(orders, asked)
        if isinstance(order, ExitCode):
            return order
        directory, begin_s = order.directory, time.monotonic()
        if isinstance(order, Restore):
            version = restoration.finish(directory)
            _log.info("restored version %d in %.3f s", version, time.monotonic() - begin_s)
            return version
        if restoration.load(directory):
            _log.info("loaded %s in %.3f s", directory, time.monotonic() - begin_s)
            client.attach(loaded=order.directory)
        else:
            _log.info("%s was replaced by a newer checkpoint", directory)
            client.attach(not_loaded=order.directory)


def _follow_orders(orders: Iterator[Order], asked: threading.Event) -> Load | Restore | ExitCode:
    """Wait until the master says which checkpoint to read, or ends the job or this server.

    `asked` wakes the reports.
    """
    for order in orders:
        match order:
            case Load() | Restore():
                return order
            case Finish():
                return ExitCode.DONE
            case Drain(reason, _):
                _log.info("draining: %s", reason)
                return ExitCode.DRAINED
            case TellState():
                asked.set()
            case _:
                continue
    return ExitCode.DONE


def _client(environment: RoleEnvironment, away_s: float) -> MasterClient:
    return MasterClient(
        environment.master,
        environment.token,
        str(environment.name),
        away_s=away_s,
        authority=environment.authority,
    )


def hand_over(environment: RoleEnvironment, service: ControlService) -> None:
    """Have the master take a checkpoint before this server leaves, and wait for it.

    It has every push that this server has acknowledged: after the cut none is admitted.
    `process.leave_on_signal` limits the wait. Returns at once if the master does not answer, if the
    job does not train now, or if no checkpoint can be taken. The master then announces what is
    lost.
    """
    # On Kubernetes another master may be about to come, which continues the job.
    client = _client(environment, _NEXT_MASTER_S if environment.in_place else _FAREWELL_CALL_S)
    try:
        while (before := client.status()).phase == "checkpointing":
            time.sleep(_LOOK_EVERY_S)
        if before.phase not in ("working", "evaluating") or not (before.version or service.version):
            return
        service.leave()
        client.checkpoint()
        # For long if the master has ended: its successor takes the checkpoint.
        service.handed_over.wait()
        _log.info("leaving after a last checkpoint")
    except ElasticDLError as error:
        _log.warning("leaving without a last checkpoint: %s", error.message)
    finally:
        client.close()


def _report(
    server: _native.Server, client: MasterClient, heartbeat_s: float, asked: threading.Event
) -> None:
    """Report until this process ends; `asked` requests the threads' stacks."""
    gauges = Gauges(server, SystemClock())
    tick = threading.Event()
    while True:
        state = State(stacks=stacks()) if asked.is_set() else None
        # After the test and before the report: a question in between is answered by the next
        # report.
        asked.clear()
        report = Report(version=server.version, gauges=gauges.read(), state=state)
        heartbeat_s = client.report(report) or heartbeat_s
        tick.wait(heartbeat_s)
