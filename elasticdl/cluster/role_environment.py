"""The variables by which a master tells a worker or a parameter server what it is."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.errors import PermanentError

TOKEN = "ELASTICDL_TOKEN"  # noqa: S105 - a name
AUTHORITY = "ELASTICDL_AUTHORITY"
MASTER_AWAY_S = 900.0
"""How long a process waits for a master that does not answer.

On Kubernetes the next master's pod may have to wait for a node, or for the Job: at most 10 minutes.
On a busy machine a master needs a minute to start, and the first ones may be killed, too.
"""
KEPT_MEMORY = "ELASTICDL_KEPT_MEMORY"
IN_PLACE = "ELASTICDL_IN_PLACE"
GRACE = "ELASTICDL_GRACE_S"


@final
@dataclass(frozen=True, slots=True)
class RoleEnvironment:
    """One process of a job."""

    master: str
    """host:port of the master."""
    token: str = field(repr=False)
    """This process's own; see `tokens`."""
    name: ProcessName
    job_dir: Path
    bind_host: str = ""
    """Where the process listens; '' for this machine only."""
    authority: str | None = None
    """The certificate, as PEM, that verifies the job's processes; None: they use no TLS."""
    kept_memory: str | None = None
    """The path of memory that outlives its process, as the cluster gives a server; None: none."""
    in_place: bool = False
    """The cluster starts one server after the other with this environment.

    `name` is then that of the first one, and the master knows who this one is.
    """

    def reachable_address(self, port: int) -> str:
        """The address of one of this process's ports for others.

        If it listens on all interfaces, it is the one that leads to the master.
        """
        host = self.bind_host
        if host in ("", "0.0.0.0", "::"):  # noqa: S104 - compared, not bound
            peer, _, peer_port = self.master.rpartition(":")
            family, _, _, _, target = socket.getaddrinfo(
                peer.strip("[]"), int(peer_port), type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)
                host = probe.getsockname()[0]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def listen_address(self) -> str:
        """Where gRPC servers of this process listen, on any free port."""
        host = f"[{self.bind_host}]" if ":" in self.bind_host else self.bind_host
        return f"{host or '[::]'}:0"

    def variables(self) -> dict[str, str]:
        """All but the token, which is a secret."""
        bind = {"ELASTICDL_BIND_HOST": self.bind_host} if self.bind_host else {}
        trusted = {AUTHORITY: self.authority} if self.authority else {}
        return {
            "ELASTICDL_MASTER": self.master,
            "ELASTICDL_PROCESS": str(self.name),
            "ELASTICDL_JOB_DIR": str(self.job_dir),
            **bind,
            **trusted,
        }

    @classmethod
    def read(cls) -> RoleEnvironment:
        """Read it from this process's environment.

        The token is taken out, so that user code does not pass it on to processes that it starts.
        Raises PermanentError.
        """
        try:
            return cls(
                os.environ["ELASTICDL_MASTER"],
                os.environ.pop(TOKEN),
                ProcessName.parse(os.environ["ELASTICDL_PROCESS"]),
                Path(os.environ["ELASTICDL_JOB_DIR"]),
                os.environ.get("ELASTICDL_BIND_HOST", "127.0.0.1"),
                os.environ.get(AUTHORITY) or None,
                os.environ.get(KEPT_MEMORY) or None,
                os.environ.get(IN_PLACE) == "1",
            )
        except (KeyError, ValueError) as error:
            raise PermanentError(
                f"an environment variable is missing or invalid: {error}",
                hint="the master of a job starts its workers and servers",
            ) from error


def step_threads() -> int:
    """How many threads a step may use, as the cluster says; 0 if it says nothing."""
    text = os.environ.get("ELASTICDL_THREADS", "0")
    return int(text) if text.isdecimal() else 0


def grace_s() -> float:
    """Seconds from SIGTERM until the platform kills this process, unless it gets an order to drain.

    On one machine nothing kills a process that a person ends: it takes as long as a pod.
    """
    return float(os.environ.get(GRACE, "30"))
