"""The page of a real master, over HTTP as a browser has it: while processes come and go, to the end
of the job.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from elasticdl.errors import ExitCode
from tests.process.test_master_process_job import (
    Running,
    start,  # noqa: F401 - a fixture
)

pytestmark = pytest.mark.process
Start = Callable[..., Running]
NAMED_WITHIN_S = 10.0
"""Two on a machine that is not busy; how long the record itself takes is in
test_job_troubles.py.
"""


class Browser:
    """One that signed in."""

    cookie = ""

    def __init__(self, running: Running) -> None:
        self.page, token = (running.where()[key] for key in ("page", "token"))
        self.address = urlsplit(self.page).netloc
        status, _ = self._request(
            "POST", "/session", {"token": token}, {"Origin": f"http://{self.address}"}
        )
        assert status == 204

    def _request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=20)
        sent = {**({"Cookie": self.cookie} if self.cookie else {}), **(headers or {})}
        text = None
        if body is not None:
            text, sent["Content-Type"] = json.dumps(body), "application/json"
        connection.request(method, path, text, sent)
        answer = connection.getresponse()
        if cookie := answer.getheader("Set-Cookie"):
            self.cookie = cookie.partition(";")[0]
        content = answer.read()
        connection.close()
        return answer.status, content

    def get(self, path: str) -> Any:
        status, content = self._request("GET", path)
        assert status == 200, content
        return json.loads(content) if content.startswith((b"{", b"[")) else content.decode()

    def ask(self, verb: str, **body: object) -> tuple[int, Any]:
        status, content = self._request(
            "POST", f"/api/v1/{verb}", body, {"Origin": f"http://{self.address}"}
        )
        return status, json.loads(content)


def test_the_page_shows_what_the_command_line_shows_and_steers_the_job(
    start: Start,  # noqa: F811
) -> None:
    running = start(num_workers="1:3", num_ps_pods=2, records_per_task=50)
    hold = running.hold()
    running.wait_for_status("three workers", lambda status: status["scale"]["observed"] == 3)
    browser = Browser(running)
    client = running.client()

    def differing() -> list[str]:
        shown, told = browser.get("/api/v1/status"), client.status().to_json()
        return [
            key
            for key in ("action", "phase", "epochs", "shards", "receipt", "scale")
            if shown[key] != told[key]
        ]

    # The page's reading is up to half a second old, and what was under way at `hold` is still
    # trained.
    running.wait_until("page and command line tell the same", lambda: not differing())
    assert "m" in browser.get("/")
    assert {log["process"] for log in browser.get("/api/v1/logs")["logs"]} >= {
        "worker-0",
        "worker-1",
        "worker-2",
        "ps-0",
        "ps-1",
    }
    assert "=== worker-0 started" in browser.get("/api/v1/logs/worker-0?start=0")["text"]

    def owners() -> set[str]:
        return {row["owner"] for row in browser.get("/api/v1/shards?state=leased")["shards"]}

    running.wait_until("each has a shard", lambda: owners() == {"worker-0", "worker-1", "worker-2"})

    # One is killed: it is on the page in a moment, with its cause.
    os.kill(running.pids("worker-1")["worker-1"], signal.SIGKILL)

    def cause() -> str:
        rows = {row["name"]: row for row in browser.get("/api/v1/status")["processes"]}
        return str(rows["worker-1"]["cause"])

    def bar() -> dict[str, Any]:
        return {row["process"]: row for row in browser.get("/api/v1/timeline")["bars"]}["worker-1"]

    running.wait_until(
        "the cause of the kill is on the page", lambda: cause() != "", NAMED_WITHIN_S
    )
    running.wait_until(
        "the timeline has it too",
        lambda: bar()["ended_s"] is not None and bar()["cause"] == cause(),
    )

    status, said = browser.ask("replace", process="worker-0")
    assert status == 202 and "worker-0" in said["said"]
    running.wait_until(
        "another came", lambda: {"worker-3", "worker-4"} <= set(running.pids("worker"))
    )
    assert browser.ask("replace", process="worker-1")[0] == 409
    assert browser.ask("replace", process="worker-9")[0] == 404
    assert browser.ask("scale", min=1, max=2)[0] == 202
    stream = http.client.HTTPConnection(browser.address, timeout=40)
    stream.request("GET", "/api/v1/stream", headers={"Cookie": browser.cookie})
    answer = stream.getresponse()
    assert answer.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    hold.unlink()
    check_stream_to_the_end(answer.read().decode())
    stream.close()
    assert running.finish() == ExitCode.DONE
    receipt = running.json("receipt.json")
    assert receipt["total"]["lost"] == 0 and receipt["total"]["trained"] == 400
    with pytest.raises(ConnectionError):
        socket.create_connection(tuple(browser.address.split(":")), 5)


def check_stream_to_the_end(text: str) -> None:
    """The stream ends with the end of the job."""
    assert "event: processes\n" in text and "event: events\n" in text
    ended = text.rpartition("event: ended\n")[2]
    assert json.loads(ended.partition("data: ")[2])["exit_code"] == 0


def test_the_address_and_the_token_are_for_the_owner_only_and_the_port_is_on_this_machine(
    start: Start,  # noqa: F811
) -> None:
    running = start()
    running.hold()
    where = running.where()
    assert where["page"].startswith("http://127.0.0.1:") and where["token"] not in where["page"]
    assert stat.S_IMODE((running.directory / "master.json").stat().st_mode) == 0o600
    port = urlsplit(where["page"]).port
    others = {
        str(address[4][0])
        for address in socket.getaddrinfo(socket.gethostname(), port, type=socket.SOCK_STREAM)
    } - {
        "127.0.0.1",
        "::1",
    }
    for address in others:
        if not address.startswith("127."):
            with pytest.raises(OSError):
                socket.create_connection((address, port), 2)
    browser = Browser(running)
    assert browser.ask("stop", reason="enough")[0] == 202
    assert running.finish() == ExitCode.INTERRUPTED
