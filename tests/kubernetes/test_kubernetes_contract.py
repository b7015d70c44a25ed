"""What every cluster promises, kept by real pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from elasticdl.cluster.plans import Owner
from tests.contract import test_cluster_contract as contract
from tests.kubernetes.bench import KubernetesBench, bench
from tests.kubernetes.place import Place

pytestmark = pytest.mark.kubernetes
LIMIT_S = 120.0


@pytest.fixture
def run(place: Place, owner: Owner) -> Callable[[Callable[[KubernetesBench], Coroutine[Any, Any, None]]], None]:
    def run_scenario(scenario: Callable[[KubernetesBench], Coroutine[Any, Any, None]]) -> None:
        async def with_cluster() -> None:
            async with asyncio.timeout(LIMIT_S), bench(place, owner) as ready:
                await scenario(ready)

        asyncio.run(with_cluster())

    return run_scenario


globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})
