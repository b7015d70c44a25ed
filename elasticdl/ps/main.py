"""`python -m elasticdl.ps.main`: one parameter server process. The one place where its environment is read."""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import grpc

from elasticdl import _native
from elasticdl.clock import SystemClock
from elasticdl.cluster.base import ProcessName
from elasticdl.cluster.leash import die_with_parent
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError
from elasticdl.ps.gauges import Gauges
from elasticdl.ps.saving import Place, restore
from elasticdl.ps.servicer import ControlService, EpochGuard
from elasticdl.rpc.channel import SyncChecks, server_options
from elasticdl.rpc.conversation import Drain, Finish, Report
from elasticdl.rpc.elasticdl_pb2_grpc import add_ParameterServerServicer_to_server
from elasticdl.rpc.master_client import MasterClient

_log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CONTROL_THREADS = 8


@dataclass(frozen=True, slots=True)
class Environment:
    """What the cluster tells a server."""

    master: str
    token: str = field(repr=False)
    name: ProcessName
    bind_host: str

    @classmethod
    def read(cls) -> Environment:
        """From ELASTICDL_*; the token is taken out."""
        try:
            return cls(
                os.environ["ELASTICDL_MASTER"],
                os.environ.pop("ELASTICDL_TOKEN"),
                ProcessName.parse(os.environ["ELASTICDL_PROCESS"]),
                os.environ.get("ELASTICDL_BIND_HOST", "127.0.0.1"),
            )
        except (KeyError, ValueError) as error:
            raise PermanentError(f"the environment of this server lacks or garbles {error}", hint="jobs start servers") from error

    def address(self, port: int) -> str:
        """How others reach a port of ours: by the address that leads to the master, if we listen on all of them."""
        host = self.bind_host
        if host in ("", "0.0.0.0", "::"):  # noqa: S104 - compared, not bound
            peer, _, peer_port = self.master.rpartition(":")
            family, _, _, _, target = socket.getaddrinfo(peer.strip("[]"), int(peer_port), type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)
                host = probe.getsockname()[0]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def control_server(environment: Environment, server: _native.Server, place: Place, guard: EpochGuard) -> tuple[grpc.Server, int]:
    """The master's way in, started; and its port."""
    checks = SyncChecks(environment.token, guard.check)
    control = grpc.server(ThreadPoolExecutor(_CONTROL_THREADS), interceptors=[checks], options=server_options())
    add_ParameterServerServicer_to_server(ControlService(server, place), control)  # type: ignore[no-untyped-call]
    host = f"[{environment.bind_host}]" if ":" in environment.bind_host else environment.bind_host
    port = control.add_insecure_port(f"{host or '[::]'}:0")
    if port == 0:
        raise PermanentError(f"cannot listen on {environment.bind_host}", hint="set ELASTICDL_BIND_HOST")
    control.start()
    return control, port


def serve(environment: Environment, client: MasterClient) -> None:
    """All of a server's life: attach, restore, serve; and report until the job is over or this process is told to go."""
    attached = client.attach()
    guard = EpochGuard()
    guard.learn(attached.epoch)
    place = Place.of(environment.name.index, attached.spec.cluster.num_ps_pods, environment.token)
    server = _native.Server(place.server, place.servers, environment.token)
    _in_thread("report", lambda: _report(server, client, attached.heartbeat_s))
    version = restore(server, place, Path(attached.restore_from)) if attached.restore_from else None
    bulk = environment.address(server.listen(environment.bind_host))
    _control, port = control_server(environment, server, place, guard)
    client.attach(environment.address(port), bulk, version)
    _log.info("%s serves %s, version %s", environment.name, bulk, "none yet" if version is None else version)
    for order in client.orders():
        match order:
            case Finish():
                leave(ExitCode.DONE)
            case Drain(reason):
                _log.info("asked to leave: %s", reason)
                leave(ExitCode.DRAINED)
            case _:
                continue


def _report(server: _native.Server, client: MasterClient, heartbeat_s: float) -> None:
    gauges = Gauges(server, SystemClock())
    tick = threading.Event()
    while True:
        client.report(Report(version=server.version, gauges=gauges.read()))
        tick.wait(heartbeat_s)


def _in_thread(name: str, work: Callable[[], None]) -> None:
    """Run `work` in a thread of its own; its failure ends the process visibly."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the top of a thread: it ends the process visibly
            fail(error)

    threading.Thread(target=run, name=name, daemon=True).start()


def _leave_on_signal() -> None:
    name = signal.Signals(signal.sigwait(_SIGNALS)).name
    _log.info("%s: leaving", name)
    leave(ExitCode.DONE)


def fail(error: Exception) -> NoReturn:
    """Say what is wrong and end the process."""
    if isinstance(error, ElasticDLError):
        _log.error("%s: %s%s", type(error).__name__, error.message, f"\n{error.hint}" if error.hint else "")
        leave(error.exit_code)
    _log.error("%s", "".join(traceback.format_exception(error)).rstrip())
    leave(ExitCode.JOB_FAILED)


def leave(code: ExitCode) -> NoReturn:
    """End the process now. Pushes under way were not acknowledged, so their workers make them again elsewhere."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """The process."""
    die_with_parent()
    # Before any thread starts: all inherit it, and only the one that waits for signals gets them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    # A connection of each worker, twice, and files: the usual 1024 would be few.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _in_thread("signals", _leave_on_signal)
    try:
        environment = Environment.read()
        serve(environment, MasterClient(environment.master, environment.token, str(environment.name)))
    except Exception as error:  # noqa: BLE001 - the top of the process: it ends visibly
        fail(error)
    leave(ExitCode.DONE)


if __name__ == "__main__":
    main()
