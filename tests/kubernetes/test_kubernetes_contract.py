"""What every cluster promises, kept by real pods."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from elasticdl.cluster.kubernetes.plans import Owner
from tests.contract import test_cluster_contract as contract
from tests.kubernetes.scripted_pods import ScriptedPods, scripted_pods
from tests.kubernetes.target_cluster import TargetCluster

pytestmark = pytest.mark.kubernetes
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def namespace(shared_namespace: str) -> str:
    return shared_namespace


@pytest.fixture
@asynccontextmanager
async def bench(place: TargetCluster, owner: Owner) -> AsyncIterator[ScriptedPods]:
    async with asyncio.timeout(LIMIT_S), scripted_pods(place, owner) as ready:
        yield ready


globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})


async def test_a_shorter_grace_asked_for_later_counts(bench: ScriptedPods) -> None:
    # In place of the contract's own: a node that was quick to end the pod waits for the first grace
    # (kubernetes/kubernetes#83916), so that only the telling of it keeps the promise.
    await bench.start_stubborn(contract.W0)
    async with aclosing(bench.cluster.observe()) as events:
        await bench.cluster.delete(contract.W0, grace_s=15)
        await bench.seen_deleted(contract.W0)
        await bench.cluster.delete(contract.W0, grace_s=0)
        began_s = time.monotonic()
        status = await contract.the_exit(events, contract.W0)
    assert status.asked and time.monotonic() - began_s < 10
    assert status.signal in (None, signal.SIGKILL)
