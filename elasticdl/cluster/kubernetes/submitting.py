"""Submit a job: check that it can run, then create the Job once, despite lost requests."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, final

from elasticdl.cluster.kubernetes import rights
from elasticdl.cluster.kubernetes.api_refusals import refusal
from elasticdl.cluster.kubernetes.apiserver import ApiAway, ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.gang_discovery import find_gang
from elasticdl.cluster.kubernetes.labels import DOMAIN
from elasticdl.cluster.kubernetes.ladder_use import settle_ladder
from elasticdl.cluster.kubernetes.planning import job_object, pod_objects
from elasticdl.cluster.kubernetes.plans import Json
from elasticdl.errors import ClusterRefused, PermanentError, SpecError
from elasticdl.job import JobSpec

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
SUBMISSION = f"{DOMAIN}/submission"
_FEW = 3


@final
@dataclass(frozen=True, slots=True)
class SubmitLimits:
    """Time limits, in seconds."""

    limit_s: float = 60.0
    """For all of a submission, including pauses while the API server is unreachable."""
    rights_limit_s: float = 2.0
    """For roles that the previous command created."""


class NameTaken(SpecError):
    """Another Job has the name."""


@final
@dataclass(frozen=True, slots=True)
class Submitted:
    """A Job as the API server created it; `warnings` say what it has to wait for."""

    job: Json
    warnings: tuple[str, ...] = ()


async def submit(
    api: ApiServer,
    spec: JobSpec,
    namespace: str,
    say: Callable[[str], None] = _LOG.info,
    limits: SubmitLimits = SubmitLimits(),
) -> Submitted:
    """Create the Job. `spec` has a name and a directory; `say` reports a wait.

    Raises:
        SpecError: the name is taken.
        PermanentError: the cluster would refuse the job or one of its pods (exit code 3).
        ApiAway: the API server was unreachable for a minute.

    Nothing is created then.
    """
    return await _Submission(api, spec, namespace, say, limits).run()


@final
class _Submission:
    def __init__(
        self,
        api: ApiServer,
        spec: JobSpec,
        namespace: str,
        say: Callable[[str], None],
        limits: SubmitLimits,
    ) -> None:
        self._api, self._spec, self._namespace, self._say = api, spec, namespace, say
        self._limits, self._waited = limits, False

    async def run(self) -> Submitted:
        submission = uuid.uuid4().hex
        try:
            async with asyncio.timeout(self._limits.limit_s) as limit:
                return await self._steps(submission, limit)
        except TimeoutError as error:
            raise ApiAway(
                f"the API server did not answer all requests within {self._limits.limit_s:g} s"
            ) from error

    def _job(self, spec: JobSpec, submission: str) -> Json:
        manifest = job_object(spec, self._namespace)
        manifest["metadata"]["annotations"] = {SUBMISSION: submission}
        return manifest

    async def _steps(self, submission: str, limit: asyncio.Timeout) -> Submitted:
        api, namespace = self._api, self._namespace
        manifest = self._job(self._spec, submission)
        if await self._heard(lambda: rights.missing(api, namespace, rights.SUBMITTING), limit):
            raise ClusterRefused(
                f"you may not create jobs in namespace {namespace}",
                hint="ask the cluster's administrator",
            )
        # Check the name and the namespace first: other errors would only hide these.
        await self._heard(lambda: _create(api, namespace, manifest, dry_run=True), limit)
        gang = await self._heard(lambda: find_gang(api, self._spec), limit)
        account = self._spec.kubernetes.service_account or "default"
        needed = rights.needed_by(gang)
        lacking = await self._heard(
            lambda: rights.lasting(
                lambda: rights.missing_of(api, namespace, account, needed),
                self._limits.rights_limit_s,
            ),
            limit,
        )
        if lacking:
            raise _powerless(lacking, account, namespace)
        spec, why_not = await self._heard(lambda: settle_ladder(api, self._spec, namespace), limit)
        warnings = await self._heard(lambda: rehearsal(api, spec, namespace), limit)
        settled = self._job(spec, submission)
        created = await self._heard(lambda: _create(api, namespace, settled), limit)
        return Submitted(created, (*([why_not] if why_not else []), *warnings))

    async def _heard(self, call: Callable[[], Awaitable[T]], limit: asyncio.Timeout) -> T:
        """Repeat a call while the server is unreachable and there is time. Raises ApiAway."""
        while True:
            try:
                return await call()
            except ApiAway as away:
                left_s = (limit.when() or 0.0) - asyncio.get_running_loop().time()
                if away.retry_after_s + 1.0 > left_s:
                    raise
                if not self._waited:
                    self._say(f"{away.message}; retrying for {left_s:.0f} s")
                    self._waited = True
                await asyncio.sleep(away.retry_after_s)


async def rehearsal(api: ApiServer, spec: JobSpec, namespace: str) -> tuple[str, ...]:
    """Request a pod of each role as a dry run; returns what the job would have to wait for.

    Raises PermanentError (exit code 3) for a pod that the cluster would never accept, and ApiAway.
    A user without the right to create pods cannot ask; the job's master reports refusals then.
    """
    path = f"/api/v1/namespaces/{namespace}/pods"
    warnings = []
    for role, pod in zip(
        ("the master", "a worker", "a parameter server"), pod_objects(spec, namespace), strict=True
    ):
        try:
            await api.create(path, pod, dry_run=True)
        except ApiRefused as error:
            if error.status.code == 409 or "cannot create resource" in error.message:
                continue
            rejection = refusal(error.status.code, error.message)
            if not rejection.retry:
                raise ClusterRefused(
                    f"the cluster would refuse {role}'s pod: {rejection.reason}"
                ) from error
            warnings.append(f"{role} would have to wait: {rejection.reason}")
    return tuple(warnings)


def _powerless(lacking: rights.Rights, account: str, namespace: str) -> PermanentError:
    parts = "; ".join(
        f"{right} ({right.why})" if len(lacking) <= _FEW else str(right) for right in lacking
    )
    return ClusterRefused(
        f"the job's master would run as service account {account} of namespace {namespace}, which"
        f" may not {parts}",
        hint=(
            f"run kubectl -n {namespace} apply -f docker/rbac.yaml, or set another"
            " --service-account"
        ),
    )


async def _create(api: ApiServer, namespace: str, manifest: Json, *, dry_run: bool = False) -> Json:
    path, name = f"/apis/batch/v1/namespaces/{namespace}/jobs", manifest["metadata"]["name"]
    try:
        return await api.create(path, manifest, dry_run=dry_run)
    except ApiRefused as error:
        if error.status.reason != "AlreadyExists":
            raise ClusterRefused(refusal(error.status.code, error.message).reason) from error
        with suppress(ApiRefused):  # Somebody else's, if it is unreadable.
            existing = await api.get(f"{path}/{name}")
            if _submission(existing) == _submission(manifest):
                return existing
        raise NameTaken(
            f"job {name} already exists in namespace {namespace}",
            hint=(
                "choose another --job-name, or delete that job: kubectl -n"
                f" {namespace} delete job {name}"
            ),
        ) from error


def _submission(job: Json) -> str:
    return str((job["metadata"].get("annotations") or {}).get(SUBMISSION) or "")
