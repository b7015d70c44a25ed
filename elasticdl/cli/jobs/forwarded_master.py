"""Calls to a job's master on a cluster, through the API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar, final

from elasticdl.cli.jobs.cluster_client import ClusterClient
from elasticdl.cluster.kubernetes.job_state import JobState
from elasticdl.cluster.kubernetes.jobs import JobAccess, Jobs
from elasticdl.cluster.kubernetes.plans import MASTER_PORT, STATUS_PORT
from elasticdl.cluster.kubernetes.port_forward import PortForward
from elasticdl.errors import Refused, TransientError
from elasticdl.loopback import LOOPBACK
from elasticdl.rpc.master_client import MasterClient
from elasticdl.tls import MASTER_NAME
from elasticdl.tls.relay import Relay

T = TypeVar("T")
CALL_S = 8.0
"""Time limit of a call; a new connection to the pod takes a second on a busy cluster."""
_GREETING_S = 4.0
_AGAIN_S = 0.5


@final
@dataclass(frozen=True, slots=True)
class _Connection:
    forward: PortForward
    client: MasterClient


@final
class ForwardedMaster:
    """A connection to one job's master. Thread-safe."""

    def __init__(
        self,
        cluster: ClusterClient,
        jobs: Jobs,
        name: str,
        state: Callable[[], JobState],
        call_s: float,
    ) -> None:
        """`state` returns the job's current state. `call_s` bounds an RPC."""
        self._cluster, self._jobs, self._name = cluster, jobs, name
        self._state, self._call_s = state, call_s
        self._lock = threading.Lock()
        self._connection: _Connection | None = None

    def call(self, what: Callable[[MasterClient], T], limit_s: float = 0.0) -> T:
        """Call the master; retry for up to `limit_s` while it is starting.

        Raises ElasticDLError that says why the master is unreachable.
        """
        end_s = time.monotonic() + limit_s
        while True:
            try:
                return self._call(what)
            except TransientError as error:
                if time.monotonic() + _AGAIN_S > end_s:
                    raise self.explained(error) from error
            time.sleep(_AGAIN_S)

    @contextmanager
    def page(self, state: JobState, *, read_only: bool = False) -> Iterator[str]:
        """See `Job.page`. Each use opens its own port forward."""
        access = self._access(state, read_only=read_only)
        forward = PortForward(
            self._cluster.api, state.namespace, self._pod, STATUS_PORT, access.authority
        )
        # A server that speaks HTTP does not greet, but one with TLS says at once who it is.
        greeting_s = 0.0 if access.authority is None else _GREETING_S
        address = self._cluster.run(forward.open(greeting_s))
        # Browsers do not know the job's authority: we verify, and they connect to us on loopback.
        relay = Relay(access.authority, MASTER_NAME) if access.authority is not None else None
        try:
            if relay is not None:
                host, _, port = address.rpartition(":")
                address = f"{LOOPBACK}:{self._cluster.run(relay.open(host, int(port)))}"
            yield f"http://{address}/#token={access.token}"
        finally:
            with suppress(TransientError):
                if relay is not None:
                    self._cluster.run(relay.close())
                self._cluster.run(forward.close())

    def explained(self, error: TransientError) -> TransientError:
        """Add to the error what the cluster knows about the unreachable master."""
        lost = self._state().lost_master(time.time())
        message = f"the master of job {self._name} is not reached: {lost}"
        return TransientError(message) if lost else error

    def close(self) -> None:
        """Drop the connection; the next call opens a new one."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.client.close()
            with suppress(TransientError):
                self._cluster.run(connection.forward.close())

    def _call(self, what: Callable[[MasterClient], T]) -> T:
        connection = self._connected()
        try:
            return what(connection.client)
        except TransientError as error:
            # The next connection reports at once why the master is unreachable.
            self.close()
            problem = connection.forward.problem or error.message
            message = f"the master of job {self._name} is not reached: {problem}"
            raise TransientError(message) from error
        except Refused as error:
            # The master's token is the Secret's. A different token means that we read the Secret
            # too early.
            self.close()
            message = f"the master of job {self._name} does not know us: {error.message}"
            raise TransientError(message) from error

    def _connected(self) -> _Connection:
        with self._lock:
            if self._connection is None:
                state = self._state()
                access = self._access(state)
                forward = PortForward(
                    self._cluster.api, state.namespace, self._pod, MASTER_PORT, access.authority
                )
                address = self._cluster.run(forward.open(_GREETING_S))
                client = MasterClient(
                    address,
                    access.token,
                    "cli",
                    away_s=self._call_s,
                    authority=access.authority,
                )
                self._connection = _Connection(forward, client)
            return self._connection

    def _access(self, state: JobState, *, read_only: bool = False) -> JobAccess:
        access = self._cluster.run(self._jobs.access(state, read_only=read_only))
        if access is None:
            raise TransientError(
                f"the master of job {self._name} is starting: it has not made its token yet",
                hint="try again",
            )
        return access

    async def _pod(self) -> str:
        state = await self._jobs.one(self._name)
        if state is not None and state.running_master:
            return state.running_master
        waits_for = state.waits_for if state is not None else ""
        raise TransientError(waits_for or "its master does not run")
