"""An API server on the loopback that keeps objects: real HTTP, with its answers bent where a test
wants that.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from aiohttp import web

from elasticdl.cluster.kubernetes.apiserver import ApiServer
from tests.contract.api_client import connected
from tests.contract.api_server import status

Bend: TypeAlias = Callable[[str, str, dict[str, Any]], dict[str, Any] | None]
"""(method, path, body) to a Status that is answered instead; None: as usual."""
CREATED = "2026-11-21T10:00:00Z"
_CLUSTER_SCOPED = ("priorityclasses", "clusterroles", "clusterrolebindings", "nodes")


def plain(_method: str, _path: str, _body: dict[str, Any]) -> None:
    return None


class SmallCluster:
    """`objects` by path. `bend` may refuse before an object is made, `lose` after it."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.lacking: set[str] = set()
        self.bend: Bend = plain
        self.lose: Bend = plain
        self.deleted: list[tuple[str, int]] = []
        self.denied: list[str] = []
        """Rights that were asked for and are lacking."""
        self.taken: list[str] = []
        """Names that were asked for and are taken."""
        self.stubborn: set[str] = set()
        """Pods that go by force only."""
        self._versions = 100
        self.held: set[str] = set()
        """Pods that do not go at all: somebody's finalizer holds them."""

    def put(self, path: str, made: dict[str, Any]) -> dict[str, Any]:
        made["metadata"].setdefault("uid", uuid.uuid4().hex)
        made["metadata"].setdefault("creationTimestamp", CREATED)
        self._touch(made)
        self.objects[f"{path}/{made['metadata']['name']}"] = made
        return made

    def names(self) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.objects)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await _silent_watch(request)
        body = await request.json() if request.can_read_body else {}
        bent = self.bend(request.method, request.path, body)
        code, found = (bent["code"], bent) if bent else self._handled(request, body)
        lost = self.lose(request.method, request.path, body) if code < 300 else None
        return web.json_response(lost or found, status=lost["code"] if lost else code)

    def _handled(self, request: web.Request, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        match request.method:
            case "POST" if "accessreviews" in request.path:
                asked = body["spec"]["resourceAttributes"]
                right = f"{asked['verb']} {asked['resource']}"
                self.denied += [right] if right in self.lacking else []
                return 201, {"status": {"allowed": right not in self.lacking}}
            case "POST":
                return self._posted(request, body)
            case "DELETE":
                return self._deleted(request.path, body)
            case "PUT" if request.path in self.objects:
                return self._replaced(request.path, body)
            case "PATCH" if request.path in self.objects:
                return 200, self._changed(request.path, body)
            case _ if request.path in self.objects:
                return 200, self.objects[request.path]
            case _ if _is_collection(request.path):
                return 200, {
                    "metadata": {"resourceVersion": str(self._versions)},
                    "items": self._listed(request.path, request.query.get("labelSelector", "")),
                }
            case _:
                return 404, status(404, "NotFound", f"{request.path} not found")

    def _posted(self, request: web.Request, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = body["metadata"]["name"]
        if f"{request.path}/{name}" in self.objects:
            self.taken.append(name)
            return 409, status(409, "AlreadyExists", f'"{name}" already exists')
        return 201, body if request.query.get("dryRun") else self.put(request.path, body)

    def _replaced(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if body["metadata"].get("resourceVersion") != self.version(path):
            return 409, status(409, "Conflict", f"{path} has been modified")
        self.objects[path] = body
        self._touch(body)
        return 200, body

    def _changed(self, path: str, change: dict[str, Any]) -> dict[str, Any]:
        """A strategic merge patch of what masters change: finalizers, and fields of `spec`."""
        found, metadata = self.objects[path], change.get("metadata", {})
        gone = metadata.get("$deleteFromPrimitiveList/finalizers", [])
        kept = [one for one in found["metadata"].get("finalizers", []) if one not in gone]
        added = [one for one in metadata.get("finalizers", []) if one not in kept]
        found["metadata"]["finalizers"] = [*kept, *added]
        found.setdefault("spec", {}).update(change.get("spec", {}))
        self._touch(found)
        return found

    def version(self, path: str) -> str:
        return str(self.objects[path]["metadata"].get("resourceVersion", ""))

    def _touch(self, made: dict[str, Any]) -> None:
        self._versions += 1
        made["metadata"]["resourceVersion"] = str(self._versions)

    def _deleted(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name, grace_s = path.rpartition("/")[2], int(body.get("gracePeriodSeconds", 30))
        self.deleted.append((name, grace_s))
        if name not in self.held and (name not in self.stubborn or grace_s == 0):
            self._collect(self.objects.pop(path, None))
        return 200, {}

    def _collect(self, gone: dict[str, Any] | None) -> None:
        """What an object owned goes with it, as the garbage collector does it."""
        identity = (gone or {"metadata": {}})["metadata"].get("uid")
        for path, one in [*self.objects.items()]:
            if identity and identity in {
                owner["uid"] for owner in one["metadata"].get("ownerReferences") or ()
            }:
                self._collect(self.objects.pop(path, None))

    def _listed(self, path: str, selector: str) -> list[dict[str, Any]]:
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        inside = [one for key, one in self.objects.items() if key.rpartition("/")[0] == path]
        return [
            one for one in inside if wanted.items() <= (one["metadata"].get("labels") or {}).items()
        ]


async def _silent_watch(request: web.Request) -> web.StreamResponse:
    """A watch that reports nothing, until the client is gone."""
    response = web.StreamResponse()
    await response.prepare(request)
    while request.transport is not None and not request.transport.is_closing():
        await asyncio.sleep(0.05)
    return response


def _is_collection(path: str) -> bool:
    parts = path.strip("/").split("/")
    if parts == ["api", "v1", "namespaces"] or parts[-1] in _CLUSTER_SCOPED:
        return True
    return len(parts) == (5 if parts[0] == "api" else 6)


@asynccontextmanager
async def serving(cluster: SmallCluster, limit_s: float = 60.0) -> AsyncIterator[ApiServer]:
    """`limit_s`: for what goes on meanwhile; more where that is the start of processes on a machine
    that is busy.
    """
    async with connected(web.route("*", "/{rest:.*}", cluster.answer)) as api:
        async with asyncio.timeout(limit_s):
            yield api
