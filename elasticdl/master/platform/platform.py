"""Where a master runs, and with it its processes: this machine here, a pod in `pod.py`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, final

from elasticdl.cluster.base import Cluster
from elasticdl.cluster.local.cluster import LocalCluster
from elasticdl.cluster.local.machine import usable_cores
from elasticdl.errors import ExitCode, PermanentError
from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.outcome import Outcome
from elasticdl.master.core.job_context import Limits
from elasticdl.master.executor.process_env import ProcessEnv


@dataclass(frozen=True, slots=True)
class PageAddress:
    """Where the status page is: on this machine only, by default.

    `port` 0: the one that the job asks for.

    `names`: of hosts under which it is reached, beside the address, the best first.
    """

    host: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class MasterEnvironment:
    """What a master begins with.

    `term`: its own is at least that. `warnings` are for people, in the job's events.
    """

    directory: JobDirectory
    token: str = field(repr=False)
    host: str
    port: int
    term: int = 1
    rendezvous_port: int = 0
    """Where members of a ring find one another; 0: any that is free."""
    warnings: tuple[str, ...] = ()
    page: PageAddress = PageAddress()


@dataclass(slots=True)
class Farewell:
    """How a master ends: its processes end with it, unless it leaves them to the next one."""

    to_the_next: bool = False


class Platform(Protocol):
    """One instance a master."""

    @property
    def has_next(self) -> bool:
        """Another master is started when this one leaves; the job goes on."""

    @property
    def limits(self) -> Limits:
        """What the place bears."""

    def open(self) -> MasterEnvironment:
        """Before all else; blocks. Raises ElasticDLError with the exit code for it."""

    def process_env(self, spec: JobSpec, environment: MasterEnvironment, port: int) -> ProcessEnv:
        """What processes are started with, by a master that listens on `port`."""

    def cluster(self, farewell: Farewell) -> AbstractAsyncContextManager[Cluster]:
        """Where processes run. When the context ends they do, as `farewell` says then."""

    def tell(self, outcome: Outcome) -> None:
        """Leave the outcome where whoever started this master looks for it, beside the job's
        directory.
        """


@final
class LocalPlatform:
    """Processes of this machine, started by a command that waits for the master."""

    has_next = False

    def __init__(self) -> None:
        self._cores = usable_cores()
        self._logs = Path()

    @property
    def limits(self) -> Limits:
        return Limits(starting=max(2, int(self._cores)))

    def open(self) -> MasterEnvironment:
        """From ELASTICDL_*.

        The token is taken out: processes get it as a secret, user code of the preflight not at all.
        """
        try:
            directory = JobDirectory(Path(os.environ["ELASTICDL_JOB_DIR"]).resolve())
            token = os.environ.pop("ELASTICDL_TOKEN")
            host, port = (
                os.environ.get("ELASTICDL_BIND_HOST", "127.0.0.1"),
                int(os.environ.get("ELASTICDL_PORT", "0")),
            )
        except (KeyError, ValueError) as garbled:
            error = PermanentError(
                f"the environment of the master lacks or garbles {garbled}",
                hint="`elasticdl train` sets it",
            )
            error.exit_code = ExitCode.USAGE
            raise error from garbled
        self._logs = directory.logs
        return MasterEnvironment(directory, token, host, port)

    def process_env(self, spec: JobSpec, environment: MasterEnvironment, port: int) -> ProcessEnv:
        address = f"{environment.host}:{port}"
        return ProcessEnv(
            spec, str(environment.directory.path), address, environment.token, self._cores
        )

    @asynccontextmanager
    async def cluster(self, _farewell: Farewell) -> AsyncIterator[Cluster]:
        cluster = LocalCluster(self._logs, self._cores)
        try:
            yield cluster
        finally:
            await cluster.close()

    def tell(self, outcome: Outcome) -> None:
        """The command reads the job's directory."""
