"""A master on this machine: its processes are children of the job's supervisor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from elasticdl.cluster.base import Cluster
from elasticdl.cluster.local.machine import memory_kills, usable_cores
from elasticdl.cluster.local.supervisor.link import SupervisorLink
from elasticdl.cluster.local.supervisor.master_restarts import how
from elasticdl.cluster.local.supervisor.messages import RESTART_VARIABLE
from elasticdl.cluster.local.supervisor.supervised_cluster import SupervisedCluster
from elasticdl.errors import PermanentError, UserError
from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.outcome import Outcome
from elasticdl.jobdir.spec_files import read_spec
from elasticdl.master.core.job_context import Limits
from elasticdl.master.executor.process_env import ProcessEnv
from elasticdl.master.platform.begin_anew import begin_anew
from elasticdl.master.platform.platform import (
    Handover,
    MasterEnvironment,
    PageAddress,
    invalid_environment,
)
from elasticdl.master.preflight import PreflightChild, PreflightProcess
from elasticdl.tls import CertifiedKey
from elasticdl.tokens import new_token, run_name

if TYPE_CHECKING:
    from elasticdl.tls.authority import Authority

_HOST = "127.0.0.1"
_TOKEN, _CERTIFICATE, _KEY = "token", "certificate", "key"
_STOP = "stop"


@final
class LocalPlatform:
    """The platform of a master that a supervisor started."""

    has_next = False
    servers_return_s = 30.0

    def __init__(self) -> None:
        self._cores = usable_cores()
        self._link: SupervisorLink | None = None
        self._cluster: SupervisedCluster | None = None
        self._ends_earlier = False
        """Processes of earlier masters cannot be taken over."""
        self._progress = 0

    @property
    def limits(self) -> Limits:
        return Limits(starting=max(2, int(self._cores)))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[MasterEnvironment]:
        yield self._open()

    def _open(self) -> MasterEnvironment:
        """Read the environment, and get from the supervisor what earlier masters had.

        The token is in `master.json` and in the memory of supervisor and master only: an
        environment would show it in /proc.
        """
        try:
            directory = JobDirectory(Path(os.environ["ELASTICDL_JOB_DIR"]).resolve())
            restart = int(os.environ[RESTART_VARIABLE])
        except (KeyError, ValueError) as error:
            raise invalid_environment(error) from error
        link = self._link = SupervisorLink.on_stdin()
        welcome = link.welcome()
        kept = dict(welcome.kept)
        spec: JobSpec | None = None
        with suppress(UserError):  # Whoever reads it next reports that.
            spec = read_spec(directory)
        ports = self._ports(link, spec)
        return MasterEnvironment(
            directory,
            _token(link, kept),
            _HOST,
            ports["master"],
            rendezvous_port=ports.get("rendezvous", 0),
            page=PageAddress(port=ports.get("page", 0)),
            authority=_authority(link, kept, spec) if spec and spec.uses_tls else None,
            reserved=frozenset(ports.values()),
            replaces=restart > 0,
            predecessor=welcome.before,
            stopped_for=kept.get(_STOP, ""),
        )

    async def begin_anew(self, environment: MasterEnvironment) -> MasterEnvironment:
        """Have the job resume from its newest checkpoint, without the processes that run.

        Raises UserError, PermanentError.
        """
        assert self._link is not None
        anew = begin_anew(environment.directory, run_name(environment.token))
        self._ends_earlier = True
        if anew.stopped_for:
            self._link.keep(_STOP, anew.stopped_for)
        token = environment.token
        if anew.had_begun:
            # A process that outlives its end must not attach to this master.
            token = new_token()
            self._link.keep(_TOKEN, token)
        return replace(
            environment,
            token=token,
            warnings=anew.warnings,
            stopped_for=environment.stopped_for or anew.stopped_for,
        )

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
    async def cluster(self, handover: Handover) -> AsyncIterator[Cluster]:
        assert self._link is not None
        cluster = self._cluster = SupervisedCluster(self._link)
        # After a crash the supervisor decides: it starts another master, or ends all with the job.
        stay = True
        try:
            if self._ends_earlier:
                await cluster.end_predecessors_processes()
            yield cluster
            stay = handover.to_the_next
        except asyncio.CancelledError:
            stay = handover.to_the_next
            raise
        finally:
            await (cluster.leave() if stay else cluster.close())

    @asynccontextmanager
    async def check(
        self, process_env: ProcessEnv, standard: Sequence[int]
    ) -> AsyncIterator[PreflightProcess]:
        assert self._cluster is not None
        async with self._cluster.beside(process_env.check(), standard) as process:
            yield PreflightChild(
                process.pid,
                lambda: how(process.status) if process.status is not None else "",
                kills_before=memory_kills(),
            )

    def progressed(self, records: int) -> None:
        if self._cluster is not None and records != self._progress:
            self._progress = records
            self._cluster.progressed(records)

    async def tell(self, outcome: Outcome) -> None:
        """Tell the supervisor that the job is over."""
        if self._link is not None:
            self._link.tell({"finished": int(outcome.exit_code)})

    def _ports(self, link: SupervisorLink, spec: JobSpec | None) -> dict[str, int]:
        """Reserve the ports of all masters of the job, the page's if it is free."""
        try:
            ports = {"master": link.reserve("master", _HOST, 0)}
            if spec is not None and spec.trains_on_ring:
                ports["rendezvous"] = link.reserve("rendezvous", _HOST, 0)
        except OSError as error:
            raise PermanentError(f"cannot reserve a port: {error.strerror or error}") from error
        with suppress(OSError):  # The page's server reports it, too; the job runs without a page.
            wanted = spec.cluster.status_port if spec is not None else 0
            ports["page"] = link.reserve("page", _HOST, wanted)
        return ports


def _token(link: SupervisorLink, kept: dict[str, str]) -> str:
    """Return the job's token. A new one per run: one from an earlier run opens nothing."""
    if _TOKEN not in kept:
        kept[_TOKEN] = new_token()
        link.keep(_TOKEN, kept[_TOKEN])
    return kept[_TOKEN]


def _authority(link: SupervisorLink, kept: dict[str, str], spec: JobSpec) -> Authority:
    # The import takes 40 ms, and most local jobs have no certificates.
    from elasticdl.tls.authority import Authority

    if _CERTIFICATE not in kept or _KEY not in kept:
        authority = Authority.new(spec.cluster.job_name)
        link.keep(_CERTIFICATE, authority.own.certificate)
        link.keep(_KEY, authority.own.key)
        return authority
    return Authority(CertifiedKey(kept[_CERTIFICATE], kept[_KEY]))
