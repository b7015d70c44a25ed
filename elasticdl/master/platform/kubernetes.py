"""A master in a pod of its job.

The Job configures it. The cluster may end it at any time and then starts a new one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import final

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import Cluster, Role
from elasticdl.cluster.kubernetes import job_objects
from elasticdl.cluster.kubernetes.apiserver import ApiAway, ApiRefused, ApiServer, connect
from elasticdl.cluster.kubernetes.cluster import ClusterOptions, KubernetesCluster
from elasticdl.cluster.kubernetes.job_accounting import JobAccounting
from elasticdl.cluster.kubernetes.job_objects import (
    PAGE_FOLDER,
    SECRET_FOLDER,
    master_address,
    master_names,
)
from elasticdl.cluster.kubernetes.master_lease import MasterLease
from elasticdl.cluster.kubernetes.planning import (
    CHECK_AGAIN,
    SPEC_VARIABLE,
    job_pod_group,
    pod_plan,
)
from elasticdl.cluster.kubernetes.plans import (
    MASTER_FAILURES,
    MASTER_PORT,
    RENDEZVOUS_PORT,
    STATUS_PORT,
    Gang,
    Json,
    Owner,
)
from elasticdl.cluster.kubernetes.process_secrets import ProcessSecrets
from elasticdl.cluster.kubernetes.termination_message import outcome_text, parsed_outcome
from elasticdl.cluster.kubernetes.worker_places import WorkerPlaces
from elasticdl.cluster.port_reservations import PortReservations
from elasticdl.errors import ElasticDLError, ExitCode, SpecError
from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.outcome import Outcome
from elasticdl.master.core.job_context import Limits
from elasticdl.master.executor.process_env import ProcessEnv
from elasticdl.master.journal.copies import CopyLimits, CopyPlace
from elasticdl.master.journal.writer import JournalLimits
from elasticdl.master.platform.kubernetes_resources import (
    KubernetesResources,
    ProvisionedResources,
    heard,
)
from elasticdl.master.platform.lease_record import LeaseRecord, journal_copies
from elasticdl.master.platform.lease_tenure import LeaseTenure
from elasticdl.master.platform.own_job import own_job
from elasticdl.master.platform.own_log import keep_own_log
from elasticdl.master.platform.platform import (
    Handover,
    JobHasEnded,
    MasterEnvironment,
    PageAddress,
    invalid_environment,
)
from elasticdl.master.platform.pod_directory import begin_anew, open_directory
from elasticdl.master.platform.preflight_pod import preflight_pod
from elasticdl.master.preflight import PreflightProcess
from elasticdl.tls import CertifiedKey
from elasticdl.tls.authority import Authority, names_in
from elasticdl.tokens import process_token

_LOG = logging.getLogger(__name__)
_OUTCOME, _GANG_API = "outcome", "gang-api"
TERMINATION_MESSAGE = "/dev/termination-log"
"""Kubernetes takes the last words of a container from this file."""
_SETTLED_S = 10.0
"""A master that has acted for so long can start: its end is a disruption, and costs no delay."""
_SETTLE_AGAIN_S = (2.0, 5.0, 15.0, 60.0)
_CONCLUDE_LIMIT_S = 300.0
_CONCLUDE_AGAIN_S = 5.0
_ON_A_VOLUME = JournalLimits(sync_every_s=0.0)
"""The next master may run on another node, which sees only what the volume has."""
_WITH_COPIES = JournalLimits(
    segment_bytes=256 << 10, kept_bytes=2 * CopyLimits().bytes, sync_every_s=math.inf
)
"""A copy begins with the segment of the newest image. A new holder gets all of it at once.

Nobody reads what no copy can have, nor the disk after this master's end.
"""
_ANY = "0.0.0.0"  # noqa: S104 - a pod's own addresses, and a token guards what listens there


@final
@dataclass(frozen=True, slots=True)
class MasterPodEnv:
    """What the pod passes to its master. The job itself is in its Job: see `own_job`."""

    owner: Owner
    pod_name: str
    address: str
    token_folder: Path
    outcome: Path

    @classmethod
    def read(cls) -> MasterPodEnv:
        """Read the environment. Raises PermanentError with the exit code for usage."""
        try:
            return cls(
                Owner(
                    *(
                        os.environ[f"ELASTICDL_{key}"]
                        for key in ("NAMESPACE", "JOB_NAME", "JOB_UID")
                    )
                ),
                os.environ["ELASTICDL_POD_NAME"],
                os.environ["ELASTICDL_POD_ADDRESS"],
                Path(SECRET_FOLDER),
                Path(TERMINATION_MESSAGE),
            )
        except KeyError as error:
            raise invalid_environment(error) from error

    @property
    def any_address(self) -> str:
        """Stands for all of the pod's addresses."""
        return "::" if ":" in self.address else _ANY


@final
class KubernetesPlatform:
    """The platform of a master whose processes are pods next to its own."""

    has_next = True
    limits = Limits()
    servers_return_s = 30.0

    def __init__(self) -> None:
        """Raises PermanentError if the environment is not that of a job's pod."""
        self._pod_env = MasterPodEnv.read()
        self._job: JobSpec | None = None
        self._gang: Gang | None = None
        self._replaces = False
        self._token = ""
        self._api: ApiServer | None = None
        self._lease: MasterLease | None = None
        self._settling: asyncio.Future[None] | None = None
        self._authority: CertifiedKey | None = None
        self._reserved: frozenset[int] = frozenset()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[MasterEnvironment]:
        ports = PortReservations()
        # Before the first connection to the API server: the system chooses the own port of each
        # outgoing connection from a range that has these, too.
        self._reserved = _reserved(ports, self._pod_env.any_address)
        try:
            async with self._acting() as environment:
                yield environment
        finally:
            ports.close()

    @asynccontextmanager
    async def _acting(self) -> AsyncIterator[MasterEnvironment]:
        api = await connect()
        lease = MasterLease(api, self._pod_env.owner, self._pod_env.pod_name, SystemClock())
        try:
            term = await self._resources(api).take_over(lease)
            self._lease = lease
            async with LeaseTenure(lease) as tenure:
                if (ended := parsed_outcome(lease.note(_OUTCOME))) is not None:
                    raise JobHasEnded(ended)
                joined = lease.note(_GANG_API)
                self._job, self._gang = await own_job(api, self._pod_env.owner, joined)
                if self._gang is not None and self._gang.api != joined:
                    # Before any pod names its PodGroup: all masters have to choose the same API.
                    notes = {_GANG_API: str(self._gang.api)}
                    await heard(lambda: lease.record(notes), _CONCLUDE_AGAIN_S)
                provided = await self._resources(api).provide()
                yield self._environment(provided, term, tenure)
        finally:
            if self._lease is not None:
                await lease.release()
            self._lease = None
            await api.close()

    def _copies(self, term: int) -> CopyPlace:
        assert self._lease is not None
        authority = self._authority.certificate if self._authority is not None else None
        return journal_copies(LeaseRecord(self._lease), self._running, self._token, authority, term)

    async def _running(self) -> frozenset[str]:
        async with self._connection() as api:
            return await self._resources(api).running()

    @property
    def _spec(self) -> JobSpec:
        assert self._job is not None, "nothing but an outcome is needed before it is read"
        return self._job

    def _environment(
        self, provided: ProvisionedResources, term: int, tenure: LeaseTenure
    ) -> MasterEnvironment:
        spec, owner = self._spec, self._pod_env.owner
        self._replaces = provided.replaces
        directory, warnings = open_directory(spec, owner, replaces=provided.replaces)
        keep_own_log(directory, self._pod_env.pod_name)
        self._token = provided.token
        self._authority = provided.authority
        bound = self._pod_env.any_address
        certified = _page_certificate() if spec.page_secret else None
        own = names_in(certified.certificate) if certified is not None else ()
        names = (*master_names(owner), *own)
        return MasterEnvironment(
            directory,
            provided.token,
            f"[{bound}]" if ":" in bound else bound,
            MASTER_PORT,
            term,
            RENDEZVOUS_PORT,
            warnings,
            PageAddress(bound, STATUS_PORT, names, owner.namespace, certified),
            Authority(self._authority) if self._authority is not None else None,
            reserved=self._reserved,
            replaces=provided.replaces,
            tenure=tenure,
            journal=_ON_A_VOLUME if spec.shares_job_dir else _WITH_COPIES,
            copies=None if spec.shares_job_dir else self._copies(term),
        )

    async def begin_anew(self, environment: MasterEnvironment) -> MasterEnvironment:
        async with self._connection() as api:
            ended = await self._resources(api).end_earlier()
            if (copies := environment.copies) is not None and copies.record.holders():
                # Their copies belong to a job that nobody continues.
                await heard(lambda: copies.record.record(()), _CONCLUDE_AGAIN_S)
        warnings = begin_anew(self._spec, environment.directory, lost=ended > 0)
        return replace(environment, warnings=(*environment.warnings, *warnings))

    async def _settled(self) -> None:
        """End `_settle`: from now on this master's end counts as its outcome says."""
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.gather(self._settling, return_exceptions=True)

    async def _settle(self, api: ApiServer) -> None:
        """Once this master has run for a while, have its end not count against the job."""
        await asyncio.sleep(_SETTLED_S)
        accounting = JobAccounting(api, self._pod_env.owner, self._pod_env.pod_name)
        for again_s in chain(_SETTLE_AGAIN_S, repeat(_SETTLE_AGAIN_S[-1])):
            try:
                await accounting.exempt(MASTER_FAILURES)
                return
            except (ApiAway, ApiRefused) as error:
                _LOG.warning("the end of this pod would count against the job: %s", error.message)
            await asyncio.sleep(again_s)

    def process_env(self, spec: JobSpec, environment: MasterEnvironment, port: int) -> ProcessEnv:
        address = master_address(self._pod_env.owner.job)
        return ProcessEnv(
            spec,
            str(environment.directory.path),
            address,
            environment.token,
            None,
            self._pod_env.any_address,
            environment.trusted,
        )

    @asynccontextmanager
    async def cluster(self, handover: Handover) -> AsyncIterator[Cluster]:
        api = self._api = await connect()
        spec = self._spec
        places = WorkerPlaces()
        habits = ClusterOptions(logs=JobDirectory(Path(spec.cluster.job_dir)).logs, places=places)
        secrets = ProcessSecrets(
            api, self._pod_env.owner, lambda name: process_token(self._token, str(name))
        )
        cluster = KubernetesCluster(
            api,
            self._pod_env.owner,
            lambda process: pod_plan(
                spec,
                process.name.role,
                places.of(process.name),
                self._gang,
                in_gang=process.in_gang,
            ),
            habits,
            secrets,
        )
        keep = self._resources(api).keep(self._token, secrets, self._authority)
        keeping = asyncio.ensure_future(keep)
        # Not before: a master that never gets here must not be started again without end.
        self._settling = asyncio.ensure_future(self._settle(api))
        try:
            yield cluster
        finally:
            await self._settled()
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await (cluster.leave() if handover.to_the_next else cluster.close())
            await api.close()

    @asynccontextmanager
    async def check(
        self, process_env: ProcessEnv, standard: Sequence[int]
    ) -> AsyncIterator[PreflightProcess]:
        assert self._api is not None
        owner, spec = self._pod_env.owner, process_env.check()
        question = {SPEC_VARIABLE: process_env.spec.model_dump_json()}
        again = (CHECK_AGAIN,) if self._replaces else ()
        spec = replace(spec, command=(*spec.command, *again), env={**spec.env, **question})
        plan = pod_plan(process_env.spec, Role.WORKER)

        def make(attempt: int) -> Json:
            return job_objects.preflight_pod(owner, plan, spec, attempt)

        async with preflight_pod(self._api, owner, make, standard) as check:
            yield check

    def progressed(self, records: int) -> None:
        """Do nothing: the cluster restarts a pod whether its job makes progress or not."""

    async def tell(self, outcome: Outcome) -> None:
        """Leave the outcome in the pod and in the Lease, and have the Job count the pod's end.

        Without an API server the next master finds the outcome in the journal, if there is one.
        """
        text = outcome_text(outcome)
        try:
            self._pod_env.outcome.write_text(text, encoding="utf-8")
        except OSError as error:
            _LOG.error("cannot write the outcome to %s: %s", self._pod_env.outcome, error)
        await self._settled()
        try:
            async with asyncio.timeout(_CONCLUDE_LIMIT_S), self._connection() as api:
                failure = outcome.exit_code != ExitCode.DONE
                await heard(lambda: self._conclude(api, text, failure=failure), _CONCLUDE_AGAIN_S)
        except (ElasticDLError, TimeoutError) as error:
            _LOG.error("cannot tell the cluster how the job ended: %s", error or "timed out")

    async def _conclude(self, api: ApiServer, text: str, *, failure: bool) -> None:
        if self._lease is not None:
            await self._lease.record({_OUTCOME: text})
        await JobAccounting(api, self._pod_env.owner, self._pod_env.pod_name).count(failure=failure)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[ApiServer]:
        api = await connect()
        try:
            yield api
        finally:
            await api.close()

    def _resources(self, api: ApiServer) -> KubernetesResources:
        job, owner, gang = self._job, self._pod_env.owner, self._gang
        return KubernetesResources(
            api,
            owner,
            self._pod_env.pod_name,
            self._pod_env.token_folder,
            secured=job is not None and job.uses_tls,
            pod_group=job_pod_group(job, owner, gang) if job and gang else None,
        )


def _reserved(ports: PortReservations, host: str) -> frozenset[int]:
    """Reserve the ports of a master; return those that nobody in its pod has now."""
    reserved = set[int]()
    for name, port in (
        ("calls", MASTER_PORT),
        ("rendezvous", RENDEZVOUS_PORT),
        ("page", STATUS_PORT),
    ):
        # A connection of a container beside this one may end before the master listens.
        with suppress(OSError):
            reserved.add(ports.reserve(name, host, port))
    return frozenset(reserved)


def _page_certificate() -> CertifiedKey:
    """Read the certificate in the Secret that the user named. Raises SpecError."""
    folder = Path(PAGE_FOLDER)
    try:
        certificate = CertifiedKey(
            (folder / "tls.crt").read_text(), (folder / "tls.key").read_text()
        )
        names_in(certificate.certificate)
        return certificate
    except (OSError, ValueError) as error:
        raise SpecError(
            f"the Secret that --tls names has no usable tls.crt and tls.key: {error}",
            hint="make one with `kubectl create secret tls`",
        ) from error
