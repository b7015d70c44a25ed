"""The Lease of a job's master: over real HTTP, against an API server that keeps objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from elasticdl.clock import ManualClock
from elasticdl.cluster.kubernetes.master_lease import LeaseTiming, MasterLease
from elasticdl.cluster.kubernetes.plans import Json, Owner
from elasticdl.errors import MasterSuperseded
from elasticdl.master.platform.lease_tenure import LeaseTenure
from tests.contract.api_server import status
from tests.contract.small_cluster import SmallCluster, serving
from tests.waiting import until_async

pytestmark = pytest.mark.contract
OWNER = Owner("ns", "iris", "uid-1")
PODS = "/api/v1/namespaces/ns/pods"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/iris-master"
QUICK = LeaseTiming(renew_every_s=0.05, look_every_s=0.02)
AWAY = status(503, "ServiceUnavailable")


class Stage:
    """Pods that want to be the job's master. Time stands still unless a test lets it pass."""

    def __init__(self, cluster: SmallCluster, api: Any, stack: AsyncExitStack) -> None:
        self.cluster, self.api, self.clock = cluster, api, ManualClock()
        self._stack = stack

    def master(self, pod: str, timing: LeaseTiming = QUICK) -> MasterLease:
        return MasterLease(self.api, OWNER, pod, self.clock, timing)

    async def acting(self, pod: str, term: int = 1) -> tuple[MasterLease, LeaseTenure]:
        """A master that holds the Lease and renews it."""
        lease = self.master(pod)
        await lease.acquire(term)
        return lease, await self._stack.enter_async_context(LeaseTenure(lease))

    @property
    def lease(self) -> Json:
        return self.cluster.objects[LEASE]

    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"])


@pytest.fixture
@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    cluster = SmallCluster()
    async with serving(cluster, 20.0) as api, AsyncExitStack() as stack:
        yield Stage(cluster, api, stack)


def pod(stage: Stage, name: str, *, ended: bool = False, **more: Any) -> None:
    state = {"terminated": {"exitCode": 137}} if ended else {"running": {}}
    containers = {"containerStatuses": [{"name": "process", "state": state}]}
    stage.cluster.put(PODS, {"metadata": {"name": name}, "status": {**containers, **more}})


async def test_the_first_master_creates_the_lease_and_holds_it(stage: Stage) -> None:
    lease = stage.master("a")
    assert await lease.acquire(1700) == 1700 and lease.valid
    assert stage.holder() == "a" and stage.lease["spec"]["leaseTransitions"] == 1
    (reference,) = stage.lease["metadata"]["ownerReferences"]
    assert reference["uid"] == OWNER.uid, "it goes with the job"


async def test_a_lease_that_was_released_is_taken_at_once_by_a_higher_term(stage: Stage) -> None:
    first = stage.master("a")
    await first.acquire(1700)
    await first.release()
    assert not first.valid and stage.holder() == ""
    assert await stage.master("b").acquire(1699) == 1701


async def test_a_lease_of_a_container_that_has_ended_is_taken_at_once(stage: Stage) -> None:
    await stage.master("a").acquire(7)
    pod(stage, "a", ended=True, phase="Failed")
    assert await stage.master("b").acquire(7) == 8


@pytest.mark.parametrize("how", ["deleted", "failed"])
async def test_a_pod_that_is_gone_or_was_given_up_may_still_run_so_its_lease_has_to_expire(
    stage: Stage, how: str
) -> None:
    await stage.master("a").acquire(7)
    if how == "failed":
        pod(stage, "a", phase="Failed")
    taking = asyncio.ensure_future(stage.master("b").acquire(7))
    await until_async("it has asked", lambda: "elasticdl.org/successor" in notes(stage))
    stage.clock.advance(QUICK.expired_s - 0.1)
    await asyncio.sleep(3 * QUICK.look_every_s)
    assert stage.holder() == "a" and not taking.done()
    stage.clock.advance(0.2)
    assert await taking == 8 and "elasticdl.org/successor" not in notes(stage)


def notes(stage: Stage) -> dict[str, str]:
    return dict(stage.lease["metadata"].get("annotations") or {})


async def test_a_master_that_cannot_renew_stops_before_another_may_act(stage: Stage) -> None:
    first = stage.master("a")
    await first.acquire(7)
    taking = asyncio.ensure_future(stage.master("b").acquire(7))
    acted = 0.0
    while not taking.done():
        assert not (first.valid and stage.holder() == "b")
        stage.clock.advance(0.5)
        acted += 0.5 * first.valid
        await asyncio.sleep(2 * QUICK.look_every_s)
    assert acted == pytest.approx(QUICK.valid_s, abs=1.0)


async def test_a_master_that_renews_leaves_when_another_pod_asks_for_it(stage: Stage) -> None:
    first, tenure = await stage.acting("a", 7)
    taking = asyncio.ensure_future(stage.master("b").acquire(7))
    assert await tenure.lost() == "pod b takes the job over" and not first.valid
    with pytest.raises(MasterSuperseded):
        await tenure.confirm(lambda: False)
    with pytest.raises(MasterSuperseded):
        await first.record({"x": "y"})
    await asyncio.sleep(3 * QUICK.look_every_s)
    assert stage.holder() == "a" and not taking.done(), "it may still write its journal"
    await first.release({"outcome": "none"})
    assert await taking == 8 and first.note("outcome") == "none"


async def test_a_master_that_was_replaced_while_it_was_away_learns_of_it(stage: Stage) -> None:
    first, tenure = await stage.acting("a", 7)
    stage.cluster.bend = lambda _method, _path, _body: AWAY
    stage.clock.advance(QUICK.expired_s + 1)
    assert not first.valid
    stage.cluster.bend = lambda _method, _path, _body: None
    pod(stage, "a", ended=True)
    await stage.master("b").acquire(7)
    assert "takes the job over" in await tenure.lost()


async def test_an_outage_of_the_api_server_leaves_the_decision_to_the_journal(stage: Stage) -> None:
    lease, tenure = await stage.acting("a", 7)
    stage.cluster.bend = lambda _method, _path, _body: AWAY
    await until_async("a renewal fails", lambda: _later(stage, lease))
    await tenure.confirm(lambda: True)
    waiting = asyncio.ensure_future(tenure.confirm(lambda: False))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    stage.cluster.bend = lambda _method, _path, _body: None
    await waiting
    assert lease.valid


async def _later(stage: Stage, lease: MasterLease) -> bool:
    stage.clock.advance(1.0)
    await asyncio.sleep(0.01)
    return not lease.valid


async def test_a_deleted_lease_is_made_again_with_all_that_it_had(stage: Stage) -> None:
    first, tenure = await stage.acting("a", 7)
    await first.record({"journal": "7/1"})
    before = notes(stage)
    del stage.cluster.objects[LEASE]
    await until_async(
        "it is there again", lambda: LEASE in stage.cluster.objects and stage.holder() == "a"
    )
    assert notes(stage) == before
    await tenure.confirm(lambda: False)


async def test_notes_of_one_master_are_read_by_the_next(stage: Stage) -> None:
    first = stage.master("a")
    await first.acquire(7)
    assert first.note("journal") == ""
    await first.record({"journal": "7/1"})
    await first.record({"outcome": "done"})
    await first.release()
    second = stage.master("b")
    await second.acquire(7)
    assert (second.note("journal"), second.note("outcome")) == ("7/1", "done")


async def test_the_lease_of_an_earlier_job_of_this_name_is_waited_for_not_used(
    stage: Stage,
) -> None:
    other = MasterLease(stage.api, replace(OWNER, uid="uid-0"), "z", stage.clock, QUICK)
    await other.acquire(9000)
    taking = asyncio.ensure_future(stage.master("a").acquire(7))
    stage.clock.advance(2 * QUICK.expired_s)
    await asyncio.sleep(5 * QUICK.look_every_s)
    assert not taking.done() and stage.holder() == "z"
    del stage.cluster.objects[LEASE]
    assert await taking == 7, "the terms of another job do not count"


async def test_a_restarted_process_of_the_same_pod_continues_at_once(stage: Stage) -> None:
    await stage.master("a").acquire(7)
    assert await stage.master("a").acquire(7) == 8


async def test_an_api_server_that_is_away_is_waited_for(stage: Stage) -> None:
    busy = [{**AWAY}] * 2
    stage.cluster.bend = lambda _method, _path, _body: busy.pop() if busy else None
    assert await stage.master("a").acquire(7) == 7
