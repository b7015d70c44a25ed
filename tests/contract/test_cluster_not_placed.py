"""A pod that the scheduler chose a node for and does not place there, against an API server on the
loopback.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from elasticdl.cluster.base import ProcessExited, ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.cluster import ClusterOptions, KubernetesCluster
from elasticdl.cluster.kubernetes.labels import labels
from elasticdl.cluster.kubernetes.plans import Image, Owner, PodPlan
from tests.contract.api_client import connected
from tests.contract.api_server import PODS, Server, change, item, sends, silent, status

pytestmark = pytest.mark.contract
W0 = ProcessName(Role.WORKER, 0)


def plan(_spec: ProcessSpec) -> PodPlan:
    return PodPlan(Image("zoo"))


def pod(version: int, *, node: str = "", **reported: Any) -> dict[str, Any]:
    made = item("u", version, "job-worker-0", **labels("job", W0))
    return made | {"spec": {"nodeName": node} if node else {}, "status": reported}


WAITING = pod(1, nominatedNodeName="node7")
NEWS = {
    "placed": pod(
        2,
        node="node7",
        phase="Running",
        containerStatuses=[{"name": "process", "state": {"running": {}}}],
    ),
    "still waiting": pod(2, nominatedNodeName="node7", conditions=[{"type": "New"}]),
}


@pytest.mark.parametrize(("news", "deletions"), [("placed", ["1"]), ("still waiting", ["1", "2"])])
async def test_a_pod_is_given_up_only_in_the_state_in_which_it_was_seen(
    news: str, deletions: list[str]
) -> None:
    """The API server has news of it that the master has not heard yet."""
    server, newest, asked = Server(), 2, list[str]()
    told = asyncio.Event()

    async def delete(request: web.Request) -> web.Response:
        required = (await request.json())["preconditions"]
        asked.append(required["resourceVersion"])
        assert required["uid"] == "u"
        told.set()
        if required["resourceVersion"] != str(newest):
            return web.json_response(status(409, "Conflict"), status=409)
        gone.set()
        return web.json_response({})

    gone = asyncio.Event()

    async def watch(answer: web.StreamResponse) -> None:
        await told.wait()
        await sends(change("MODIFIED", NEWS[news]), then=after)(answer)

    async def after(answer: web.StreamResponse) -> None:
        await gone.wait()
        await sends(change("DELETED", NEWS[news]), then=silent)(answer)

    server.lists, server.watches = [[WAITING]], [watch]
    routes = (web.get(PODS, server.collection), web.delete(PODS + "/{name}", delete))
    async with connected(*routes) as api, asyncio.timeout(30):
        options = ClusterOptions(nominated_s=0.2)
        cluster = KubernetesCluster(api, Owner("ns", "job", "uid"), plan, options)
        events = cluster.observe()
        seen = await anext(events)
        assert not isinstance(seen, ProcessExited) and "makes room" in seen.waiting_for
        then = await anext(events)
        if news == "placed":
            assert not isinstance(then, ProcessExited) and then.running
            await asyncio.sleep(2.5)  # It looks every second.
        else:
            assert isinstance(then, ProcessExited) and then.exit_status.reason == "NotPlaced"
            assert "node7" in then.exit_status.log_tail and not then.exit_status.asked
        assert asked == deletions
        await cluster.leave()
