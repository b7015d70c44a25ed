"""The master as a process that is told what a pod of its job is told, with an API server on the
loopback.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.base import ProcessName
from elasticdl.cluster.kubernetes.job_accounting import FINALIZER
from elasticdl.cluster.kubernetes.planning import CHECK_MARK, job_object
from elasticdl.cluster.kubernetes.termination_message import read_outcome
from elasticdl.cluster.role_environment import RoleEnvironment
from elasticdl.errors import ElasticDLError, ExitCode, Refused
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.outcome import Outcome
from elasticdl.rpc.journal_copy import serve_copy
from elasticdl.rpc.master_client import MasterClient
from elasticdl.tls import CertifiedKey
from elasticdl.tls.authority import KeyPair
from elasticdl.tls.contexts import client_context
from elasticdl.tokens import process_token
from elasticdl.worker.process.journal_holder import hold_journal_copy
from tests.contract.api_server import status
from tests.contract.small_cluster import SmallCluster, serving
from tests.contract.small_kubelet import SmallKubelet
from tests.waiting import until

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
PODS, JOBS = "/api/v1/namespaces/ns/pods", "/apis/batch/v1/namespaces/ns/jobs"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/iris-master"
IP_LOCAL_PORT_RANGE = 51
"""Which port an outgoing connection takes; Python has no name for it."""
LIMIT_S = 240.0
"""Against a hang: on a machine that is busy, two masters one after the other take more than a
minute.
"""
MASTER = """
import socket, sys
from functools import partial
from elasticdl.master.platform import kubernetes_resources, kubernetes
from elasticdl.master import main, preflight
preflight.COMMAND = (sys.executable, sys.argv[1])
free = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
kubernetes.MASTER_PORT, kubernetes.STATUS_PORT, kubernetes.RENDEZVOUS_PORT = (
    one.getsockname()[1] for one in free
)
for one in free:
    one.close()
for name in ("master", "status"):
    open(f"{name}_port", "w").write(str(getattr(kubernetes, f"{name}_port".upper())))
kubernetes.SECRET_FOLDER, kubernetes.TERMINATION_MESSAGE = "token", "outcome"
timing = kubernetes_resources.Timing(limit_s=float(sys.argv[2]))
kubernetes.KubernetesResources = partial(kubernetes.KubernetesResources, timing=timing)
code = main.main()
assert not {"tensorflow", "keras"} & set(sys.modules)
sys.exit(code)
"""
CHECK = (
    f"MARK = {CHECK_MARK!r}"
    """
import json, os, sys, time
def say(**message):
    print(MARK + json.dumps(message), flush=True)
spec = json.loads(os.environ["ELASTICDL_JOB"])
assert not [name for name in os.environ if "TOKEN" in name]
open(os.environ["BEGUN"], "w").close()
if spec["model"]["model_def"] == "counts":
    say(counted=32, files=3200)
if spec["model"]["model_def"] in ("slow", "counts"):
    time.sleep(600)
if spec["model"]["model_def"] == "wrong":
    say(ok=False, error="wrong.py:3: no such layer", hint="mend it", exit_code=2)
else:
    say(ok=True, training=[{"name": "a.csv", "records": 40}])
"""
)


@pytest.fixture
def cluster() -> Iterator[tuple[SmallCluster, str]]:
    """An API server in a thread of its own, and its address."""
    made, told, over = SmallKubelet(), threading.Event(), threading.Event()
    made.put(PODS, {"metadata": {"name": "iris-abcde", "finalizers": [FINALIZER]}})
    address: list[str] = []

    async def serve() -> None:
        async with serving(made, LIMIT_S) as api:
            address.append(str(api._client.configuration.host))
            told.set()
            while not over.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert told.wait(30)
    yield made, address[0]
    over.set()
    thread.join(30)
    made.close()


class Pod:
    """One master's pod: what it is told, and what it leaves."""

    def __init__(self, folder: Path, address: str, limit_s: float = 60.0, before: str = "") -> None:
        """`before`: statements that its process executes before the master begins."""
        self.folder, self.outcome, self.begun = folder, folder / "outcome", folder / "begun"
        user = {
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
        }
        servers = {
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "current-context": "c",
        }
        (folder / "kubeconfig").write_text(
            json.dumps({"apiVersion": "v1", "kind": "Config", **user, **servers})
        )
        (folder / "master.py").write_text(MASTER.replace("code = ", f"{before}\ncode = "))
        (folder / "check.py").write_text(CHECK)
        (folder / "token").mkdir(exist_ok=True)
        told = {
            "ELASTICDL_NAMESPACE": "ns", "ELASTICDL_JOB_NAME": "iris",
            "ELASTICDL_JOB_UID": "uid-1", "ELASTICDL_POD_NAME": "iris-abcde",
            "ELASTICDL_POD_ADDRESS": "127.0.0.1", "KUBECONFIG": str(folder / "kubeconfig"),
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        command = [
            sys.executable,
            str(folder / "master.py"),
            str(folder / "check.py"),
            str(limit_s),
        ]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **told}, stdout=log, stderr=log
            )

    def finish(self) -> int:
        return self.process.wait(LIMIT_S / 2)

    @property
    def address(self) -> str:
        """The address of the master's one server of calls."""
        return f"127.0.0.1:{(self.folder / 'master_port').read_text()}"

    def events(self) -> list[str]:
        lines = (self.folder / "job/events.jsonl").read_text().splitlines()
        return [json.loads(line)["text"] for line in lines]

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def left(self) -> Outcome | None:
        if not self.outcome.exists():
            return None
        state = {"terminated": {"message": self.outcome.read_text()}}
        return read_outcome(
            {"status": {"containerStatuses": [{"name": "process", "state": state}]}}
        )

    def until(self, what: str, look: Callable[[], object]) -> None:
        def over() -> bool:
            return self.process.poll() is not None

        until(what, look, LIMIT_S / 2, every_s=0.05, context=self.log, over=over)


def the_job(folder: Path, **flags: Any) -> dict[str, Any]:
    """As the API server has it."""
    needed = {
        "model_def": "m",
        "training_data": "t",
        "image_name": "i",
        "job_name": "iris",
        "job_dir": str(folder / "job"),
        "envs": f"BEGUN={folder / 'begun'}",
    }
    made = job_object(JobSpec.from_flags(Action.TRAIN, {**needed, **flags}), "ns")
    made["metadata"] |= {"uid": "uid-1", "resourceVersion": "1"}
    return made


@pytest.fixture
def start(cluster: tuple[SmallCluster, str], tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    started: list[Pod] = []

    def begin(
        limit_s: float = 60.0, args: Sequence[str] = (), before: str = "", **flags: Any
    ) -> Pod:
        """`args` come after those of `flags`. `before`: see `Pod`."""
        made = the_job(tmp_path, **flags)
        made["spec"]["template"]["spec"]["containers"][0]["args"] += args
        cluster[0].objects.setdefault(f"{JOBS}/iris", made)["spec"]["template"] = made["spec"][
            "template"
        ]
        started.append(Pod(tmp_path, cluster[1], limit_s, before))
        return started[-1]

    yield begin
    for pod in started:
        if pod.process.poll() is None:
            pod.process.kill()
            pod.process.wait(30)


def test_a_master_that_is_told_to_leave_leaves_its_processes_to_the_next(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str]
) -> None:
    pod = start()
    pod.until(
        "its processes are made", lambda: {"iris-worker-0", "iris-ps-0"} <= set(cluster[0].names())
    )
    told = cluster[0].objects[f"{PODS}/iris-ps-0"]["spec"]["containers"][0]["env"]
    variables = {entry["name"]: entry.get("value") for entry in told}
    assert (variables["ELASTICDL_MASTER"], variables["ELASTICDL_BIND_HOST"]) == (
        "iris-master:50001",
        "0.0.0.0",
    )
    where = json.loads((pod.folder / "job/master.json").read_text())
    assert not where["token"] and where["page"].startswith("https://iris-master:")
    # Its own key is made by the server itself; the pod has only what is public.
    assert variables["ELASTICDL_AUTHORITY"] == authority_of(cluster[0])
    assert "PRIVATE KEY" not in json.dumps(cluster[0].objects[f"{PODS}/iris-ps-0"])
    pod.process.send_signal(signal.SIGTERM)
    assert pod.finish() == ExitCode.DRAINED, pod.log()
    assert pod.left() is None and not (pod.folder / "job/status.json").exists()
    assert {"iris-worker-0", "iris-ps-0"} <= set(cluster[0].names()) and cluster[0].deleted == [
        ("iris-check-1", 1)
    ]


def test_a_job_with_a_wrong_flag_ends_at_once_and_says_which_in_its_pod(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str]
) -> None:
    """Such as a Job that a person wrote."""
    pod = start(args=["--minibatch-sise=64"])
    assert pod.finish() == ExitCode.USAGE, pod.log()
    left = pod.left()
    assert left is not None and left.exit_code == ExitCode.USAGE
    assert left.message == "the Job iris: unknown flag --minibatch-sise"
    assert left.hint == "did you mean minibatch-size?" and left.message in pod.log()
    # The Job's controller counts this end, and makes no other pod.
    assert cluster[0].objects[f"{JOBS}/iris"]["spec"]["backoffLimit"] == 0
    assert cluster[0].objects[f"{PODS}/iris-abcde"]["metadata"]["finalizers"] == [FINALIZER]


PROCESSES = {"iris-worker-0", "iris-ps-0"}


def killed(
    first: Pod, cluster: SmallCluster, made: Set[str] = frozenset(PROCESSES)
) -> dict[str, str]:
    """Kill a master whose processes were made; return their uids."""
    first.until("its processes are made", lambda: set(cluster.names()) >= made)
    first.process.kill()
    first.finish()
    secret = cluster.objects["/api/v1/namespaces/ns/secrets/iris-token"]
    for key, text in secret["stringData"].items():
        (first.folder / "token" / key).write_text(text)
    return uids(cluster, made)


def uids(cluster: SmallCluster, made: Set[str] = frozenset(PROCESSES)) -> dict[str, str]:
    return {name: cluster.objects[f"{PODS}/{name}"]["metadata"]["uid"] for name in made}


def test_the_next_master_continues_with_the_processes_of_one_that_was_killed(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str]
) -> None:
    before = killed(start(), cluster[0])
    term = int(cluster[0].objects[LEASE]["metadata"]["annotations"]["elasticdl.org/term"])
    second = start()
    continues(second)
    assert uids(cluster[0]) == before and cluster[0].deleted == [("iris-check-1", 1)]
    lease = cluster[0].objects[LEASE]
    assert int(lease["metadata"]["annotations"]["elasticdl.org/term"]) > term
    second.process.send_signal(signal.SIGTERM)
    assert second.finish() == ExitCode.DRAINED, second.log()
    assert cluster[0].objects[LEASE]["spec"]["holderIdentity"] == ""


def continues(pod: Pod) -> None:
    pod.until(
        "it says so", lambda: any("another master continues" in text for text in pod.events())
    )


def test_no_outgoing_connection_takes_a_port_that_a_master_needs(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str]
) -> None:
    """A node's range for outgoing connections, 32768 to 60999, includes these ports."""
    address = cluster[1].removeprefix("http://").split(":")
    with socket.socket() as outgoing:
        try:
            outgoing.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, bytes(4))
        except OSError as error:
            pytest.fail(f"IP_LOCAL_PORT_RANGE, which this test needs, came with Linux 6.3: {error}")
    connects = f"""
connect, taken = kubernetes.connect, []
async def connect_from_those_ports():
    for port in (kubernetes.MASTER_PORT, kubernetes.STATUS_PORT, kubernetes.RENDEZVOUS_PORT):
        outgoing = socket.socket()
        only = (port << 16 | port).to_bytes(4, sys.byteorder)
        outgoing.setsockopt(socket.IPPROTO_IP, {IP_LOCAL_PORT_RANGE}, only)
        try:
            outgoing.connect(({address[0]!r}, {address[1]}))
            taken.append(outgoing)
        except OSError as error:
            print(f"port {{port}} is the master's:", error, flush=True)
    return await connect()
kubernetes.connect = connect_from_those_ports
"""
    pod = start(before=connects, distribution_strategy="AllreduceStrategy")
    pod.until("its worker is made", lambda: "iris-worker-0" in cluster[0].names())
    refused = set(re.findall(r"port (\d+) is the master's", pod.log()))
    assert len(refused) == 3, "one of each, or it proves nothing"
    assert "cannot serve the status page" not in pod.log()
    pod.process.send_signal(signal.SIGTERM)
    assert pod.finish() == ExitCode.DRAINED, pod.log()


@pytest.mark.parametrize("port", ["MASTER_PORT", "RENDEZVOUS_PORT"])
def test_a_next_master_that_cannot_start_is_not_the_jobs_end(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str], port: str
) -> None:
    """A container beside it has one of its ports."""
    flags = {"distribution_strategy": "AllreduceStrategy"}
    before = killed(start(**flags), cluster[0], {"iris-worker-0"})
    limit = cluster[0].objects[f"{JOBS}/iris"]["spec"]["backoffLimit"]
    second = start(before=f"taken = socket.create_server(('', kubernetes.{port}))", **flags)
    assert second.finish() == ExitCode.UNAVAILABLE, second.log()
    assert "the master cannot start" in second.log() and second.left() is None
    assert uids(cluster[0], before.keys()) == before
    assert cluster[0].objects[f"{JOBS}/iris"]["spec"]["backoffLimit"] == limit
    third = start(**flags)
    continues(third)
    assert uids(cluster[0], before.keys()) == before
    third.process.send_signal(signal.SIGTERM)
    assert third.finish() == ExitCode.DRAINED, third.log()


def test_a_next_master_outlives_one_error_of_each_request_to_the_api_server(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str]
) -> None:
    """One that comes before the request takes effect, and one that comes after."""
    before = killed(start(), cluster[0])
    limit = cluster[0].objects[f"{JOBS}/iris"]["spec"]["backoffLimit"]
    told = list[str]()

    def once() -> Callable[[str, str, Any], dict[str, Any] | None]:
        codes, seen = itertools.cycle((503, 429, 500, 504)), set[tuple[str, str]]()

        def refuse(method: str, path: str, _: Any) -> dict[str, Any] | None:
            if (method, path) in seen:
                return None
            seen.add((method, path))
            told.append(f"{method} {path}")
            return status(next(codes), "Unlucky", "once")

        return refuse

    cluster[0].bend, cluster[0].lose = once(), once()
    second = start()
    continues(second)
    assert {f"PUT {LEASE}", f"GET {JOBS}/iris", f"GET {PODS}/iris-abcde"} <= set(told)
    assert uids(cluster[0]) == before and cluster[0].deleted == [("iris-check-1", 1)]
    assert cluster[0].objects[f"{JOBS}/iris"]["spec"]["backoffLimit"] == limit
    second.process.send_signal(signal.SIGTERM)
    assert second.finish() == ExitCode.DRAINED, second.log()


def served_copy(pod: Pod, cluster: SmallCluster) -> object:
    """Attach as the job's server, and serve a copy of the journal as servers do."""
    name = "ps-0"
    client = client_as(pod, cluster, name)
    pair = KeyPair.new()
    attached = client.attach(public_key=pair.public)
    certified = CertifiedKey(attached.certificate, pair.private)
    token = process_token(token_of(cluster), name)
    server, port = serve_copy(token, attached.term, "127.0.0.1:0", certified)
    client.attach(f"127.0.0.1:{port}", "127.0.0.1:1", None)
    client.close()
    return server


def workers_copy(pod: Pod, cluster: SmallCluster) -> object:
    """Attach as a worker of the ring, which serves a copy."""
    name, trusted = ProcessName.parse("worker-0"), authority_of(cluster)
    token = process_token(token_of(cluster), str(name))
    place = RoleEnvironment(pod.address, token, name, pod.folder, "127.0.0.1", trusted)
    client = client_as(pod, cluster, str(name))
    server = hold_journal_copy(place, client, client.attach(starting=True))
    client.close()
    return server


def client_as(pod: Pod, cluster: SmallCluster, name: str) -> MasterClient:
    token, trusted = process_token(token_of(cluster), name), authority_of(cluster)
    return MasterClient(pod.address, token, name, away_s=LIMIT_S / 2, authority=trusted)


@pytest.mark.parametrize(
    "strategy, serve, holder",
    [
        ("ParameterServerStrategy", served_copy, "ps-0"),
        ("AllreduceStrategy", workers_copy, "worker-0"),
    ],
)
def test_without_its_directory_the_next_master_continues_from_the_copy_in_a_process(
    start: Callable[..., Pod],
    cluster: tuple[SmallCluster, str],
    strategy: str,
    serve: Callable[[Pod, SmallCluster], object],
    holder: str,
) -> None:
    objects, pod = cluster[0].objects, f"{PODS}/iris-{holder}"
    # Checkpoints in a store need no volume, and the journal does not become one on a volume.
    flags = {"distribution_strategy": strategy, "checkpoint_dir": "s3://bucket/iris"}
    first = start(**flags)
    first.until("its processes are made", lambda: pod in objects)
    server = serve(first, cluster[0])
    note = "elasticdl.org/note-journal-copies"
    first.until(
        "the copy is on record",
        lambda: f'"{holder}"' in objects[LEASE]["metadata"]["annotations"].get(note, ""),
    )
    before = killed(first, cluster[0], {f"iris-{holder}"})
    shutil.rmtree(first.folder / "job")
    second = start(**flags)
    second.until(
        "it says so",
        lambda: (
            (second.folder / "job/events.jsonl").exists()
            and any("another master continues" in text for text in second.events())
        ),
    )
    assert (
        second.events()[0] == "the events before this one ended with the pod of an earlier master"
    )
    assert uids(cluster[0], before.keys()) == before
    assert cluster[0].deleted == [("iris-check-1", 1)]
    second.process.send_signal(signal.SIGTERM)
    assert second.finish() == ExitCode.DRAINED, second.log()
    del server


def test_without_a_journal_the_next_master_ends_them_and_starts_over(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str]
) -> None:
    first = start()
    before = killed(first, cluster[0])
    shutil.rmtree(first.folder / "job/journal")
    second = start()
    second.until(
        "they are made anew",
        lambda: (
            set(cluster[0].names()) >= PROCESSES and not before.items() & uids(cluster[0]).items()
        ),
    )
    assert any("state of the previous master is lost" in text for text in second.events())
    file = second.folder / "job/job.yaml"
    assert "model_def" in file.read_text() and "resume" not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0, "flags may contain secrets"
    second.process.send_signal(signal.SIGTERM)
    assert second.finish() == ExitCode.DRAINED, second.log()


def test_a_master_leaves_with_its_own_exit_code_when_another_pod_takes_the_job_over(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str]
) -> None:
    pod = start()
    pod.until("its processes are made", lambda: set(cluster[0].names()) >= PROCESSES)
    lease = cluster[0].objects[LEASE]
    lease["metadata"]["annotations"]["elasticdl.org/successor"] = "iris-fghij"
    lease["metadata"]["resourceVersion"] = "changed"
    assert pod.finish() == ExitCode.SUPERSEDED, pod.log()
    assert pod.left() is None and set(cluster[0].names()) >= PROCESSES
    assert cluster[0].objects[LEASE]["spec"]["holderIdentity"] == ""


def test_a_master_that_has_run_for_a_while_is_not_counted_and_its_verdict_is(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str]
) -> None:
    pod = start(model_def="slow")
    master, job = cluster[0].objects[f"{PODS}/iris-abcde"], cluster[0].objects[f"{JOBS}/iris"]
    job["status"] = {"failed": 3}
    pod.until("its end does not count", lambda: not master["metadata"]["finalizers"])
    assert job["spec"]["backoffLimit"] == 9
    client = MasterClient(
        pod.address, token_of(cluster[0]), "cli", away_s=120.0, authority=authority_of(cluster[0])
    )
    client.stop("enough")
    client.close()
    assert pod.finish() == ExitCode.INTERRUPTED, pod.log()
    assert master["metadata"]["finalizers"] == [FINALIZER] and job["spec"]["backoffLimit"] == 3
    # If its pod had been deleted meanwhile, the next one would say the same.
    again = start(model_def="slow")
    assert again.finish() == ExitCode.INTERRUPTED, again.log()
    left = again.left()
    assert left is not None and left.message == "stopped: enough"


def test_a_master_that_is_told_to_leave_in_the_check_is_started_again(
    start: Callable[..., Pod], cluster: tuple[SmallKubelet, str]
) -> None:
    pod = start(model_def="slow")
    pod.until("the check has begun", pod.begun.exists)
    pod.process.send_signal(signal.SIGTERM)
    assert pod.finish() == ExitCode.DRAINED, pod.log()
    assert pod.left() is None
    assert cluster[0].deleted == [("iris-check-1", 1)]


AT_THE_CHECK = ("checking the model and the data", "importing the model module has taken")
"""What a job that checks a slow module says, the latter after a while."""


def test_whoever_asks_during_the_check_is_answered_and_may_stop_the_job(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str]
) -> None:
    pod = start(model_def="slow")
    pod.until("the check has begun", pod.begun.exists)
    token, trusted, address = token_of(cluster[0]), authority_of(cluster[0]), pod.address
    stranger = MasterClient(address, "guessed", "cli", away_s=5.0, authority=trusted)
    with pytest.raises(Refused):
        stranger.status()
    stranger.close()
    client = MasterClient(address, token, "cli", away_s=5.0, authority=trusted)
    status = client.status()
    assert (status.phase, status.processes) == ("starting", ())
    assert status.message.startswith(AT_THE_CHECK)
    client.close()
    page = f"https://127.0.0.1:{(pod.folder / 'status_port').read_text()}"

    def answered(address: str, token: str, body: object = None) -> tuple[int, str]:
        return answer_of(address, token, body, client_context(trusted))

    pod.until("the page is there", lambda: answered(f"{page}/", token)[0] == 200)
    assert any(one in answered(f"{page}/", token)[1] for one in AT_THE_CHECK)
    code, logs = answered(f"{page}/api/v1/logs", token)
    assert code == 200 and [log["process"] for log in json.loads(logs)["logs"]] == ["master-0"]
    assert answered(f"{page}/api/v1/scale", token, {"min": 1, "max": 2})[0] == 409
    assert answered(f"{page}/api/v1/status", "guessed")[0] == 401
    assert answered(f"{page}/api/v1/stop", token, {"reason": "not today"})[0] == 202
    assert pod.finish() == ExitCode.INTERRUPTED, pod.log()
    left = pod.left()
    assert left is not None and left.message == "stopped: not today"


def token_of(cluster: SmallCluster) -> str:
    secret = cluster.objects["/api/v1/namespaces/ns/secrets/iris-token"]
    return str(secret["stringData"]["ELASTICDL_TOKEN"])


def authority_of(cluster: SmallCluster) -> str:
    secret = cluster.objects["/api/v1/namespaces/ns/secrets/iris-token"]
    return str(secret["stringData"]["ca.crt"])


def test_a_caller_learns_what_the_check_is_at_from_the_master_that_the_job_will_have(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str]
) -> None:
    pod = start(model_def="counts")
    pod.until("the check has begun", pod.begun.exists)
    where = json.loads((pod.folder / "job/master.json").read_text())
    assert where["pid"] == pod.process.pid
    text = "counting records: 32 of 3,200 files"
    trusted = authority_of(cluster[0])
    client = MasterClient(pod.address, token_of(cluster[0]), "cli", away_s=5.0, authority=trusted)
    pod.until("the status says it", lambda: client.status().message == text)
    status = client.status()
    assert (status.phase, status.waiting, status.processes) == ("starting", (text,), ())
    with pytest.raises(ElasticDLError, match="model and data are being checked"):
        client.scale(1, 2)
    with pytest.raises(ElasticDLError, match="cannot take a checkpoint"):
        client.checkpoint()
    client.close()
    assert pod.events() == ["job started: train counts", text]
    pod.process.send_signal(signal.SIGTERM)
    assert pod.finish() == ExitCode.DRAINED, pod.log()
    assert {path.name for path in (pod.folder / "job").iterdir()} == {
        "events.jsonl", "job.json", "journal", "kubernetes.json", "logs",
    }  # fmt: skip


def answer_of(address: str, token: str, body: object, context: ssl.SSLContext) -> tuple[int, str]:
    """Status and text; 0 while nobody listens."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        address, None if body is None else json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()
    except OSError:
        return 0, ""


def test_a_wrong_model_is_the_jobs_end_and_its_words_are_left(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str], tmp_path: Path
) -> None:
    names = ("receipt.json", "report.html", "job.yaml")
    before = {tmp_path / "job" / name: name for name in names}
    (tmp_path / "job").mkdir()
    for path, text in before.items():
        path.write_text(text)
    pod = start(model_def="wrong")
    assert pod.finish() == ExitCode.USAGE, pod.log()
    left = pod.left()
    assert left is not None and (left.exit_code, left.message, left.hint) == (
        2,
        "wrong.py:3: no such layer",
        "mend it",
    )
    assert not {"iris-worker-0", "iris-ps-0"} & set(cluster[0].names()), "nothing was started"
    assert {path: path.read_text() for path in before} == before, "of the run before"
    status = json.loads((tmp_path / "job/status.json").read_text())
    assert (status["exit_code"], status["hint"], status["status"]) == (2, "mend it", None)
    assert not {"master.json", "preflight.json", "newest.json", "series.json"} & {
        path.name for path in (tmp_path / "job").iterdir()
    }
    assert pod.events() == [
        "job started: train wrong",
        "job failed: wrong.py:3: no such layer",
        "job ended with exit code 2: wrong.py:3: no such layer",
    ]


def test_a_directory_of_another_job_is_the_jobs_end(
    start: Callable[..., Pod], tmp_path: Path
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/job.json").write_text("{}")
    pod = start()
    assert pod.finish() == ExitCode.USAGE, pod.log()
    left = pod.left()
    assert left is not None and "already contains a job" in left.message
    assert (tmp_path / "job/job.json").read_text() == "{}"


def test_a_missing_right_is_the_jobs_end_with_its_name(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str]
) -> None:
    cluster[0].lacking = {"create pods"}
    pod = start()
    assert pod.finish() == ExitCode.CLUSTER_REFUSED, pod.log()
    left = pod.left()
    assert left is not None and "create pods" in left.message


def test_without_an_api_server_the_master_is_started_again(
    start: Callable[..., Pod], cluster: tuple[SmallCluster, str]
) -> None:
    cluster[0].bend = lambda _method, _path, _body: status(503, "ServiceUnavailable")
    pod = start(limit_s=1.5)
    assert pod.finish() == ExitCode.UNAVAILABLE, pod.log()
    assert pod.left() is None
