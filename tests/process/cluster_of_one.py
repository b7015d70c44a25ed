"""A cluster with jobs on it, for the command line as a process: a real API server's protocol on the
loopback, in a thread.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.cluster.kubernetes.labels import (
    JOB_UID_LABEL,
    labels,
    pod_name,
    secret_name,
    viewer_secret_name,
)
from elasticdl.cluster.kubernetes.port_forward import PROTOCOL
from tests.contract.api_client import listening
from tests.contract.small_cluster import SmallCluster

NAMESPACE, TOKEN, VIEWER = "team", "the-token", "the-viewers-token"
MASTER = ProcessName(Role.MASTER, 0)
_EMPTY: dict[str, Any] = {"template": {"spec": {"containers": []}}}


def encoded(text: str) -> str:
    """As a Secret has it."""
    return base64.b64encode(text.encode()).decode()


class ClusterOfOne:
    """`ports` leads from a port of a pod to one of this machine."""

    def __init__(self) -> None:
        self.objects = SmallCluster()
        self.ports: dict[int, int] = {}
        self.silent = False
        """It accepts connections and answers nothing."""
        self.address = ""

    def add_job(self, name: str, authority: str | None = None) -> None:
        """One whose master runs; `authority` signs its certificate (None: no TLS)."""
        trusted = {} if authority is None else {"ca.crt": encoded(authority)}
        uid = f"uid-of-{name}"
        base = labels(name, MASTER)
        job = {
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": uid, "labels": base},
            "spec": _EMPTY,
            "status": {},
        }
        self.objects.put(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", job)
        owned: dict[str, Any] = {"namespace": NAMESPACE, "ownerReferences": [{"uid": uid}]}
        state = {"name": "process", "state": {"running": {"startedAt": "2026-11-21T10:00:02Z"}}}
        pod = {
            "metadata": {
                **owned,
                "name": pod_name(name, MASTER),
                "labels": {**base, JOB_UID_LABEL: uid},
            },
            "spec": {"nodeName": "node0", "containers": [{"name": "process", "image": "i"}]},
            "status": {"phase": "Running", "containerStatuses": [state]},
        }
        self.objects.put(f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
        secret = {
            "metadata": {**owned, "name": secret_name(name)},
            "data": {"ELASTICDL_TOKEN": encoded(TOKEN), **trusted},
        }
        self.objects.put(f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)
        viewer = {
            "metadata": {**owned, "name": viewer_secret_name(name)},
            "data": {"ELASTICDL_TOKEN": encoded(VIEWER), **trusted},
        }
        self.objects.put(f"/api/v1/namespaces/{NAMESPACE}/secrets", viewer)

    def end_job(self, name: str) -> None:
        """It is done, and its pods are gone."""
        job = self.objects.objects[f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{name}"]
        job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        del self.objects.objects[f"/api/v1/namespaces/{NAMESPACE}/pods/{pod_name(name, MASTER)}"]

    def kubeconfig(self, directory: Path) -> Path:
        """A file that leads here."""
        context = {
            "name": "here",
            "context": {"cluster": "here", "user": "me", "namespace": NAMESPACE},
        }
        users = [{"name": "me", "user": {}}]
        clusters = [{"name": "here", "cluster": {"server": self.address}}]
        whole = {"apiVersion": "v1", "kind": "Config", "current-context": "here"}
        path = directory / "kubeconfig"
        path.write_text(
            json.dumps({**whole, "contexts": [context], "users": users, "clusters": clusters})
        )
        return path

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.silent:
            await asyncio.sleep(3600)
        if request.path.endswith("/portforward"):
            return await self._forward(request)
        return await self.objects.answer(request)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        port = int(request.query["ports"])
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        for channel in (0, 1):
            await socket.send_bytes(bytes((channel,)) + port.to_bytes(2, "little"))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[port])
        except (OSError, KeyError):
            await socket.send_bytes(b"\1connect: connection refused")
            return socket

        async def inward() -> None:
            while piece := await reader.read(65536):
                await socket.send_bytes(b"\0" + piece)
            await socket.close()

        task = asyncio.ensure_future(inward())
        try:
            with suppress(ConnectionError):
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.BINARY and message.data[0] == 0:
                        writer.write(message.data[1:])
                        await writer.drain()
        finally:
            # Whoever goes away without a word has this cancelled.
            task.cancel()
            writer.close()
        return socket


@contextmanager
def cluster_of_one() -> Iterator[ClusterOfOne]:
    """Until the context ends."""
    cluster, up, done = ClusterOfOne(), threading.Event(), threading.Event()

    async def serve() -> None:
        async with listening(web.route("*", "/{rest:.*}", cluster.answer)) as address:
            cluster.address = address
            up.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert up.wait(20)
        yield cluster
    finally:
        done.set()
        thread.join(20)
