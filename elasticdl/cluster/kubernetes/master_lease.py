"""The Lease that says which pod is the job's master.

A job may have two masters for a while: one whose node is cut off, and its replacement. Only the
holder of `JOB-master` acts. It renews the Lease, and stops when it is unsure whether it still holds
it. A replacement asks the holder to leave by an annotation, and takes the Lease when the holder has
released it, when its container has ended, or when nobody has renewed it for `expired_s`.

Holders compare no clocks: each measures by its own how long the Lease did not change.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn, final

from elasticdl.clock import Clock
from elasticdl.cluster.kubernetes.apiserver import ApiAway, ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.job_objects import master_lease
from elasticdl.cluster.kubernetes.labels import DOMAIN
from elasticdl.cluster.kubernetes.plans import Json, Owner
from elasticdl.cluster.kubernetes.pods import has_terminated
from elasticdl.errors import MasterSuperseded

_LOG = logging.getLogger(__name__)
_TERM = f"{DOMAIN}/term"
_SUCCESSOR = f"{DOMAIN}/successor"
_NOTE = f"{DOMAIN}/note-"


@final
@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Intervals, in seconds.

    A holder may act for `valid_s` after it sent its last renewal. Others take the Lease after
    `expired_s` without a renewal, which has to be longer.
    """

    renew_every_s: float = 2.0
    valid_s: float = 8.0
    expired_s: float = 10.0
    look_every_s: float = 0.25
    call_s: float = 4.0
    release_s: float = 3.0


@final
class MasterLease:
    """One pod's view of the Lease. Use it from one event loop."""

    def __init__(
        self,
        api: ApiServer,
        owner: Owner,
        pod_name: str,
        clock: Clock,
        timing: LeaseTiming = LeaseTiming(),
    ) -> None:
        """`pod_name` identifies the holder: no two pods of a Job have one name."""
        self._api, self._owner, self._me = api, owner, pod_name
        self._clock, self._timing = clock, timing
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{owner.namespace}/leases"
        self._collection = leases
        self._pods = f"/api/v1/namespaces/{owner.namespace}/pods"
        self._lease: Json = {}
        self._path = f"{leases}/{master_lease(owner)['metadata']['name']}"
        self._valid_until_s = -math.inf
        self._changing = asyncio.Lock()

    @property
    def valid(self) -> bool:
        """Whether no other pod can hold the Lease now."""
        return self._clock.now_s() < self._valid_until_s

    @property
    def term(self) -> int:
        """The term of the newest holder."""
        return int(_annotations(self._lease).get(_TERM, "0"))

    def note(self, key: str) -> str:
        """What a holder has kept under this key; '' for nothing."""
        return str(_annotations(self._lease).get(_NOTE + key, ""))

    async def acquire(self, term: int) -> int:
        """Wait until this pod holds the Lease; return the term, which exceeds all earlier ones.

        Raises ApiRefused.
        """
        seen, since_s = "", self._clock.now_s()
        while True:
            try:
                lease = await self._read()
                renewed = str(lease and lease["spec"])
                if renewed != seen:
                    seen, since_s = renewed, self._clock.now_s()
                expired = self._clock.now_s() - since_s > self._timing.expired_s
                if lease is not None and (expired or await self._is_free(lease)):
                    await self._take(lease, term)
                    return self.term
                if lease is not None:
                    await self._ask_for(lease)
            except ApiAway as away:
                _LOG.warning("%s; retrying in %g s", away.message, away.retry_after_s)
                await asyncio.sleep(away.retry_after_s)
            except ApiRefused as refused:
                # Another pod has changed, created or deleted it meanwhile.
                if refused.status.code not in (404, 409):
                    raise
            await asyncio.sleep(self._timing.look_every_s)

    async def keep(self) -> NoReturn:
        """Renew the Lease until it is lost. Raises MasterSuperseded; an API server may be away."""
        while True:
            try:
                await self._change(lambda lease: None)
            except ApiAway as away:
                _LOG.info("cannot renew the job's Lease: %s", away.message)
            except ApiRefused as refused:
                _LOG.error("the cluster refuses to renew the job's Lease: %s", refused.message)
            await asyncio.sleep(self._timing.renew_every_s)

    async def record(self, notes: Mapping[str, str]) -> None:
        """Keep notes for later masters; return when the API server has them.

        A note is at most a few KiB of text. Raises MasterSuperseded, ApiAway, ApiRefused.
        """
        await self._change(
            lambda lease: lease["metadata"]["annotations"].update(
                {_NOTE + key: text for key, text in notes.items()}
            )
        )

    async def release(self, notes: Mapping[str, str] | None = None) -> None:
        """Let another pod take the Lease at once. An API server that is away is no error."""
        self._valid_until_s = -math.inf

        def let_go(lease: Json) -> None:
            lease["metadata"]["annotations"].update(
                {_NOTE + key: text for key, text in (notes or {}).items()}
            )
            lease["spec"]["holderIdentity"] = ""

        try:
            async with asyncio.timeout(self._timing.release_s):
                await self._change(let_go, leaving=True)
        except (ApiAway, ApiRefused, MasterSuperseded, TimeoutError) as error:
            _LOG.info("did not release the job's Lease: %s", error or "timed out")
        finally:
            self._valid_until_s = -math.inf

    async def _read(self) -> Json | None:
        """Return the Lease; create it if there is none.

        None while that of an earlier job of this name is there: the cluster will delete it.
        """
        if (lease := await self._api.find(self._path)) is None:
            return await self._api.create(self._collection, master_lease(self._owner))
        owners = {owner.get("uid") for owner in lease["metadata"].get("ownerReferences") or ()}
        return lease if self._owner.uid in owners else None

    async def _is_free(self, lease: Json) -> bool:
        """Whether nobody holds it, or its holder's process has ended.

        A pod that is merely gone, as after a forced deletion, says nothing about its process.
        """
        holder = _holder(lease)
        if holder in ("", self._me):
            return True
        pod = await self._api.find(f"{self._pods}/{holder}")
        return pod is not None and has_terminated(pod)

    async def _take(self, lease: Json, term: int) -> None:
        self._lease = lease
        holder, transitions = _holder(lease), int(lease["spec"].get("leaseTransitions") or 0)
        wanted = copy.deepcopy(lease)
        annotations = wanted["metadata"].setdefault("annotations", {})
        annotations[_TERM] = str(max(term, self.term + 1))
        annotations.pop(_SUCCESSOR, None)
        wanted["spec"] |= {
            "holderIdentity": self._me,
            "leaseTransitions": transitions + 1,
            "acquireTime": _now(),
        }
        await self._replace(wanted)
        before = f"; the holder before was pod {holder}" if holder else ""
        _LOG.info("acquired the job's Lease for term %d%s", self.term, before)

    async def _ask_for(self, lease: Json) -> None:
        """Ask the holder to leave. If several pods ask, the newest request counts."""
        if _annotations(lease).get(_SUCCESSOR) != self._me:
            _LOG.info("asking the master in pod %s to leave", _holder(lease))
            wanted = copy.deepcopy(lease)
            wanted["metadata"].setdefault("annotations", {})[_SUCCESSOR] = self._me
            await self._api.replace(self._path, wanted)

    async def _change(self, change: Callable[[Json], object], *, leaving: bool = False) -> None:
        """Change the Lease as its holder. Raises MasterSuperseded, ApiAway, ApiRefused."""
        async with self._changing:
            while True:
                wanted = copy.deepcopy(self._lease)
                change(wanted)
                try:
                    await self._replace(wanted)
                    return
                except ApiRefused as refused:
                    if refused.status.code not in (404, 409):
                        raise
                self._lease = await self._own(leaving=leaving)

    async def _own(self, *, leaving: bool) -> Json:
        """Read the Lease after another client has changed it.

        Raises MasterSuperseded if it has another holder, or should have and we do not leave.
        """
        lease = await self._read()
        holder = _holder(lease) if lease is not None else ""
        annotations = _annotations(lease or {})
        successor = annotations.get(_SUCCESSOR, self._me)
        if lease is not None and holder == self._me and (leaving or successor == self._me):
            return lease
        if lease is not None and not holder and _TERM not in annotations:
            # Somebody deleted it, and `_read` has created another one.
            metadata = {**lease["metadata"], "annotations": _annotations(self._lease)}
            return {**lease, "metadata": metadata, "spec": self._lease["spec"]}
        self._valid_until_s = -math.inf
        other = successor if holder == self._me else holder
        raise MasterSuperseded(
            f"{f'pod {other}' if other else 'another master'} takes the job over"
        )

    async def _replace(self, wanted: Json) -> None:
        sent_s = self._clock.now_s()
        wanted["spec"]["renewTime"] = _now()
        try:
            async with asyncio.timeout(self._timing.call_s):
                self._lease = await self._api.replace(self._path, wanted)
        except TimeoutError as error:
            raise ApiAway(f"the API server did not answer for {self._timing.call_s:g} s") from error
        self._valid_until_s = sent_s + self._timing.valid_s


def _holder(lease: Json) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _annotations(lease: Json) -> Mapping[str, str]:
    annotations = (lease.get("metadata") or {}).get("annotations")
    return annotations if isinstance(annotations, Mapping) else {}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
