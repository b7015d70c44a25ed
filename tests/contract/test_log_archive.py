"""The logs of pods are copied into files, whatever takes the pods away."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.cluster.kubernetes.labels import labels
from elasticdl.cluster.kubernetes.log_archive import ArchiveLimits, LogArchive
from tests.contract.api_client import connected
from tests.waiting import until_async

pytestmark = [pytest.mark.contract, pytest.mark.timeout(60)]
PATH = "/api/v1/namespaces/ns/pods"
FIRST = datetime(2026, 11, 21, 10, tzinfo=UTC)


def pod(
    index: int,
    *,
    leaving: bool = False,
    ended: bool = False,
    waiting: bool = False,
    role: Role = Role.WORKER,
    incarnation: int = 0,
) -> dict[str, Any]:
    name = ProcessName(role, index, incarnation)
    metadata = {
        "name": f"job-{name}".replace(".", "-"),
        "namespace": "ns",
        "uid": str(name),
        "labels": labels("job", name),
    }
    state = {"terminated": {"exitCode": 0}} if ended else {"waiting" if waiting else "running": {}}
    return {
        "metadata": metadata | ({"deletionTimestamp": "2026-11-21T10:00:00Z"} if leaving else {}),
        "spec": {"nodeName": "node0", "containers": [{"image": "zoo:1"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "process", "state": state}]},
    }


class Node:
    """Serves pods and their logs, as an API server does; a stream ends with its pod.

    `lines` has (seconds after the first line, text) by pod.
    """

    def __init__(self, **lines: list[tuple[int, str]]) -> None:
        self.lines = {name.replace("_", "-"): printed for name, printed in lines.items()}
        self.ended: set[str] = set()
        self.queries: list[dict[str, str]] = []
        self._more = asyncio.Condition()

    async def print(self, name: str, second: int, text: str) -> None:
        self.lines[name].append((second, text))
        async with self._more:
            self._more.notify_all()

    async def end(self, name: str) -> None:
        self.ended.add(name)
        async with self._more:
            self._more.notify_all()

    async def log(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        name = request.match_info["name"]
        if name not in self.lines:
            return web.json_response({"message": "pods not found"}, status=404)
        answer = web.StreamResponse()
        await answer.prepare(request)
        since = request.query.get("sinceTime", "")
        sent = 0
        while True:
            for second, text in self.lines[name][sent:]:
                stamp = (FIRST + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")
                if stamp >= since:
                    await answer.write(f"{stamp} {text}\n".encode())
            sent = len(self.lines[name])
            if name in self.ended:
                return answer
            async with self._more:
                if sent == len(self.lines[name]) and name not in self.ended:
                    await self._more.wait()

    async def pod(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        role, index = name.split("-")[1:3]
        return web.json_response(pod(int(index), role=Role(role), ended=name in self.ended))


@asynccontextmanager
async def archiving(
    node: Node, directory: Path, limits: ArchiveLimits = ArchiveLimits()
) -> AsyncIterator[LogArchive]:
    routes = (web.get(PATH + "/{name}/log", node.log), web.get(PATH + "/{name}", node.pod))
    async with connected(*routes) as api:
        archive = LogArchive(api, directory, limits)
        try:
            async with asyncio.timeout(30):
                yield archive
        finally:
            await archive.finish(0)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def test_a_log_is_copied_while_its_process_runs_and_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "worker-0.log"

    node = Node(job_worker_0=[(0, "one")])
    async with archiving(node, tmp_path / "logs") as archive:
        archive.changed(pod(0))
        await until_async("the first line is copied", lambda: lines(path)[1:] == ["one"])
        archive.changed(pod(0, leaving=True))
        archive.gone(pod(0, leaving=True))
        await node.print("job-worker-0", 1, "last words")
        await node.end("job-worker-0")
        await archive.finish(10)
    assert len(node.queries) == 1
    header, *printed = lines(path)
    assert header.startswith("=== worker-0, copied from its pod since 20")
    assert printed == ["one", "last words"]


async def test_a_pod_that_had_ended_is_copied_once_and_one_that_waits_not_yet(
    tmp_path: Path,
) -> None:
    node = Node(job_ps_0_1=[(0, "first")])
    await node.end("job-ps-0-1")
    async with archiving(node, tmp_path) as archive:
        archive.changed(pod(0, role=Role.PS, incarnation=1, waiting=True))
        archive.changed(pod(0, role=Role.PS, incarnation=1, ended=True))
        archive.changed(pod(0, role=Role.PS, incarnation=1, ended=True, leaving=True))
        await archive.finish(10)
    assert len(node.queries) == 1
    assert lines(tmp_path / "ps-0.log")[1:] == ["first"]


async def test_the_next_master_copies_only_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"

    path.write_text("=== worker-0 ===\nold\n")
    os.utime(path, (FIRST.timestamp() + 30,) * 2)
    node = Node(job_worker_0=[(0, "old"), (60, "new")])
    async with archiving(node, tmp_path) as archive:
        archive.changed(pod(0))
        await until_async("the new line is copied", lambda: lines(path)[-1:] == ["new"])
    assert [line for line in lines(path) if "===" not in line] == ["old", "new"]


async def test_a_log_that_is_gone_or_a_directory_that_cannot_be_written_is_no_error(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    node = Node(job_worker_1=[(0, "one")])
    await node.end("job-worker-1")
    async with archiving(node, tmp_path / "file" / "logs") as archive:
        archive.changed(pod(0, ended=True))
        archive.changed(pod(1, ended=True))
        await archive.finish(10)
    assert len(node.queries) == 2
    assert os.listdir(tmp_path) == ["file"]


async def test_a_long_log_loses_its_older_half_in_whole_lines(tmp_path: Path) -> None:
    limits = ArchiveLimits(file_bytes=10_000)

    node = Node(job_worker_0=[(0, f"line {number:06d}") for number in range(2_000)])
    await node.end("job-worker-0")
    async with archiving(node, tmp_path, limits) as archive:
        archive.changed(pod(0, ended=True))
        await archive.finish(10)
    path = tmp_path / "worker-0.log"
    assert lines(path)[-1] == "line 001999" and path.stat().st_size <= 10_000
    assert all(len(line) == 11 for line in lines(path))
    assert os.listdir(tmp_path) == [path.name]


async def test_the_oldest_logs_are_removed_for_new_ones_and_the_masters_is_not(
    tmp_path: Path,
) -> None:
    limits = ArchiveLimits(all_bytes=20_000, recount_bytes=1_000)

    (tmp_path / "master-0.log").write_text("the master's own")
    node = Node(**{f"job_worker_{index}": [(0, "x" * 1000)] for index in range(60)})
    node.ended = set(node.lines)
    async with archiving(node, tmp_path, limits) as archive:
        for index in range(60):
            archive.changed(pod(index, ended=True))
        await archive.finish(20)
    assert (tmp_path / "master-0.log").exists()
    assert 5_000 < sum(os.stat(tmp_path / name).st_size for name in os.listdir(tmp_path)) < 22_000


async def test_of_too_many_live_pods_those_that_end_are_copied(tmp_path: Path) -> None:
    limits = ArchiveLimits(most_followed=1)
    node = Node(job_worker_0=[(0, "one")], job_worker_1=[(0, "two")])
    async with archiving(node, tmp_path, limits) as archive:
        archive.changed(pod(0))
        archive.changed(pod(1))
        await until_async("one is copied", lambda: lines(tmp_path / "worker-0.log"))
        assert len(node.queries) == 1
        await node.end("job-worker-1")
        archive.changed(pod(1, ended=True))
        await until_async("the other is copied", lambda: lines(tmp_path / "worker-1.log"))


async def test_the_end_of_a_job_does_not_wait_for_a_log_that_does_not_end(tmp_path: Path) -> None:
    node = Node(job_worker_0=[(0, "one")])
    async with archiving(node, tmp_path) as archive:
        archive.changed(pod(0, leaving=True))
        await until_async("the log was asked for", lambda: node.queries)
        async with asyncio.timeout(5):
            await archive.finish(0.1)
