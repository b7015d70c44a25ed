"""The verbs that look after a job, with the command line as people use it: one job for all tests,
with real pods, from its submission
to its end. The tests are steps of one story and run in their order.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from elasticdl.cluster.kubernetes.labels import master_selector
from elasticdl.errors import ExitCode
from tests.kubernetes.jobs import Watch, until_seen
from tests.kubernetes.target_cluster import TargetCluster
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]
ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
JOB = "meadow"
MODULE = """
'Flowers that are made up as they are read: a job that needs no file.'
import time
import tensorflow as tf
from iris import custom_model, eval_metrics_fn, loss, optimizer

KINDS = ((5.1, 3.5, 1.4, 0.2, 0.0), (6.4, 3.2, 4.5, 1.5, 1.0), (6.3, 3.3, 6.0, 2.5, 2.0))


class Meadow:
    def __init__(self, count):
        self.count = count

    def create_shards(self):
        return {"meadow": (0, self.count)}

    def read_records(self, task):
        for number in range(task.start, task.end):
            # The job trains for as long as the story takes, and leaves the cores to others.
            time.sleep(0.005)
            yield KINDS[number % len(KINDS)]


def custom_data_reader(data_origin, records_per_task=None):
    return Meadow(int(data_origin))


def feed(dataset, mode, metadata):
    return dataset.map(lambda row: (tf.cast(row[:4], tf.float32), tf.cast(row[4], tf.int32)))
"""
PAGE = """
import json, sys, urllib.request
address, token = sys.argv[1:]
def get(path):
    request = urllib.request.Request(address + path, headers={"Authorization": "Bearer " + token})
    return urllib.request.urlopen(request, timeout=30).read().decode()
print(json.dumps([get(""), json.loads(get("api/v1/status"))]))
"""
ZOO = '{"source": {"configMap": {"name": "zoo"}}, "mount_path": "/zoo", "read_only": true}'


@dataclass(frozen=True)
class Commands:
    """`elasticdl` on a cluster, in a directory of the test's own, as whoever `kubeconfig` says."""

    place: TargetCluster
    namespace: str
    directory: Path
    kubeconfig: Path
    image: str

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        return self._start("-m", "elasticdl.cli.main", *arguments, **more)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        return self._ended(self.start(*arguments))

    def python(self, *arguments: str) -> tuple[int, str, str]:
        return self._ended(self._start(*arguments))

    def _start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        command: list[str] = [sys.executable, *arguments]
        if self.place.own is not None:
            command = self.place.own.inside(command)
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
        }
        pipes = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            **more,
        }
        return subprocess.Popen(command, cwd=self.directory, env=environment, **pipes)

    @staticmethod
    def _ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
        with process:
            output, errors = process.communicate(timeout=LIMIT_S)
        return process.returncode, output, errors

    def json(self, *arguments: str) -> Any:
        code, output, errors = self.run(*arguments, "-o", "json")
        assert code == 0, errors
        return json.loads(output)

    def submit(self, *more: str) -> tuple[int, str, str]:
        return self.run(*self.submission(*more))

    def submission(self, *more: str) -> tuple[str, ...]:
        job = (
            "--model-zoo",
            "/zoo",
            "--model-def",
            "meadow",
            "--training-data",
            "3000",
            "--volume",
            ZOO,
        )
        size = (
            "--worker-resource-request",
            "cpu=50m,memory=64Mi",
            "--num-epochs",
            "1000000",
            "--detach",
        )
        return (
            "train",
            "--image-name",
            self.image,
            "--image-pull-policy",
            "Never",
            *job,
            *size,
            *more,
        )

    def watch(self, job: str) -> Watch:
        """The status of a job, told each second by one process."""
        told = self.directory / f"{job}.status"
        with told.open("w") as stdout:
            return Watch(self.start("status", job, "--watch", "-o", "json", stdout=stdout), told)

    def kubectl(self, *arguments: str, **more: Any) -> str:
        return self.place.kubectl("-n", self.namespace, *arguments, **more)

    def objects(self, kinds: Iterable[str], **chosen: str) -> list[Any]:
        """Those of the namespace, `chosen` as in `TargetCluster.read`."""
        found = [self.place.read(kind, namespace=self.namespace, **chosen) for kind in kinds]
        return [item for one in found for item in one["items"]]

    def until(self, look: Callable[[], Any], what: str) -> Any:
        """The first true value of it.

        A master may not be reached for a moment, and then only its pods tell of a job.
        """

        def context() -> str:
            return self.kubectl("describe", "jobs,pods")[-6000:]

        # Most looks are processes.
        return until(what, look, LIMIT_S, every_s=0.5, context=context)


@pytest.fixture(scope="module")
def elasticdl(
    whole_cluster: TargetCluster, elasticdl_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Commands]:
    directory = tmp_path_factory.mktemp("verbs")
    namespace = f"elasticdl-test-{uuid.uuid4().hex[:8]}"
    config = json.loads(whole_cluster.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    config["contexts"][0]["context"]["namespace"] = namespace
    (directory / "kubeconfig").write_text(json.dumps(config))
    commands = Commands(
        whole_cluster, namespace, directory, directory / "kubeconfig", elasticdl_image
    )
    with namespaced(whole_cluster, namespace):
        yield commands


@contextlib.contextmanager
def namespaced(place: TargetCluster, name: str) -> Iterator[None]:
    """A namespace with the rights of docker/rbac.yaml, and a model zoo, that enforces the
    restricted standard.
    """
    place.make_namespace(name)
    place.kubectl("-n", name, "create", "-f", str(ROOT / "docker/rbac.yaml"))
    modules = (f"--from-file={ROOT / 'model_zoo/iris.py'}", f"--from-literal=meadow.py={MODULE}")
    place.kubectl("-n", name, "create", "configmap", "zoo", *modules)
    yield
    place.delete("namespaces", name)


def heard(stream: IO[str] | None, words: str, since: str = "") -> None:
    """Read on until a process says some words, in a line that begins with a time after `since` if
    that is given.
    """
    assert stream is not None
    said, deadline_s = b"", time.monotonic() + LIMIT_S
    with selectors.DefaultSelector() as readable:
        readable.register(stream, selectors.EVENT_READ)
        while readable.select(max(0.0, deadline_s - time.monotonic())):
            # What is read beside these words is lost to others that read the stream.
            if not (more := os.read(stream.fileno(), 1 << 16)):
                break
            said += more
            lines = said.decode(errors="replace").splitlines()
            if any(words in line and line > since for line in lines):
                return
    raise AssertionError(f"never said {words!r}, but:\n{said.decode(errors='replace')}")


def only(commands: Commands) -> dict[str, Any]:
    (row,) = commands.json("list")
    return row


def test_check_says_what_would_stand_in_the_way(elasticdl: Commands) -> None:
    flags = (
        "--image-name",
        elasticdl.image,
        "--model-zoo",
        "/zoo",
        "--model-def",
        "meadow",
        "--training-data",
        "3000",
    )
    found = elasticdl.json("check", *flags)
    assert found["result"] != "problem", found
    assert {finding["about"] for finding in found["findings"]} == {
        "name",
        "rights",
        "account",
        "pods",
        "quota",
        "priority",
        "volumes",
        "image",
    }
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team-a"},
        "spec": {"hard": {"cpu": "1"}},
    }
    elasticdl.kubectl("create", "-f", "-", text=json.dumps(quota))
    elasticdl.kubectl(
        "wait", "--for=jsonpath={.status.used.cpu}=0", "resourcequota/team-a", "--timeout=30s"
    )
    asks = (
        "--worker-pod-priority",
        "nobody",
        "--volume",
        "claim_name=nothing,mount_path=/data",
        "--service-account",
        "ghost",
        "--worker-resource-request",
        "cpu=2",
        "--master-resource-request",
        "cpu=100m",
        "--ps-resource-request",
        "cpu=100m",
    )
    code, output, _ = elasticdl.run("check", *flags, *asks)
    elasticdl.kubectl("delete", "resourcequota", "team-a")
    assert code == 3
    for words in (
        "there is no priority class nobody",
        "there is no volume claim nothing in namespace",
        "there is no service account ghost in namespace",
        "quota team-a: cpu 0 of 1 used; the job needs 2.2 to start, which exceeds the quota",
    ):
        assert words in output, output
    code, output, _ = elasticdl.run(
        "check",
        *flags,
        "--volume",
        "host_path=/etc,mount_path=/host",
        "--namespace",
        elasticdl.namespace,
    )
    assert code == 3 and "pod security" in output and "hostPath" in output, output


@pytest.fixture(scope="module")
def ghosts(elasticdl: Commands) -> Iterator[Ghosts]:
    """Jobs whose image is not there, in a namespace of their own: that takes its time, and other
    tests go on meanwhile.
    """
    namespace = f"{elasticdl.namespace}-ghosts"
    with namespaced(elasticdl.place, namespace):
        found = Ghosts(replace(elasticdl, namespace=namespace))
        yield found
        found.end()


@dataclass
class Ghosts:
    """`ghost` was made as somebody's pipeline does it, and is waited for; `ghost2` by `train`."""

    commands: Commands
    ended: dict[str, tuple[int, str, float]] = field(default_factory=dict)
    """Exit code, what was said on stderr, seconds."""

    def __post_init__(self) -> None:
        flags = ("--image-name", "localhost/nothing:1", "--namespace", self.commands.namespace)
        code, text, errors = self.commands.submit("--job-name", "ghost", "--dry-run", *flags)
        assert code == 0, errors
        self.commands.kubectl("create", "-f", "-", text=text)
        command = self.commands.submission("--job-name", "ghost2", *flags)
        calls = {
            "wait": ("wait", "ghost", "--namespace", self.commands.namespace),
            # Detached, it looks for 5 s, in which a busy node may not have tried the image.
            "train": tuple(part for part in command if part != "--detach"),
        }
        self._calls = [threading.Thread(target=self._run, args=call) for call in calls.items()]
        for call in self._calls:
            call.start()

    def _run(self, verb: str, arguments: tuple[str, ...]) -> None:
        began_s = time.monotonic()
        code, _, errors = self.commands.run(*arguments)
        self.ended[verb] = (code, errors, time.monotonic() - began_s)

    def end(self) -> None:
        for call in self._calls:
            call.join(LIMIT_S)


def test_a_job_whose_image_is_not_there_is_stuck_and_says_why(
    elasticdl: Commands, ghosts: Ghosts
) -> None:
    there = ("--namespace", ghosts.commands.namespace)
    elasticdl.until(
        lambda: "ErrImageNeverPull" in elasticdl.run("status", "ghost", *there)[1],
        "the reason is told",
    )
    row = next(row for row in elasticdl.json("list", *there) if row["job"] == "ghost")
    assert (row["state"], row["place"]) == ("stuck", "kubernetes") and "localhost/nothing:1" in row[
        "message"
    ]
    assert "cannot be pulled" in elasticdl.run("logs", "ghost", *there)[1]
    code, _, errors = elasticdl.run("scale", "ghost", "--num-workers", "2", *there)
    assert code == 1 and "cannot be reached: its master:" in errors


def test_ctrl_c_leaves_a_job_running_which_is_listed_and_whose_status_is_that_of_a_local_one(
    elasticdl: Commands,
) -> None:
    given = elasticdl.submission("--job-name", JOB, "--namespace", elasticdl.namespace)
    submission = [part for part in given if part != "--detach"]
    with elasticdl.start(*submission) as command:
        until_seen(
            "a worker is made",
            lambda: (
                command.poll() is not None
                or elasticdl.objects(["pods"], fields=f"metadata.name={JOB}-worker-0")
            ),
            LIMIT_S,
        )
        with contextlib.closing(elasticdl.watch(JOB)) as watch:

            def trains() -> bool:
                status = watch.newest()
                return status is not None and status["records"]["trained"] > 0

            elasticdl.until(lambda: command.poll() is not None or trains(), "records are trained")
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=LIMIT_S)
    assert command.returncode == ExitCode.INTERRUPTED, errors
    assert f"come back: elasticdl wait {JOB} --namespace {elasticdl.namespace}" in errors
    row = only(elasticdl)
    assert (row["job"], row["state"], row["namespace"], row["job_dir"]) == (
        JOB,
        "running",
        elasticdl.namespace,
        "",
    )

    def told() -> dict[str, Any] | None:
        status = elasticdl.json("status", JOB, "--namespace", elasticdl.namespace)
        return status if {p["role"] for p in status["processes"]} == {"worker", "ps"} else None

    status = elasticdl.until(told, "its master tells of its processes")
    assert status["state"] == "running"
    from elasticdl.cli.jobs.directory_job import DirectoryJob
    from elasticdl.jobdir.layout import JobDirectory

    local = elasticdl.directory / "jobs" / "local"
    local.mkdir(parents=True)
    (local / "job.json").write_text(json.dumps({"cluster": {"job_name": "local"}}))
    (local / "status.json").write_text(
        json.dumps({"exit_code": 0, "message": "done", "hint": "", "status": None})
    )
    assert set(DirectoryJob(JobDirectory(local)).report().as_dict()) == set(status)
    assert [one["place"] for one in elasticdl.json("list")] == ["local", "kubernetes"]
    shutil.rmtree(local.parent)
    code, output, _ = elasticdl.run("list")
    assert code == 0 and output.splitlines()[0].split() == [
        "JOB",
        "WHERE",
        "STATE",
        "PROGRESS",
        "STEPS",
        "AGE",
        "WHAT",
    ]


def test_logs_of_pods_are_read_and_followed_without_a_gap(elasticdl: Commands) -> None:
    code, output, errors = elasticdl.run("logs", JOB)
    assert code == 0, errors
    assert {line.split()[0] for line in output.splitlines()} >= {"master-0", "worker-0", "ps-0"}
    code, output, _ = elasticdl.run("logs", JOB, "master-0", "-n", "3")
    assert code == 0 and len(output.splitlines()) == 3
    code, _, errors = elasticdl.run("logs", JOB, "../../etc/passwd")
    assert code == 4 and "there are master-0" in errors
    assert elasticdl.run("logs", JOB, "worker-77")[0] == 4


def test_scale_and_checkpoint_reach_the_master(elasticdl: Commands) -> None:
    code, _, errors = elasticdl.run("scale", JOB, "--num-workers", "2")
    assert code == 0, errors
    with contextlib.closing(elasticdl.watch(JOB)) as watch:

        def there() -> bool:
            status = watch.newest()
            return status is not None and status["scale"]["observed"] == 2

        elasticdl.until(there, "the second worker is there")
    code, _, errors = elasticdl.run("checkpoint", JOB)
    assert code == 1 and "cannot take a checkpoint: the servers share no storage" in errors, (
        "the job's master says so"
    )


def test_why_report_and_the_page_come_from_the_master(elasticdl: Commands) -> None:
    told = elasticdl.json("why", JOB)
    assert told["missing"] == "" and told["entries"], told
    assert elasticdl.run("why", JOB)[0] == 0
    code, output, errors = elasticdl.run("report", JOB)
    assert (code, output) == (0, f"{JOB}-report.html\n"), errors
    assert JOB in (elasticdl.directory / f"{JOB}-report.html").read_text(encoding="utf-8")
    with elasticdl.start("dashboard", JOB, "--no-browser") as showing:
        assert showing.stdout is not None
        address, _, token = showing.stdout.readline().strip().partition("#token=")
        code, output, errors = elasticdl.python("-c", PAGE, address, token)
        assert code == 0, errors
        page, status = json.loads(output)
        assert (
            JOB in page
            and "worker-0" in page
            and status["job"] == JOB
            and status["records"]["trained"] > 0
        )
        showing.send_signal(signal.SIGINT)
        assert showing.wait(LIMIT_S) == 0


def test_train_and_wait_have_ended_soon_where_the_image_is_not_there(
    elasticdl: Commands, ghosts: Ghosts
) -> None:
    ghosts.end()
    for code, errors, took_s in ghosts.ended.values():
        assert code == 1 and "ErrImageNeverPull" in errors and "--image-pull-secrets" in errors, (
            errors
        )
        # The start may fail for 40 s; commands and pods need the rest on a machine busy with other
        # clusters. Kubernetes tries for ever.
        assert took_s < LIMIT_S, ghosts.ended
    assert "`elasticdl stop ghost` clears the job away" in ghosts.ended["wait"][1]
    assert "The job is deleted again." in ghosts.ended["train"][1]
    there = ("--namespace", ghosts.commands.namespace)
    assert [row["job"] for row in elasticdl.json("list", *there)] == ["ghost"], (
        "what train made is gone; who waits deletes nothing"
    )
    code, _, errors = elasticdl.run("stop", "ghost", "--yes", *there)
    assert code == 0 and "and all its objects are deleted" in errors
    elasticdl.until(lambda: not elasticdl.json("list", *there), "the job is gone")
    code, _, errors = elasticdl.run("status", "ghost", *there)
    assert code == 4 and f"namespace {ghosts.commands.namespace}" in errors


def test_a_handle_in_python_does_the_same(elasticdl: Commands) -> None:
    program = f"""
import time
from elasticdl.cli.api import submitted_handle
from elasticdl.cli.jobs.cluster_client import ClusterClient
from elasticdl.errors import TransientError
handle = submitted_handle(ClusterClient(), {JOB!r}, show=True)
assert handle.running
while not handle.status().records.trained:
    time.sleep(0.2)
handle.scale(1)
try:
    handle.wait(timeout_s=0.1)
except TransientError as error:
    print(error.message)
"""
    code, output, errors = elasticdl.python("-c", program)
    assert (code, output) == (0, f"job {JOB} has not ended after 0.1 s\n"), errors
    elasticdl.until(
        lambda: elasticdl.json("status", JOB)["scale"]["high"] == 1, "the master heard of it"
    )


def test_wait_gives_up_with_124_and_a_watched_status_survives_an_api_server_that_is_away(
    elasticdl: Commands,
) -> None:
    code, _, errors = elasticdl.run("wait", JOB, "--timeout", "1")
    assert code == 124 and "has not ended after 1 s" in errors
    if elasticdl.place.own is None:
        pytest.skip("taking the API server away needs the tests' own cluster")
    with elasticdl.start("status", JOB, "--watch") as watching:
        heard(watching.stdout, "records (")
        elasticdl.place.own.kill("kube-apiserver")
        try:
            heard(watching.stderr, "looking again")
            lost = time.strftime("%Y-%m-%d %H:%M:%S")
        finally:
            elasticdl.place.own.start("kube-apiserver")
        heard(watching.stdout, "records (", since=lost)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(LIMIT_S) == 130
    elasticdl.until(lambda: elasticdl.run("status", JOB)[0] == 0, "the API server is back")


def test_without_a_right_the_verb_names_it(elasticdl: Commands) -> None:
    account = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "looker"}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "looker"},
            "rules": [
                {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
                {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "looker"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "looker"},
            "subjects": [{"kind": "ServiceAccount", "name": "looker"}],
        },
    ]
    elasticdl.kubectl("create", "-f", "-", text=yaml.safe_dump_all(account))
    config = json.loads(elasticdl.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": elasticdl.kubectl("create", "token", "looker").strip()}
    limited = elasticdl.directory / "looker"
    limited.write_text(json.dumps(config))
    looker = Commands(
        elasticdl.place, elasticdl.namespace, elasticdl.directory, limited, elasticdl.image
    )
    code, output, _ = looker.run("status", JOB)
    assert code == 0 and "you may not connect to pods" in output and "worker-0" in output, output
    code, _, errors = looker.run("scale", JOB, "--num-workers", "1")
    assert code == 3 and "(get and create pods/portforward)" in errors
    code, _, errors = looker.run("logs", JOB, "worker-0")
    assert code == 3 and "you may not read logs" in errors
    code, _, errors = looker.run("list", "--namespace", elasticdl.namespace)
    assert code == 3 and "you may not list jobs" in errors


def test_a_stopped_job_ends_with_130_still_answers_and_leaves_nothing_that_runs(
    elasticdl: Commands,
) -> None:
    following = elasticdl.start("logs", JOB, "worker-0", "--follow")
    # A follower that begins when the pod is gone has nothing to follow.
    heard(following.stdout, "")
    waiting = elasticdl.start("wait", JOB)
    code, _, errors = elasticdl.run("stop", JOB)
    assert code == 2 and "--yes" in errors, "without a terminal nobody can be asked"
    code, _, errors = elasticdl.run("stop", JOB, "--yes", "--reason", "enough of it")
    assert code == 0 and "asked to stop" in errors
    _, errors = waiting.communicate(timeout=LIMIT_S)
    assert waiting.returncode == 130 and "enough of it" in errors
    _, errors = following.communicate(timeout=LIMIT_S)
    assert following.returncode == 0, errors
    status = elasticdl.json("status", JOB)
    assert (status["state"], status["exit_code"]) == ("stopped", 130) and "enough of it" in status[
        "outcome"
    ]
    assert status["records"]["trained"] > 0 and status["records"]["lost"] == 0
    code, _, errors = elasticdl.run("wait", JOB, "--timeout", "5")
    assert code == 130 and "enough of it" in errors
    code, output, _ = elasticdl.run("logs", JOB, "master-0", "-n", "50")
    assert code == 0 and "enough of it" in output
    told = elasticdl.json("why", JOB)
    assert told["missing"] == "" and "enough of it" in json.dumps(told), told
    assert elasticdl.run("dashboard", JOB, "--no-browser")[0] == 4
    assert elasticdl.run("scale", JOB, "--num-workers", "1")[0] == 4
    assert elasticdl.run("stop", JOB, "--yes")[0] == 0
    masters = elasticdl.kubectl("get", "pods", "-l", master_selector(JOB), "-o", "name")
    assert len(masters.split()) == 1, "a verdict is final"
    live = "status.phase!=Succeeded,status.phase!=Failed"
    until_seen("no pod runs", lambda: not elasticdl.objects(["pods"], fields=live), LIMIT_S)
    elasticdl.kubectl("delete", "job", JOB)
    kinds = ("pods", "services", "secrets", "networkpolicies")
    mine = f"app.kubernetes.io/instance={JOB}"
    until_seen("nothing is left", lambda: not elasticdl.objects(kinds, selector=mine), LIMIT_S)
