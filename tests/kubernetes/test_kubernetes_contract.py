"""What every cluster promises, kept by real pods."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from elasticdl.cluster.kubernetes.plans import Owner
from tests.contract import test_cluster_contract as contract
from tests.kubernetes.bench import KubernetesBench, bench
from tests.kubernetes.target_cluster import TargetCluster

pytestmark = pytest.mark.kubernetes
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def namespace(shared_namespace: str) -> str:
    return shared_namespace


@pytest.fixture
def run(
    place: TargetCluster, owner: Owner
) -> Callable[[Callable[[KubernetesBench], Coroutine[Any, Any, None]]], None]:
    def run_scenario(scenario: Callable[[KubernetesBench], Coroutine[Any, Any, None]]) -> None:
        async def with_cluster() -> None:
            async with asyncio.timeout(LIMIT_S), bench(place, owner) as ready:
                await scenario(ready)

        asyncio.run(with_cluster())

    return run_scenario


async def _shorter_grace(bench: KubernetesBench) -> None:
    await bench.start_stubborn(contract.W0)
    async with aclosing(bench.cluster.observe()) as events:
        await bench.cluster.delete(contract.W0, grace_s=15)
        await bench.seen_deleted(contract.W0)
        await bench.cluster.delete(contract.W0, grace_s=0)
        began_s = time.monotonic()
        status = await contract.the_exit(events, contract.W0)
    assert status.asked and time.monotonic() - began_s < 10
    assert status.signal in (None, signal.SIGKILL)


globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})


def test_a_shorter_grace_asked_for_later_counts(
    run: Callable[[Callable[[KubernetesBench], Coroutine[Any, Any, None]]], None],
) -> None:
    # In place of the contract's own: a node that was quick to end the pod waits for the first grace
    # (kubernetes/kubernetes#83916), so that only the telling of it keeps the promise.
    run(_shorter_grace)
