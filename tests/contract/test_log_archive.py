"""The logs of pods that end are kept in files, whatever takes the pods away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from elasticdl.cluster.base import ProcessExited, ProcessName, Role
from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.cluster import Habits, KubernetesCluster
from elasticdl.cluster.kubernetes.labels import JOB_UID_LABEL, labels
from elasticdl.cluster.kubernetes.plans import Image, Owner, PodPlan
from elasticdl.cluster.logs import log_archive
from elasticdl.cluster.logs.log_archive import KEPT_BYTES, LogArchive
from tests.contract.api_server import Server, change, sends, serving
from tests.waiting import until_async

pytestmark = [pytest.mark.contract, pytest.mark.timeout(60)]
PATH = "/api/v1/namespaces/ns/pods"


def pod(
    index: int,
    *,
    leaving: bool = False,
    ended: bool = False,
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
    state = {"terminated": {"exitCode": 0}} if ended else {"running": {}}
    return {
        "metadata": metadata | ({"deletionTimestamp": "2026-11-21T10:00:00Z"} if leaving else {}),
        "spec": {"nodeName": "node0", "containers": [{"image": "zoo:1"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "process", "state": state}]},
    }


class Logs:
    """What the log of each pod has; one that is followed goes on when `more` comes.

    A missing one is 404.
    """

    def __init__(self, **texts: bytes) -> None:
        self.texts = {name.replace("_", "-"): text for name, text in texts.items()}
        self.more = asyncio.Event()
        self.asked: list[tuple[str, bool]] = []
        self.at_once = self.most_at_once = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name, follow = request.match_info["name"], request.query.get("follow") == "true"
        self.asked.append((name, follow))
        if name not in self.texts:
            return web.json_response({"message": "pods not found"}, status=404)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(self.texts[name])
        if follow:
            await self.more.wait()
            await answer.write(b"last words")
        self.at_once -= 1
        return answer


@asynccontextmanager
async def keeping(logs: Logs, directory: Path) -> AsyncIterator[LogArchive]:
    application = web.Application()
    application.router.add_get(PATH + "/{name}/log", logs.answer)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    api = ApiServer(Configuration(host=f"http://{host}:{port}"), "ns")
    try:
        async with asyncio.timeout(30):
            yield LogArchive(api, PATH, directory)
    finally:
        await api.close()
        await runner.cleanup()


def test_the_log_of_a_process_that_ended_is_kept_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        logs = Logs(job_worker_0=b"one\ntwo\n")
        async with keeping(logs, tmp_path / "logs") as kept:
            kept.changed(pod(0))
            assert logs.asked == []
            kept.changed(pod(0, ended=True))
            kept.changed(pod(0, ended=True, leaving=True))
            await kept.finish(10)
            kept.gone(pod(0, ended=True, leaving=True))
        assert logs.asked == [("job-worker-0", False)]

    asyncio.run(scenario())
    title, *lines = (tmp_path / "logs/worker-0.log").read_text().splitlines()
    assert title.startswith("=== worker-0, the last 8 bytes of its log, kept 20") and lines == [
        "one",
        "two",
    ]


def test_a_process_that_is_told_to_end_is_followed_to_its_last_words_though_its_pod_goes_at_once(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        logs = Logs(job_ps_0_1=b"first\n")
        async with keeping(logs, tmp_path) as kept:
            kept.changed(pod(0, role=Role.PS, incarnation=1, leaving=True))
            kept.gone(pod(0, role=Role.PS, incarnation=1, leaving=True, ended=True))
            logs.more.set()
            await kept.finish(10)
        assert logs.asked == [("job-ps-0-1", True)]

    (tmp_path / "ps-0.log").write_text("=== ps-0 ===\nearlier\n")
    asyncio.run(scenario())
    lines = (tmp_path / "ps-0.log").read_text().splitlines()
    assert [lines[1], *lines[3:]] == ["earlier", "first", "last words"] and lines[2].startswith(
        "=== ps-0.1,"
    )


def test_of_a_long_log_the_last_part_is_kept_in_whole_lines(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keeping(
            Logs(job_worker_0=b"".join(b"line %06d\n" % number for number in range(20_000))),
            tmp_path,
        ) as kept:
            kept.changed(pod(0, ended=True))
            await kept.finish(10)

    asyncio.run(scenario())
    _, *lines = (tmp_path / "worker-0.log").read_text().splitlines()
    assert (
        lines[-1] == "line 019999"
        and KEPT_BYTES - 24 < sum(len(line) + 1 for line in lines) < KEPT_BYTES
    )
    assert all(line.startswith("line ") and len(line) == 11 for line in lines)


def test_a_log_that_is_gone_or_a_directory_that_cannot_be_written_is_no_fault(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        logs = Logs(job_worker_1=b"one\n")
        async with keeping(logs, tmp_path / "file" / "logs") as kept:
            kept.changed(pod(0, ended=True))
            kept.changed(pod(1, ended=True))
            await kept.finish(10)
        assert sorted(logs.asked) == [("job-worker-0", False), ("job-worker-1", False)]

    (tmp_path / "file").touch()
    asyncio.run(scenario())
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_hundreds_of_pods_that_end_are_read_a_few_at_a_time_and_the_oldest_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_archive, "ALL_BYTES", 20_000)

    async def scenario() -> None:
        logs = Logs(**{f"job_worker_{index}": b"x" * 1000 + b"\n" for index in range(60)})
        async with keeping(logs, tmp_path) as kept:
            for index in range(60):
                kept.changed(pod(index, ended=True))
            await kept.finish(20)
        assert len(logs.asked) == 60 and logs.most_at_once <= log_archive.AT_ONCE

    (tmp_path / "master-0.log").write_text("the master's own")
    asyncio.run(scenario())
    assert (tmp_path / "master-0.log").exists()
    assert 5_000 < sum(path.stat().st_size for path in tmp_path.iterdir()) < 22_000


def test_the_end_of_a_job_does_not_wait_for_a_log_that_does_not_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        logs = Logs(job_worker_0=b"one\n")
        async with keeping(logs, tmp_path) as kept:
            kept.changed(pod(0, leaving=True))
            await until_async("the log was asked for", lambda: logs.asked)
            async with asyncio.timeout(5):
                await kept.finish(0.1)

    asyncio.run(scenario())
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_lists_pods_that_are_there_and_what_was_kept_of_those_that_are_not(
    tmp_path: Path,
) -> None:
    def known(version: int, index: int, **more: bool) -> dict[str, Any]:
        made = pod(index, **more)  # type: ignore[arg-type]
        made["metadata"] |= {
            "resourceVersion": str(version),
            "labels": {**made["metadata"]["labels"], JOB_UID_LABEL: "uid"},
        }
        return made

    server = Server()
    server.lists = [[known(1, 0), known(2, 1), known(3, 2, ended=True)]]
    server.watches = [
        sends(
            change("MODIFIED", known(101, 0, ended=True)),
            change("DELETED", known(102, 0, ended=True)),
        )
    ]

    async def scenario() -> dict[str, tuple[int | None, bool]]:
        async with serving(server) as api, asyncio.timeout(20):
            habits = Habits(logs=tmp_path)
            cluster = KubernetesCluster(
                api, Owner("ns", "job", "uid"), lambda _: PodPlan(Image("zoo")), habits
            )
            async for event in cluster.observe():
                if isinstance(event, ProcessExited) and event.name.index == 0:
                    break
            await asyncio.sleep(0.1)  # its pod goes right after its end
            found = await cluster.logs()
            await cluster.leave()
            return {one.process: (one.size_bytes, one.live) for one in found}

    (tmp_path / "worker-0.log").write_text("kept")
    assert asyncio.run(scenario()) == {
        "worker-0": (4, False),
        "worker-1": (None, True),
        "worker-2": (None, False),
    }
