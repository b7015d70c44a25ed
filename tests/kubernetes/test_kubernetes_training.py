"""Whole jobs on a cluster, submitted as people do, in a namespace that enforces the restricted
standard, on a volume of theirs.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.cluster.kubernetes.labels import CHECK, master_selector
from elasticdl.errors import ExitCode
from elasticdl.tls.authority import Authority
from model_zoo import make_data
from tests.kubernetes.jobs import JOB_LIMIT_S, volume
from tests.kubernetes.target_cluster import TargetCluster
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]
ROOT = Path(__file__).parents[2]
STEP_LIMIT_S = 180.0


@dataclass(frozen=True)
class Ground:
    """A namespace with the rights and the volume of docker/rbac.yaml and a claim: `folder` here is
    /data in the pods.
    """

    place: TargetCluster
    namespace: str
    image: str
    folder: Path

    def command(self, verb: str, *arguments: object) -> list[str]:
        return [
            sys.executable,
            "-m",
            "elasticdl.cli.main",
            verb,
            *map(str, arguments),
            "--namespace",
            self.namespace,
        ]

    def flags(self, name: str, **flags: object) -> list[str]:
        given = {
            "image_name": self.image,
            "job_name": name,
            "job_dir": f"/data/{name}",
            "volume": "claim_name=data,mount_path=/data",
        }
        if self.place.own is not None:
            given["image_pull_policy"] = "Never"
        return [
            part
            for key, value in {**given, **flags}.items()
            for part in (f"--{key.replace('_', '-')}", str(value))
        ]

    def start(
        self, verb: str, *arguments: object, kubeconfig: Path | None = None
    ) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig or self.place.kubeconfig),
            "PYTHONPATH": str(ROOT),
        }
        pipes: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            "text": True,
        }
        return subprocess.Popen(
            self.command(verb, *arguments), cwd=self.folder, env=environment, **pipes
        )

    def run(
        self,
        verb: str,
        *arguments: object,
        kubeconfig: Path | None = None,
        limit_s: float = JOB_LIMIT_S,
    ) -> tuple[int, str, str]:
        with self.start(verb, *arguments, kubeconfig=kubeconfig) as process:
            try:
                output, errors = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise AssertionError(
                    f"{verb} {arguments} took more than {limit_s:g} s:\n{process.communicate()}\n"
                    + self.place.kubectl(
                        "-n", self.namespace, "get", "jobs,pods,events", "-o", "wide"
                    )
                ) from None
        return process.returncode, output, errors

    def objects(self) -> list[str]:
        return sorted(
            f"{kind} {item['metadata']['name']}"
            for kind in ("jobs", "pods", "services", "secrets", "networkpolicies")
            for item in self.place.read(
                kind, namespace=self.namespace, selector="app.kubernetes.io/name=elasticdl"
            )["items"]
            if "deletionTimestamp" not in item["metadata"]
        )

    def master(self, job: str) -> dict[str, Any]:
        found = self.place.read("pods", namespace=self.namespace, selector=master_selector(job))[
            "items"
        ]
        return max(found, key=lambda pod: pod["metadata"]["creationTimestamp"])


@pytest.fixture
def ground(
    place: TargetCluster, namespace: str, elasticdl_image: str, tmp_path: Path
) -> Iterator[Ground]:
    if place.own is None:
        pytest.skip(
            "these tests look at a volume that is a folder of the node, which only a cluster of"
            " their own has"
        )
    folder = tmp_path / "volume"
    place.kubectl(
        "-n", namespace, "create", "-f", "-", text=(ROOT / "docker/rbac.yaml").read_text()
    )
    with volume(place, namespace, folder):
        for shared in list(tmp_path.parents)[:2]:
            shared.chmod(0o777)
        yield Ground(place, namespace, elasticdl_image, folder)


def iris(ground: Ground, copies: int) -> str:
    make_data.iris(ground.folder, 0)
    with (ground.folder / "train.csv").open(newline="") as file:
        title, *rows = list(csv.reader(file))
    with (ground.folder / "many.csv").open("w", newline="") as file:
        csv.writer(file).writerows([title, *rows * copies])
    return "/data/many.csv"


def test_iris_trains_leaves_its_export_on_the_volume_and_predicts_there(
    ground: Ground,
) -> None:
    data = {"training_data": iris(ground, 10), "validation_data": "/data/test.csv"}
    flags = ground.flags("iris", model_def="iris", checkpoint_steps=50, **data)
    more = (
        "--num-epochs",
        5,
        "--num-workers",
        "1:2",
        "--output",
        "/data/iris/export",
        "--envs",
        "GREETING=hello $(HOME)",
        "-o",
        "json",
    )
    code, output, errors = ground.run("train", *flags, *more)
    assert code == 0, errors
    outcome = json.loads(output)
    # On a busy machine a worker may fall silent, and its last batch be trained once more.
    total = outcome["receipt"]["total"]
    assert (total["expected"], total["trained"], total["bad"], total["lost"]) == (6000, 6000, 0, 0)
    assert outcome["metrics"]["accuracy"] > 0.9 and outcome["output"] == "/data/iris/export"
    assert (ground.folder / "iris/export/saved_model.pb").exists()
    receipt = json.loads((ground.folder / "iris/receipt.json").read_text())
    assert (
        receipt["total"] == outcome["receipt"]["total"]
        and [epoch["trained"] for epoch in receipt["epochs"]] == [1200] * 5
    )
    told = ground.master("iris")["spec"]["containers"][0]["env"]
    assert {"name": "GREETING", "value": "hello $$(HOME)"} in told
    # A second one of the name is refused before anything is made; what there was stays.
    before = ground.objects()
    code, _, errors = ground.run("train", *flags, limit_s=STEP_LIMIT_S)
    assert (
        code == ExitCode.USAGE
        and f"job iris already exists in namespace {ground.namespace}" in errors
    )
    assert ground.objects() == before
    flags = ground.flags(
        "predicted",
        model_def="iris",
        prediction_data="/data/test.csv",
        output="/data/predictions",
        checkpoint_dir_for_init="/data/iris/checkpoints",
    )
    page = Authority.new("company").certified_key(["predicted.example.com"])
    certificate = {"tls.crt": page.certificate, "tls.key": page.key}
    made = {"kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"name": "page"}}
    ground.place.kubectl(
        *("-n", ground.namespace, "create", "-f", "-"),
        text=json.dumps({"apiVersion": "v1", **made, "stringData": certificate}),
    )
    code, output, errors = ground.run("predict", *flags, "--tls", "page", "-o", "json")
    assert code == 0, errors
    total = json.loads(output)["receipt"]["total"]
    assert (total["expected"], total["trained"], total["lost"]) == (30, 30, 0)
    assert list((ground.folder / "predictions").iterdir())


def by_hand(ground: Ground, name: str) -> str:
    """The Job of docs/how-to/kubernetes.md, changed as its reader would change it."""
    found = re.search(
        r"<!-- file: ads.yaml -->\n```yaml\n(.*?)```",
        (ROOT / "docs/how-to/kubernetes.md").read_text(),
        re.DOTALL,
    )
    assert found
    text = found[1].replace("ads", name).replace("team-a", ground.namespace)
    return text.replace("registry/zoo:7", ground.image)


def with_flags(ground: Ground, name: str, *flags: str) -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load(by_hand(ground, name))
    pod = job["spec"]["template"]["spec"]
    pod["containers"][0]["args"] = ["train", f"--job-dir=/data/{name}", *flags]
    if ground.place.own is not None:
        pod["containers"][0]["imagePullPolicy"] = "Never"
    return job


def test_a_job_that_a_person_wrote_waits_for_its_queue_and_outlives_its_masters_pod(
    ground: Ground,
) -> None:
    (ground.folder / "digits").mkdir()
    make_data.MAKERS["digits"](ground.folder / "digits", 0)
    flags = ("--model-def=paced", "--training-data=/data/digits/train.npz", "--minibatch-size=32")
    more = ("--num-epochs=3", "--checkpoint-steps=5", "--envs=PACED_FOLDER=/data")
    job = with_flags(ground, "long", *flags, *more)
    code, text, errors = ground.run(
        "train", *ground.flags("long", model_def="iris", training_data="t"), "--dry-run"
    )
    assert code == 0, errors
    strictly = ("create", "--validate=strict", "-f", "-")
    for made in (text, by_hand(ground, "long")):
        ground.place.kubectl(*strictly, "--dry-run=server", text=made)
    ground.place.kubectl(*strictly, text=json.dumps(job))
    code, output, errors = ground.run("status", "long", "-o", "json")
    assert code == 0 and "it is suspended, for example by a queue" in output, errors
    assert ground.objects() == ["jobs long"]
    released = ("patch", "job", "long", "-p", '{"spec": {"suspend": false}}')
    ground.place.kubectl("-n", ground.namespace, *released)
    directory = ground.folder / "long"
    until(
        "there is a checkpoint",
        lambda: list(directory.glob("checkpoints/version-*/manifest.json")),
        STEP_LIMIT_S,
    )
    first = ground.master("long")["metadata"]["name"]
    ground.place.kubectl("-n", ground.namespace, "delete", "pod", first, timeout_s=120)
    events = directory / "events.jsonl"
    continued = "another master continues the job after"
    until("it continues", lambda: continued in events.read_text(), STEP_LIMIT_S)
    (ground.folder / "hurry").touch()
    code, output, errors = ground.run("wait", "long", "-o", "json")
    assert code == 0, errors
    total = json.loads(output)["receipt"]["total"]
    assert (total["expected"], total["trained"], total["lost"]) == (3 * 1437, 3 * 1437, 0)
    assert ground.master("long")["metadata"]["name"] != first
    assert "the master restarted" not in events.read_text() and total["repeated"] == 0
    # Only pods of the master that the job ended with.
    assert ground.place.read("jobs", "long", namespace=ground.namespace)["status"]["succeeded"] == 1


def test_a_job_that_a_person_wrote_with_a_wrong_flag_ends_with_its_first_pod(
    ground: Ground,
) -> None:
    job = with_flags(ground, "wrong", "--model-def=iris", "--training-dada=t")
    del job["spec"]["suspend"]
    ground.place.kubectl("create", "--validate=strict", "-f", "-", text=json.dumps(job))
    code, output, _ = ground.run("wait", "wrong", "-o", "json")
    assert code == ExitCode.USAGE
    assert "unknown flag --training-dada" in json.loads(output)["message"]
    pods = ground.place.read("pods", namespace=ground.namespace, selector=master_selector("wrong"))
    (state,) = [item["status"]["containerStatuses"][0]["state"] for item in pods["items"]]
    assert state["terminated"]["exitCode"] == ExitCode.USAGE
    assert "unknown flag --training-dada" in state["terminated"]["message"]


def test_who_may_not_submit_is_told_so_and_nothing_is_made(ground: Ground, tmp_path: Path) -> None:
    token = ground.place.kubectl("-n", ground.namespace, "create", "token", "default").strip()
    config = json.loads(ground.place.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    nobody = tmp_path / "kubeconfig"
    nobody.write_text(json.dumps(config))
    flags = ground.flags("iris", model_def="iris", training_data="/data/none.csv")
    code, _, errors = ground.run("train", *flags, kubeconfig=nobody, limit_s=STEP_LIMIT_S)
    assert (
        code == ExitCode.CLUSTER_REFUSED
        and f"you may not create jobs in namespace {ground.namespace}" in errors
    )
    for wrong, words in {
        "--service-account": "would run as service account nobody",
        "--worker-pod-priority": "there is no priority class nobody",
        "--volume": "pod security (restricted:latest) does not allow it",
    }.items():
        value = "host_path=/,mount_path=/host" if wrong == "--volume" else "nobody"
        code, _, errors = ground.run("train", *flags, wrong, value, limit_s=STEP_LIMIT_S)
        assert code == ExitCode.CLUSTER_REFUSED and words in errors, errors
    assert ground.objects() == []


SPY = """
import os, socket
secret = [name for name in os.environ if "TOKEN" in name]
secret += [path for path in ("/var/run/secrets", "/var/run/elasticdl") if os.path.exists(path)]
raise ValueError(f"{socket.gethostname()} sees {secret}")
"""


def test_an_error_of_the_model_ends_the_job_at_once_with_its_words_and_its_code_saw_no_token(
    ground: Ground,
) -> None:
    (ground.folder / "zoo").mkdir()
    (ground.folder / "zoo/spy.py").write_text(SPY)
    flags = ground.flags("spied", model_def="spy", training_data=iris(ground, 1))
    code, _, errors = ground.run("train", *flags, "--model-zoo", "/data/zoo")
    assert code in (ExitCode.USAGE, ExitCode.JOB_FAILED) and "check sees []" in errors, errors
    selector = f"elasticdl.org/role={CHECK}"
    checks = ground.place.read("pods", namespace=ground.namespace, selector=selector)["items"]
    assert not [pod for pod in checks if "deletionTimestamp" not in pod["metadata"]]
    masters = ground.place.read(
        "pods", namespace=ground.namespace, selector=master_selector("spied")
    )
    assert len(masters["items"]) == 1, "the job is not tried again"
