"""The interface to the place where a master runs, and its implementation for this machine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, final

from elasticdl.cluster.base import Cluster
from elasticdl.cluster.local.cluster import LocalCluster
from elasticdl.cluster.local.machine import has_gpu, memory_kills, usable_cores
from elasticdl.errors import ExitCode, PermanentError
from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.outcome import Outcome
from elasticdl.master.core.job_context import Limits
from elasticdl.master.executor.process_env import ProcessEnv
from elasticdl.master.preflight import CheckProcess, ChildCheck
from elasticdl.tls import CertifiedKey
from elasticdl.tls.authority import Authority
from elasticdl.tokens import new_token

WORKER_IMPORTS = ("elasticdl.worker.lifecycle:preload",)
"""A name only: the master itself must not import TensorFlow."""


@dataclass(frozen=True, slots=True)
class PageAddress:
    """Where the status page listens; by default on this machine only.

    `port` 0 selects the job's own setting. `names` are other host names of the page, the best
    first.
    """

    host: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()
    namespace: str = ""
    certified_key: CertifiedKey | None = None
    """The page's certificate for browsers; None: the master's own."""


@dataclass(frozen=True, slots=True)
class MasterEnvironment:
    """What a master starts with.

    The master's term is at least `term`. `warnings` are for people, in the job's events.
    """

    directory: JobDirectory
    token: str = field(repr=False)
    host: str
    port: int
    term: int = 1
    rendezvous_port: int = 0
    """Port of the ring's rendezvous; 0 selects any free port."""
    warnings: tuple[str, ...] = ()
    page: PageAddress = PageAddress()
    authority: Authority | None = None
    """None: the processes use no TLS, or the platform keeps no authority for later masters."""

    @property
    def trusted(self) -> str | None:
        """The certificate, as PEM, that verifies the job's processes."""
        return self.authority.certificate if self.authority else None


def invalid_environment(error: KeyError | ValueError) -> PermanentError:
    """Return the error for a master whose environment lacks a variable or has an invalid one."""
    invalid = PermanentError(
        f"an environment variable is missing or invalid: {error}",
        hint="`elasticdl train` sets it",
    )
    invalid.exit_code = ExitCode.USAGE
    return invalid


@dataclass(slots=True)
class Handover:
    """Whether a master's processes end with it, or stay for the next master."""

    to_the_next: bool = False


class Platform(Protocol):
    """The place where a master runs; one instance per master."""

    @property
    def has_next(self) -> bool:
        """Whether another master continues the job when this one leaves."""

    @property
    def limits(self) -> Limits:
        """Limits of the place."""

    def open(self) -> MasterEnvironment:
        """Prepare the place first of all; blocks. Raises ElasticDLError with its exit code."""

    def process_env(self, spec: JobSpec, environment: MasterEnvironment, port: int) -> ProcessEnv:
        """Return what processes start with, for a master that listens on `port`."""

    def cluster(self, handover: Handover) -> AbstractAsyncContextManager[Cluster]:
        """Return the cluster of processes.

        At the context's end they end, unless `handover` keeps them.
        """

    def check(
        self, process_env: ProcessEnv, standard: Sequence[int]
    ) -> AbstractAsyncContextManager[CheckProcess]:
        """Return the process that checks model and data, with these stdin, stdout and stderr.

        It ends with the context. Its `cluster` must be open. Raises CreateRefused, OSError.
        """

    def tell(self, outcome: Outcome) -> None:
        """Leave the outcome where the starter of this master reads it."""


@final
class LocalPlatform:
    """Local processes, started by a command that waits for the master."""

    has_next = False

    def __init__(self) -> None:
        self._cores = usable_cores()
        self._logs = Path()
        self._cluster: LocalCluster | None = None

    @property
    def limits(self) -> Limits:
        return Limits(starting=max(2, int(self._cores)))

    def open(self) -> MasterEnvironment:
        """Read ELASTICDL_*, and make the job's token.

        Only `master.json` shows it, to the job's owner: an environment would show it in /proc.
        """
        try:
            directory = JobDirectory(Path(os.environ["ELASTICDL_JOB_DIR"]).resolve())
            host, port = (
                os.environ.get("ELASTICDL_BIND_HOST", "127.0.0.1"),
                int(os.environ.get("ELASTICDL_PORT", "0")),
            )
        except (KeyError, ValueError) as error:
            raise invalid_environment(error) from error
        self._logs = directory.logs
        # A new token per master: one from an earlier run opens nothing.
        return MasterEnvironment(directory, new_token(), host, port)

    def process_env(self, spec: JobSpec, environment: MasterEnvironment, port: int) -> ProcessEnv:
        address = f"{environment.host}:{port}"
        return ProcessEnv(
            spec,
            str(environment.directory.path),
            address,
            environment.token,
            self._cores,
            authority=environment.trusted,
        )

    @asynccontextmanager
    async def cluster(self, _handover: Handover) -> AsyncIterator[Cluster]:
        # A driver's state does not survive a fork, and the import may open a GPU.
        imports = () if has_gpu() else WORKER_IMPORTS
        self._cluster = LocalCluster(self._logs, self._cores, worker_imports=imports)
        try:
            yield self._cluster
        finally:
            await self._cluster.close()

    @asynccontextmanager
    async def check(
        self, process_env: ProcessEnv, standard: Sequence[int]
    ) -> AsyncIterator[CheckProcess]:
        assert self._cluster is not None
        async with self._cluster.beside(process_env.check(), standard) as process:
            yield ChildCheck(process.pid, kills_before=memory_kills())

    def tell(self, outcome: Outcome) -> None:
        """Do nothing: the command reads the job's directory."""
