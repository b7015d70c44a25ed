"""The interface to the place where a master runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from elasticdl.cluster.base import Cluster
from elasticdl.cluster.local.supervisor.messages import Predecessor
from elasticdl.errors import ExitCode, PermanentError
from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.outcome import Outcome
from elasticdl.master.core.job_context import Limits
from elasticdl.master.executor.process_env import ProcessEnv
from elasticdl.master.journal.copies import CopyPlace
from elasticdl.master.journal.writer import JournalLimits
from elasticdl.master.preflight import PreflightProcess
from elasticdl.master.tenure import SoleMaster, Tenure
from elasticdl.tls import CertifiedKey

if TYPE_CHECKING:
    from elasticdl.tls.authority import Authority


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
    """None: the processes use no TLS."""
    reserved: frozenset[int] = frozenset()
    """Ports that the platform holds for this master or all of the job: listen with SO_REUSEPORT."""
    replaces: bool = False
    """An earlier master of this launch may have left a journal and processes.

    Token, authority and ports are those of the earlier one.
    """
    predecessor: Predecessor | None = None
    """How the master before this one ended, if the platform knows."""
    stopped_for: str = ""
    """A person stopped the job for this reason, under an earlier master."""
    tenure: Tenure = field(default_factory=SoleMaster)
    journal: JournalLimits = field(default_factory=JournalLimits)
    copies: CopyPlace | None = None
    """Where copies of the journal are, if the job's directory ends with this master."""

    @property
    def trusted(self) -> str | None:
        """The certificate, as PEM, that verifies the job's processes."""
        return self.authority.certificate if self.authority else None


def invalid_environment(error: KeyError | ValueError) -> PermanentError:
    """Return the error for a master whose environment lacks a variable or has an invalid one."""
    return PermanentError(
        f"an environment variable is missing or invalid: {error}",
        hint=(
            "`elasticdl train` sets it; a Job that you write yourself needs the variables that"
            " `elasticdl train … --dry-run` prints"
        ),
        exit_code=ExitCode.USAGE,
    )


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

    @property
    def servers_return_s(self) -> float:
        """How long a server that has ended is expected back with its memory.

        0: memory ends with its process.
        """

    def opened(self) -> AbstractAsyncContextManager[MasterEnvironment]:
        """Prepare the place first of all, and let go of it last.

        Raises ElasticDLError with its exit code, JobHasEnded.
        """

    async def begin_anew(self, environment: MasterEnvironment) -> MasterEnvironment:
        """Prepare to begin a job again that no journal continues, from its newest checkpoint.

        Its earlier processes end before the cluster opens. Raises ElasticDLError.
        """

    def process_env(self, spec: JobSpec, environment: MasterEnvironment, port: int) -> ProcessEnv:
        """Return what processes start with, for a master that listens on `port`."""

    def cluster(self, handover: Handover) -> AbstractAsyncContextManager[Cluster]:
        """Return the cluster of processes.

        At the context's end they end, unless `handover` keeps them. After an error in it, they may
        stay until the job's outcome is recorded.
        """

    def check(
        self, process_env: ProcessEnv, standard: Sequence[int]
    ) -> AbstractAsyncContextManager[PreflightProcess]:
        """Return the process that checks model and data, with these stdin, stdout and stderr.

        It ends with the context. Its `cluster` must be open. Raises CreateRefused, OSError.
        """

    def progressed(self, records: int) -> None:
        """Tell the starter of this master how many records the job has done."""

    async def tell(self, outcome: Outcome) -> None:
        """Leave the outcome where the starter of this master reads it. The master exits soon."""


class JobHasEnded(Exception):
    """An earlier master has ended the job, and could not tell everyone."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome
