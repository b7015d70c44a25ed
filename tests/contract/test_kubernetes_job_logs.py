"""Logs of processes whose pods are gone, as the master of a job on a cluster kept them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from elasticdl.cli.jobs.forwarded_master import ForwardedMaster
from elasticdl.cli.jobs.job import LogRequest
from elasticdl.cli.jobs.kubernetes_job import KubernetesJob
from elasticdl.cluster.kubernetes.job_state import JobState
from elasticdl.cluster.kubernetes.labels import MASTER, labels
from elasticdl.errors import ExitCode, NoSuchJob, TransientError

pytestmark = pytest.mark.contract
JOB = {
    "metadata": {"name": "ads", "namespace": "ns", "uid": "u"},
    "spec": {"template": {"spec": {"containers": []}}},
}
RUNNING = {
    "metadata": {
        "name": "ads-abcde",
        "namespace": "ns",
        "uid": "p",
        "labels": labels("ads", MASTER),
    },
    "status": {
        "phase": "Running",
        "containerStatuses": [{"name": "process", "state": {"running": {}}}],
    },
}
LISTED = {"logs": [{"process": "master-0", "bytes": 1024}, {"process": "worker-7", "bytes": 2048}]}


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        known: dict[str, Any] = {
            "/api/v1/logs": LISTED,
            "/api/v1/logs/worker-7": {"text": "one\ntwo\nthree\n"},
        }
        found = known.get(path, {"error": {"message": "there is no log"}})
        text = json.dumps(found).encode()
        allowed = self.headers["Authorization"] == "Bearer opensesame"
        self.send_response(401 if not allowed else 200 if path in known else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesJob]:
    """A job whose master runs and whose pod of worker-7 is gone."""
    page = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=page.serve_forever, daemon=True).start()

    @contextmanager
    def tunnel(_self: ForwardedMaster, _state: JobState, **_role: bool) -> Iterator[str]:
        yield f"http://127.0.0.1:{page.server_address[1]}/#token=opensesame"

    monkeypatch.setattr(ForwardedMaster, "page", tunnel)
    monkeypatch.setattr(
        KubernetesJob, "job_state", lambda _self, whole=False: JobState(JOB, (RUNNING,))
    )
    yield KubernetesJob(SimpleNamespace(api=None, namespace="ns"), "ads")  # type: ignore[arg-type]
    page.shutdown()
    page.server_close()


def test_logs_of_pods_that_are_gone_are_listed_beside_those_of_pods(job: KubernetesJob) -> None:
    assert [(entry.process, entry.what) for entry in job.logs()][1:] == [
        ("worker-7", "kept of pods that are gone: 2,048 bytes")
    ]


@pytest.mark.parametrize(("lines", "text"), [(2, "two\nthree\n"), (0, "one\ntwo\nthree\n")])
def test_the_last_lines_of_a_pod_that_is_gone_are_read_from_the_master(
    job: KubernetesJob, lines: int, text: str
) -> None:
    assert "".join(job.read_log(LogRequest("worker-7", lines, follow=True))) == text


def test_a_log_that_nobody_has_names_those_that_there_are(
    job: KubernetesJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoSuchJob, match="no log of 'worker-9'") as missing:
        list(job.read_log(LogRequest("worker-9")))
    assert missing.value.exit_code is ExitCode.NO_SUCH_JOB
    assert missing.value.hint == "there are master-0, worker-7"

    @contextmanager
    def away(_self: ForwardedMaster, _state: JobState, **_role: bool) -> Iterator[str]:
        raise TransientError("the master is away")
        yield

    monkeypatch.setattr(ForwardedMaster, "page", away)
    with pytest.raises(NoSuchJob, match="no log of 'worker-7'") as unreached:
        list(job.read_log(LogRequest("worker-7")))
    assert unreached.value.hint == "there are master-0"
