"""An API server on the loopback that misbehaves as it is told: real HTTP, real streams, real
silence.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from aiohttp import web

from elasticdl.cluster.kubernetes.apiserver import ApiServer
from tests.contract.api_client import connected

Watch: TypeAlias = Callable[[web.StreamResponse], Awaitable[None]]
PODS = "/api/v1/namespaces/ns/pods"


def item(uid: str, version: int, name: str = "", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": uid,
            "name": name or uid,
            "resourceVersion": str(version),
            "labels": labels,
        }
    }


def status(code: int, reason: str = "", message: str = "", **more: Any) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "reason": reason, "message": message or reason, **more}


class Server:
    """`lists` and `watches` are taken one by one; the last of them stays.

    `posts` answers creations in order.
    """

    def __init__(self) -> None:
        self.lists: list[Any] = [[]]
        self.watches: list[Any] = [silent]
        self.posts: list[tuple[int, dict[str, Any], dict[str, str]]] = []
        self.objects: dict[str, dict[str, Any]] = {}
        self.list_count = 0
        self.watch_queries: list[dict[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.version = 100

    async def collection(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            self.watch_queries.append(dict(request.query))
            behaviour = self.watches.pop(0) if len(self.watches) > 1 else self.watches[0]
            if isinstance(behaviour, dict):
                return web.json_response(behaviour, status=behaviour["code"])
            answer = web.StreamResponse()
            await answer.prepare(request)
            await behaviour(answer)
            return answer
        self.list_count += 1
        found = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(found, dict):
            return web.json_response(found, status=found.get("code", 200))
        return web.json_response(
            {"metadata": {"resourceVersion": str(self.version)}, "items": found}
        )

    async def create(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        code, body, headers = self.posts.pop(0)
        return web.json_response(body, status=code, headers=headers)

    async def read(self, request: web.Request) -> web.Response:
        found = self.objects.get(request.match_info["name"])
        return (
            web.json_response(found)
            if found
            else web.json_response(status(404, "NotFound"), status=404)
        )


async def silent(_answer: web.StreamResponse) -> None:
    await asyncio.sleep(60)


async def at_once(_answer: web.StreamResponse) -> None:
    """Ends before it has begun."""


def sends(*events: Any, then: Watch = silent) -> Watch:
    async def behave(answer: web.StreamResponse) -> None:
        for event in events:
            await answer.write(
                event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n"
            )
        await then(answer)

    return behave


def change(kind: str, found: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": found}


def serving(server: Server) -> AbstractAsyncContextManager[ApiServer]:
    return connected(
        web.get(PODS, server.collection),
        web.post(PODS, server.create),
        web.get(PODS + "/{name}", server.read),
    )
