"""A master that does as it is told: the real wire and the real files, no job. Run as a script.

The script is the job's name: `finishes`, `fails`, `drains` (until it is stopped), `hangs` (heeds no
stop, and ends at the second signal), `records-slowly` (as `hangs`, and then its disk is slow),
`deaf` (heeds no signal either), `dies`, `silent` (ends without a word), `returns` (as `drains`, but
after a kill it listens only when there is a file `go`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from elasticdl.cluster.local.parent_death import die_with_parent
from elasticdl.cluster.local.supervisor.channel import FrameParser, read
from elasticdl.job_status import JobStatus
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.outcome import Outcome, write_outcome
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.call_server import Call
from elasticdl.tokens import new_token, proof_to_master, viewer_token
from tests.served_calls import ServedCalls
from tests.waiting import until

SLOW_DISK_S = 7.0
"""As a disk takes that is busy with gigabytes of other files."""
STATUS: dict[str, Any] = {
    "action": "train", "phase": "working", "message": "training, epoch 1 of 2", "at_s": 3.0,
    "epoch": 0, "epochs": 2, "version": 7,
    "records": {
        "expected": 200, "trained": 50, "repeated": 0, "bad": 0, "lost": 0, "left": 150,
        "resumed": 0, "undone": 0,
    },
    "shards": {}, "scale": {"low": 1, "high": 1, "requested": 1, "observed": 1},
    "processes": [
        {"name": "worker-0", "role": "worker", "state": "ready", "since_s": 1.0, "started_s": 0.0,
         "where": "pid 1", "cause": None, "message": "", "shard": "training shard 3: 10 of 20",
         "records": 50, "evaluated": 0},
        {"name": "ps-0", "role": "ps", "state": "starting", "since_s": 1.0, "started_s": 0.0,
         "where": None, "cause": None, "message": "loading", "shard": None, "records": 0,
         "evaluated": 0},
    ],
    "loss": 0.5, "metrics": {"accuracy": 0.75}, "rounds": [], "checkpoints": [], "updates": None,
    "waiting": ["ps-0 is starting: loading"], "parked": [], "bad_examples": [],
    "receipt": {
        "epochs": [
            {"epoch": 0, "expected": 100, "trained": 50, "repeated": 0, "bad": 0, "lost": 0,
             "left": 50},
        ],
        "total": {
            "expected": 200, "trained": 50, "repeated": 0, "bad": 0, "lost": 0, "left": 150,
        },
        "epochs_left_out": 0, "not_begun": {"epochs": 1, "records": 100},
        "repeated_at_least": False, "why_left": None, "counted": None,
    },
    "outcome": None, "exit_code": None, "ring": None, "stall": None, "moved_s": 3.0,
    "ends": {}, "dropped": {},
    "gauges": {"worker-0": {"records_per_s": 10.0, "staleness_mean": 0.5}}, "records_per_s": 10.0,
}  # fmt: skip


class Scripted:
    """Answers people; keeps what they asked for in asked.jsonl."""

    def __init__(self, directory: Path, wake: threading.Event, heedless: bool) -> None:
        self.directory, self.wake, self.heedless = directory, wake, heedless

    def heard(self, what: object) -> None:
        with (self.directory / "asked.jsonl").open("a") as file:
            file.write(json.dumps(what) + "\n")

    async def Status(self, request: pb.StatusRequest, call: Call) -> pb.StatusReply:
        self.heard("status")
        phase = self.directory / "phase"
        changed = {"phase": phase.read_text(), "exit_code": 0} if phase.exists() else {}
        return pb.StatusReply(status=json.dumps({**STATUS, **changed}))

    async def Stop(self, request: pb.StopRequest, call: Call) -> pb.Done:
        self.heard(["stop", request.reason])
        if not self.heedless:
            self.wake.set()
        return pb.Done()

    async def Scale(self, request: pb.ScaleRequest, call: Call) -> pb.ScaleReply:
        self.heard(["scale", request.min_workers, request.max_workers])
        return pb.ScaleReply(stays="only 2 compute at a time")

    async def Checkpoint(self, request: pb.CheckpointRequest, call: Call) -> pb.Done:
        self.heard(["checkpoint"])
        return pb.Done()


def page_of(*tokens: str) -> type[BaseHTTPRequestHandler]:
    """A page without content for those who have one of the tokens."""
    known = [f"Bearer {token}" for token in tokens]

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.headers["Authorization"] in known else 401)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    return Page


def page_for(token: str) -> int:
    """A status page's port: it knows the owner and the viewer."""
    page = ThreadingHTTPServer(("127.0.0.1", 0), page_of(token, viewer_token(token)))
    threading.Thread(target=page.serve_forever, daemon=True).start()
    return page.server_address[1]


def hear_supervisor(caught: Callable[[int, object], object]) -> None:
    """Handle the signals that the supervisor passes on. Two at once count as two here."""
    parser = FrameParser()
    with socket.socket(fileno=os.dup(0)) as supervisor:
        while read(supervisor, parser):
            while received := parser.next():
                if number := received.message.get("signal"):
                    caught(number, None)


def leave(directory: Path, code: int, message: str, hint: str = "") -> int:
    total = {
        "expected": 200,
        "trained": 200 if code == 0 else 50,
        "repeated": 0,
        "bad": 0,
        "lost": 0,
    }
    output = json.loads((directory / "job.json").read_text())["checkpoint"]["output"]
    outcome = Outcome(
        code,
        message,
        str(directory),
        hint,
        {"epochs": [], "total": total},
        STATUS["metrics"],
        STATUS["loss"],
        output if code == 0 else "",
        "train",
    )
    write_outcome(JobDirectory(directory), outcome, JobStatus.from_json(STATUS))
    (directory / "master.json").unlink(missing_ok=True)
    return code


def main() -> int:
    die_with_parent()
    directory, token = Path(os.environ["ELASTICDL_JOB_DIR"]), new_token()
    script = json.loads((directory / "job.json").read_text())["cluster"]["job_name"]
    if script == "silent":
        print("something is missing here", flush=True)
        return 0
    restart = int(os.environ["ELASTICDL_RESTART"])
    if script == "returns" and restart:
        until("the test lets it go on", (directory / "go").exists)
    asked_to_stop = threading.Event()
    proof = proof_to_master(token)
    needed = {"hangs": 2, "records-slowly": 2, "deaf": sys.maxsize}.get(script, 1)
    scripted = Scripted(directory, asked_to_stop, needed > 1)
    served = ServedCalls(scripted, lambda caller: proof)
    signals: list[int] = []

    def caught(number: int, _frame: object) -> None:
        signals.append(number)
        if len(signals) >= needed:
            asked_to_stop.set()

    signal.signal(signal.SIGTERM, caught)
    threading.Thread(target=hear_supervisor, args=(caught,), daemon=True).start()
    with (directory / "events.jsonl").open("a") as events:
        events.write(
            json.dumps(
                {"text": "worker-0 ended by SIGKILL", "cause": "infrastructure", "level": "warning"}
            )
            + "\n"
        )
    # As a master whose check has passed.
    (directory / "preflight.json").write_text('{"ok": true}')
    temporary = directory / ".master.json"
    page = f"http://127.0.0.1:{page_for(token)}/"
    temporary.write_text(
        json.dumps(
            {
                "address": served.address,
                "page": page,
                "token": token,
                "pid": os.getpid(),
                "term": 1 + restart,
            }
        )
    )
    temporary.rename(directory / "master.json")
    if script == "dies":
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if script == "fails":
        return leave(
            directory,
            1,
            "worker-0 failed four times: ValueError in iris.py:12",
            "see logs/worker-0.log",
        )
    if script == "finishes":
        return leave(directory, 0, "done")
    asked_to_stop.wait(120)
    if script == "records-slowly":
        time.sleep(SLOW_DISK_S)
    (directory / "checkpoints/version-7").mkdir(parents=True)
    (directory / "checkpoints/version-7/manifest.json").write_text("{}")
    return leave(directory, 130, "stopped: by the test")


if __name__ == "__main__":
    sys.exit(main())
