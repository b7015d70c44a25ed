"""A cluster in memory whose node runs the pods that check model and data, as local processes."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from aiohttp import web

from elasticdl.cluster.kubernetes.labels import CHECK, ROLE_LABEL
from tests.contract.small_cluster import SmallCluster


class SmallKubelet(SmallCluster):
    """`statuses` are what pods report, in turn, before they run; `lost` pods end without a word."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[dict[str, Any]] = []
        self.ends: list[dict[str, Any]] = []
        """Statuses with which the first pods end, in place of running."""
        self.seen: list[dict[str, Any]] = []
        """Every pod that was created to check, as it was sent."""
        self._logs = tempfile.TemporaryDirectory()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._half_read: set[str] = set()
        """Pods whose log was last read before they ended: a node sends all of it first."""

    def put(self, path: str, made: dict[str, Any]) -> dict[str, Any]:
        if (made["metadata"].get("labels") or {}).get(ROLE_LABEL) == CHECK:
            made["metadata"].setdefault("namespace", "ns")
            made["status"] = {"phase": "Pending"}
            self.seen.append(made)
        return super().put(path, made)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.path.removesuffix("/log").rpartition("/")[2]
        pod = self.objects.get(request.path.removesuffix("/log"))
        if request.method == "GET" and pod is not None and pod in self.seen:
            if request.path.endswith("/log"):
                process = self._running.get(name)
                half = process is not None and process.poll() is None
                (self._half_read.add if half else self._half_read.discard)(name)
                return web.Response(body=self._log(name))
            self._tend(name, pod)
        answered = await super().answer(request)
        if request.method == "DELETE" and name in self._running:
            self.end(name)
        return answered

    def end(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        process = self._running[name]
        if process.poll() is None:
            os.killpg(process.pid, number)
            process.wait(20)

    def close(self) -> None:
        for name in self._running:
            self.end(name)
        self._logs.cleanup()

    def _tend(self, name: str, pod: dict[str, Any]) -> None:
        """Bring the pod's status to where its process is."""
        if self.statuses:
            pod["status"] = self.statuses.pop(0)
            return
        if name not in self._running:
            if self.ends:
                pod["status"] = self.ends.pop(0)
                return
            if pod["status"].get("phase") in ("Failed", "Succeeded"):
                return
            self._start(name, pod)
        code = None if name in self._half_read else self._running[name].poll()
        state: dict[str, Any] = {"running": {}}
        if code is not None:
            state = {"terminated": {"exitCode": code if code >= 0 else 128 - code}}
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        pod["spec"]["nodeName"] = "node0"
        pod["status"] = {"phase": phase, "containerStatuses": [{"name": "process", "state": state}]}

    def _start(self, name: str, pod: dict[str, Any]) -> None:
        (container,) = pod["spec"]["containers"]
        variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        with self._file(name).open("wb") as output:
            self._running[name] = subprocess.Popen(
                [part.replace("$$", "$") for part in container["command"]],
                env={
                    "PATH": os.environ["PATH"],
                    **{key: value.replace("$$", "$") for key, value in variables.items()},
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _file(self, name: str) -> Path:
        return Path(self._logs.name, name)

    def _log(self, name: str) -> bytes:
        """With the node's times, each line at another one."""
        file = self._file(name)
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        return b"".join(
            b"2026-11-21T10:00:00.%09dZ %s" % (number, line)
            for number, line in enumerate(lines, 1)
            if line.endswith(b"\n")
        )
