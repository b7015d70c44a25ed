"""Creation against an API server that refuses, is busy, or loses its answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import CreateRefused
from elasticdl.cluster.kubernetes.creating import Creator
from elasticdl.cluster.kubernetes.labels import JOB_UID_LABEL
from tests.contract.api_server import PODS, Server, item, serving, status
from tests.waiting import until_async

pytestmark = pytest.mark.contract
POD = {"kind": "Pod", "metadata": {"name": "w"}}
MADE = item("u", 1, "w", **{JOB_UID_LABEL: "mine"})
FOREIGN = item("v", 1, "w", **{JOB_UID_LABEL: "other"})
TAKEN: tuple[Any, ...] = (409, status(409, "AlreadyExists", 'pods "w" already exists'), {})


def create(server: Server, times: int = 1, last_pause_s: float = 5.0) -> list[dict[str, Any]]:
    async def scenario() -> list[dict[str, Any]]:
        async with serving(server) as api, asyncio.timeout(20):
            creator = Creator(api, "mine", SystemClock(), last_pause_s)
            return await asyncio.gather(*(creator.create(PODS, POD) for _ in range(times)))

    return asyncio.run(scenario())


def test_what_is_there_already_and_ours_is_taken_over() -> None:
    server = Server()
    server.posts, server.objects = [TAKEN], {"w": MADE}
    assert create(server) == [MADE]


def test_what_is_there_already_and_somebody_elses_is_refused_for_good() -> None:
    server = Server()
    server.posts, server.objects = [TAKEN], {"w": FOREIGN}
    with pytest.raises(
        CreateRefused, match="pod w already exists and does not belong to this job"
    ) as refused:
        create(server)
    assert not refused.value.retry


def test_what_was_there_and_has_gone_meanwhile_is_made_again() -> None:
    server = Server()
    server.posts = [TAKEN, (201, MADE, {})]
    assert create(server) == [MADE]


def test_a_conflict_within_the_server_is_tried_again() -> None:
    server = Server()
    server.posts = [
        (409, status(409, "Conflict", "quota was changed by somebody else"), {}),
        (201, MADE, {}),
    ]
    assert create(server) == [MADE]


def test_a_lost_answer_is_found_again() -> None:
    server = Server()
    server.posts, server.objects = (
        [(500, status(500, "InternalError", "etcd: leader changed"), {}), TAKEN],
        {"w": MADE},
    )
    assert create(server) == [MADE]


async def test_a_server_that_is_too_busy_gets_the_pause_that_it_asks_for_from_everybody() -> None:
    server = Server()
    busy = (429, status(429, "TooManyRequests"), {"Retry-After": "1"})
    server.posts = [busy, *[(201, MADE, {})] * 6]
    began_s = time.monotonic()

    async with serving(server) as api, asyncio.timeout(20):
        creator = Creator(api, "mine", SystemClock())
        first = asyncio.ensure_future(creator.create(PODS, POD))
        await until_async("the server was asked", lambda: server.bodies)
        await asyncio.sleep(0.1)
        await asyncio.gather(first, *(creator.create(PODS, POD) for _ in range(5)))
    assert time.monotonic() - began_s >= 1.0
    assert len(server.bodies) == 7


def test_a_pause_longer_than_a_creation_may_take_is_a_refusal_for_now() -> None:
    server = Server()
    server.posts = [(429, status(429, "TooManyRequests", "slow down"), {"Retry-After": "100"})] * 20
    with pytest.raises(CreateRefused, match="too many requests") as refused:
        create(server, last_pause_s=0.05)
    assert refused.value.retry


def test_a_refusal_that_will_stand_is_not_repeated() -> None:
    server = Server()
    server.posts = [(403, status(403, "Forbidden", "out of the blue"), {})]
    with pytest.raises(CreateRefused, match="out of the blue"):
        create(server)
    assert len(server.bodies) == 1


LACKS = (
    'pods is forbidden: User "system:serviceaccount:ns:a" cannot create resource "pods" in API'
    ' group "" in the namespace "ns"'
)


def test_a_right_that_a_server_has_forgotten_since_it_was_away_is_asked_for_again() -> None:
    """Seen: for 0.7 s and more after its start an API server knows no roles, and forbids what they
    allow.
    """
    server = Server()
    server.posts = [
        (503, status(503, "ServiceUnavailable"), {}),
        (403, status(403, "Forbidden", LACKS), {}),
        (201, MADE, {}),
    ]
    assert create(server) == [MADE]


def test_a_right_that_is_missing_is_so_at_once_where_the_server_was_there_all_the_time() -> None:
    server = Server()
    server.posts = [(403, status(403, "Forbidden", LACKS), {})]
    with pytest.raises(
        CreateRefused, match="service account a of namespace ns may not create pods"
    ) as refused:
        create(server)
    assert not refused.value.retry and len(server.bodies) == 1
