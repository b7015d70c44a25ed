"""`elasticdl dashboard`: the address, the browser, the way to a cluster."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.kubernetes.plans import STATUS_PORT
from elasticdl.tls import MASTER_NAME
from elasticdl.tls.authority import Authority
from elasticdl.tls.contexts import server_context
from elasticdl.tokens import viewer_token
from tests.process.cluster_of_one import NAMESPACE, TOKEN, VIEWER, ClusterOfOne, cluster_of_one
from tests.process.scripted_master import page_of
from tests.process.test_cli_jobs import Commands, elasticdl

pytestmark = pytest.mark.process
__all__ = ["elasticdl"]
LIMIT_S = 40.0
BROWSER = """#!{python}
import pathlib, sys, urllib.parse
page = pathlib.Path(urllib.parse.urlsplit(sys.argv[1]).path)
mode = oct(page.stat().st_mode & 0o777)
pathlib.Path({seen!r}).write_text("\\n".join([" ".join(sys.argv[1:]), mode, page.read_text()]))
"""


@pytest.fixture
def browser(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A browser that writes down what it was given; returns where."""
    directory = tmp_path_factory.mktemp("browser")
    seen, program = directory / "seen", directory / "browser"
    program.write_text(BROWSER.format(python=sys.executable, seen=str(seen)))
    program.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(program))
    return seen


def without_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    without_browser(monkeypatch)


def test_a_local_jobs_page_is_opened_with_a_token_which_no_other_user_sees_or_its_address_is_said(
    elasticdl: Commands, browser: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For reading only, the page has the viewer's token."""
    process = elasticdl.train("drains")
    where = elasticdl.master("drains")
    for more, token in (
        ((), where["token"]),
        (("--read-only",), viewer_token(where["token"])),
    ):
        address = f"{where['page']}#token={token}"
        assert elasticdl.run("dashboard", "drains", *more) == (0, address + "\n", "")
        given, mode, page = browser.read_text().split("\n", 2)
        assert given.startswith("file://") and token not in given
        assert mode == "0o600" and f'href="{address}"' in page
        assert where["token"] == token or where["token"] not in browser.read_text()
    without_browser(monkeypatch)
    code, output, errors = elasticdl.run("dashboard", "drains")
    assert code == 0 and output.startswith(where["page"]) and "cannot start a browser" in errors
    assert elasticdl.run("dashboard", "--no-browser", "drains")[1:] == (output, "")
    assert elasticdl.run("stop", "drains", "--yes")[0] == 0
    assert elasticdl.end(process)[0] == 130


def test_a_job_that_has_ended_has_a_report_in_place_of_a_page(elasticdl: Commands) -> None:
    assert elasticdl.end(elasticdl.train("finishes"))[0] == 0
    report = elasticdl.directory / "jobs/finishes/report.html"
    report.touch()
    code, output, errors = elasticdl.run("dashboard", "finishes")
    assert (code, output) == (4, "") and "has ended" in errors and str(report.parent) in errors


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterOfOne]:
    with cluster_of_one() as found:
        monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig(tmp_path)))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        yield found


@pytest.fixture
def page() -> Iterator[int]:
    """The status page of a master in a pod; its port. It knows the owner and the viewer."""
    with served_page(None) as port:
        yield port


@contextmanager
def served_page(context: ssl.SSLContext | None) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), page_of(TOKEN, VIEWER)) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(LIMIT_S)


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "elasticdl.cli.main", *arguments]
    pipes: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    return subprocess.Popen(command, cwd=directory, env=environment, **pipes)


def status_of(address: str) -> int:
    where, _, token = address.partition("#token=")
    request = urllib.request.Request(
        f"{where}api/v1/status", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return answer.status


@pytest.mark.usefixtures("no_browser")
def test_the_page_of_a_job_on_a_cluster_is_reached_until_ctrl_c(
    cluster: ClusterOfOne, page: int, tmp_path: Path
) -> None:
    cluster.add_job("ads")
    cluster.ports[STATUS_PORT] = page
    process = start(tmp_path, "dashboard", "ads", "--namespace", NAMESPACE, "--no-browser")
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:") and address.endswith(f"/#token={TOKEN}")
    assert [status_of(address) for _ in range(3)] == [200] * 3
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, output) == (0, ""), errors
    assert "until Ctrl-C" in errors


@pytest.mark.usefixtures("no_browser")
@pytest.mark.parametrize("trusted", [True, False])
def test_the_command_verifies_the_page_and_the_browser_need_not(
    cluster: ClusterOfOne, tmp_path: Path, trusted: bool
) -> None:
    authority = Authority.new("ads")
    key = authority.certified_key([MASTER_NAME])
    known = authority if trusted else Authority.new("ads")
    cluster.add_job("ads", known.certificate)
    with served_page(server_context(key.certificate, key.key)) as port:
        cluster.ports[STATUS_PORT] = port
        process = start(tmp_path, "dashboard", "ads", "--no-browser")
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if trusted:
            assert address.startswith("http://127.0.0.1:")
            assert [status_of(address) for _ in range(3)] == [200] * 3
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == (0 if trusted else 1), errors
    assert ("certificate is refused" in errors) is not trusted


@pytest.mark.usefixtures("no_browser")
def test_who_may_read_the_viewers_secret_only_sees_the_page(
    cluster: ClusterOfOne, page: int, tmp_path: Path
) -> None:
    cluster.add_job("ads")
    cluster.ports[STATUS_PORT] = page
    del cluster.objects.objects[f"/api/v1/namespaces/{NAMESPACE}/secrets/ads-token"]
    process = start(tmp_path, "dashboard", "ads", "--no-browser", "--read-only")
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address.endswith(f"/#token={VIEWER}") and status_of(address) == 200
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=LIMIT_S)[0] == "" and process.returncode == 0


@pytest.mark.usefixtures("no_browser")
def test_the_way_to_a_job_ends_with_the_job(
    cluster: ClusterOfOne, page: int, tmp_path: Path
) -> None:
    cluster.add_job("ads")
    cluster.ports[STATUS_PORT] = page
    process = start(tmp_path, "dashboard", "ads")
    assert process.stdout is not None and process.stdout.readline()
    cluster.end_job("ads")
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0 and "job ads has ended" in errors, errors


def test_a_master_that_has_no_page_is_said_before_a_browser_shows_nothing(
    cluster: ClusterOfOne, tmp_path: Path
) -> None:
    cluster.add_job("ads")
    process = start(tmp_path, "dashboard", "ads")
    output, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, output) == (
        1,
        "",
    ) and "job ads: cannot reach the master's page" in errors


def test_a_job_on_a_cluster_that_has_ended_has_no_page(
    cluster: ClusterOfOne, tmp_path: Path
) -> None:
    cluster.add_job("ads")
    cluster.end_job("ads")
    process = start(tmp_path, "dashboard", "ads")
    output, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, output) == (4, "") and "has ended" in errors
