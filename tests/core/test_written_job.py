"""A Job that a person wrote: docs/how-to/kubernetes.md has one, and what may be wrong with one."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.cli.main import run
from elasticdl.cli.request import Request, settle
from elasticdl.cluster.kubernetes.job_state import JobStage, JobState
from elasticdl.cluster.kubernetes.planning import job_object
from elasticdl.cluster.kubernetes.submitted_job import refuse_template, spec_of
from elasticdl.errors import SpecError
from elasticdl.job_args import as_args, read_args
from elasticdl.job_choices import Action

pytestmark = pytest.mark.core
PAGE = Path(__file__).parents[2] / "docs/how-to/kubernetes.md"
SECTION = PAGE.read_text().partition("## Write the Job yourself")[2]
_POD = "spec.template.spec"
_CONTAINER = f"{_POD}.containers.process"
OPTIONAL = {
    "metadata.labels": (
        *("app.kubernetes.io/component", "app.kubernetes.io/managed-by"),
        *("elasticdl.org/role", "elasticdl.org/index", "elasticdl.org/incarnation"),
    ),
    # The first two are what Kubernetes has, too. Without the last an ended Job stays.
    "spec": ("backoffLimit", "podReplacementPolicy", "ttlSecondsAfterFinished"),
    # An autoscaler may remove the master's node.
    "spec.template.metadata": ("annotations",),
    "spec.template.metadata.labels": (
        *("app.kubernetes.io/component", "app.kubernetes.io/managed-by"),
        *("elasticdl.org/index", "elasticdl.org/incarnation"),
    ),
    # A master is found by its Service, handles its signals, and leaves a lost node after 5 min.
    _POD: (
        *("automountServiceAccountToken", "enableServiceLinks", "hostname", "subdomain"),
        *("shareProcessNamespace", "tolerations"),
    ),
    # The files of a volume get their group at each start.
    f"{_POD}.securityContext": ("fsGroupChangePolicy",),
    _CONTAINER: ("imagePullPolicy", "ports"),
    # The image has the first two.
    f"{_CONTAINER}.env": ("HOME", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"),
    # With a root that nobody can write go the volumes for /tmp.
    f"{_CONTAINER}.securityContext": ("readOnlyRootFilesystem",),
    f"{_CONTAINER}.volumeMounts": ("tmp",),
    f"{_POD}.volumes": ("tmp",),
    f"{_POD}.volumes.token.secret": ("defaultMode",),
}
"""What the command line adds, by its place, and a person may leave out."""


def written() -> dict[str, Any]:
    found = re.search(r"```yaml\n(.*?)```", SECTION, re.DOTALL)
    assert found
    job: dict[str, Any] = yaml.safe_load(found[1])
    return job


def submitted(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the command beside it would submit."""
    found = re.search(r"```bash\n(.*?)```", SECTION, re.DOTALL)
    assert found
    _, *words = shlex.split(found[1].replace("\\\n", ""))
    assert run([*words, "--dry-run", "-o", "yaml"]) == 0
    job: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return job


def more_than(ours: Any, theirs: Any, place: str = "") -> Iterator[str]:
    """Places of `ours` that have what `theirs` has not; `!` before one that contradicts it."""
    if isinstance(ours, list) and all(isinstance(item, dict) and "name" in item for item in ours):
        ours, theirs = ({one["name"]: one for one in side} for side in (ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        yield from (f"!{place}.{key}" for key in theirs.keys() - ours.keys())
        for key in ours:
            inner = f"{place}.{key}".lstrip(".")
            if key not in theirs:
                yield inner
            else:
                yield from more_than(ours[key], theirs[key], inner)
    elif ours != theirs:
        yield f"!{place}"


def test_the_job_of_the_page_means_what_the_command_beside_it_makes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    by_hand, by_command = written(), submitted(capsys)
    assert spec_of(by_hand) == spec_of(by_command)
    refuse_template(by_hand)
    refuse_template(by_command)
    # Only a queue is asked for in one and not in the other.
    assert by_hand["spec"].pop("suspend") is True
    for one in (by_hand, by_command):
        pod = one["spec"]["template"]["spec"]
        for named in (*pod["volumes"], *pod["containers"][0]["volumeMounts"]):
            named["name"] = named["name"].replace("volume-0", "data")
        assert pod["containers"][0]["args"].sort() is None
    assert set(more_than(by_command, by_hand)) == {
        f"{place}.{key}" for place, keys in OPTIONAL.items() for key in keys
    }


def test_a_job_that_a_queue_holds_waits_and_says_for_what() -> None:
    job = written()
    job["metadata"] |= {"uid": "u", "creationTimestamp": "2026-11-21T10:00:00Z"}
    state = JobState(job)
    assert state.standing is JobStage.WAITING and "suspended" in state.waits_for
    assert state.spec is not None and state.spec.cluster.num_workers.high == 20


def container(job: Any) -> Any:
    return job["spec"]["template"]["spec"]["containers"][0]


def args(*more: str) -> Callable[[Any], None]:
    return lambda job: container(job)["args"].extend(more)


@pytest.mark.parametrize(
    ("spoil", "message", "hint"),
    [
        (args("--minibatch-sise=64"), "unknown flag --minibatch-sise", "minibatch-size"),
        (args("--minibatch-size=many"), "--minibatch-size: expected a whole number", ""),
        (args("--minibatch-size"), "--minibatch-size has no value", "--minibatch-size=VALUE"),
        (args("--minibatch-size=1", "--minibatch_size=2"), "given twice", ""),
        (args("--resume=true"), "--resume takes no value", ""),
        (args("extra"), "unexpected argument 'extra'", "--"),
        (args("--prediction-data=p"), "does not accept --prediction-data", "predict"),
        (args("--image-name=i"), "--image-name is among the args", "image of the container"),
        (args("--volume=claim_name=c,mount_path=/x"), "--volume is among the args", "volumeMounts"),
        (args("--job-name=other"), "--job-name is among the args", "metadata.name"),
        (
            lambda job: container(job)["args"].__setitem__(4, "--job-dir=jobs"),
            "--job-dir jobs is not an absolute path",
            "/data/NAME",
        ),
        (args("--envs=A=$(HOME)"), "refer to the variable $(HOME)", "$$(HOME)"),
        (args("--envs=AWS_SECRET_ACCESS_KEY=x"), "AWS_SECRET_ACCESS_KEY is a secret", ""),
        (lambda job: container(job).pop("args"), "there are no args", "train"),
        (lambda job: container(job)["args"].pop(0), "the first of the args is", "train, evaluate"),
        (lambda job: container(job)["args"].pop(1), "--model-def is missing", ""),
        (lambda job: container(job).update(name="main"), "no container 'process'", "args"),
        (
            lambda job: container(job)["volumeMounts"][0].update(subPathExpr="$(A)"),
            "the volumeMount of /data has subPathExpr",
            "subPath",
        ),
        (lambda job: container(job)["volumeMounts"].pop(0), "needs a place for checkpoints", ""),
    ],
)
def test_a_flag_that_is_wrong_or_missing_is_named(
    spoil: Callable[[Any], object], message: str, hint: str
) -> None:
    job = copy.deepcopy(written())
    spoil(job)
    with pytest.raises(SpecError, match="the Job ads: ") as caught:
        spec_of(job)
    assert message in caught.value.message and hint in caught.value.hint
    assert JobState(job).spec is None, "the command line shows such a Job, too"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda job: job["metadata"]["labels"].pop("app.kubernetes.io/name"),
            "it needs the label app.kubernetes.io/name: elasticdl, and has none",
        ),
        (
            lambda job: job["metadata"].update(name="ads-2"),
            "it needs the label app.kubernetes.io/instance: ads-2, and has ads",
        ),
        (
            lambda job: job["spec"]["template"]["metadata"]["labels"].pop("elasticdl.org/role"),
            "its pod template needs the label elasticdl.org/role: master, and has none",
        ),
        (lambda job: job["spec"].update(parallelism=2), "parallelism is 2"),
        (
            lambda job: job["spec"]["template"]["spec"].update(restartPolicy="OnFailure"),
            "restartPolicy is 'OnFailure'",
        ),
        (
            lambda job: job["spec"]["template"]["spec"]["volumes"].pop(),
            "needs a volume of the Secret ads-token",
        ),
        (
            lambda job: job["spec"]["template"]["spec"]["volumes"][1]["secret"].pop("optional"),
            "needs a volume of the Secret ads-token",
        ),
        (lambda job: container(job)["volumeMounts"].pop(), "mounted at /var/run/elasticdl"),
    ],
)
def test_a_template_that_cannot_run_a_master_is_refused(
    spoil: Callable[[Any], object], message: str
) -> None:
    job = copy.deepcopy(written())
    spoil(job)
    with pytest.raises(SpecError) as caught:
        refuse_template(job)
    assert message in caught.value.message


@pytest.mark.parametrize(("flags", "anew"), [({"num_workers": "3"}, True), ({}, False)])
def test_a_resumed_job_has_the_workers_that_its_command_names_and_not_those_of_its_file(
    flags: dict[str, str], anew: bool, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    volume = "claim_name=c,mount_path=/data"
    file.write_text(f"image_name: i\nnum_workers: 2\nvolume: {volume}\njob_dir: /data/j\n")
    given = {"model_def": "m", "training_data": "t", "resume": True, **flags}
    spec = settle(Request(Action.TRAIN, given, str(file)))
    assert spec_of(job_object(spec, "n")).workers_anew == anew


def test_flags_are_read_in_every_form_of_the_command_line() -> None:
    words = [
        "train",
        "--num_workers",
        "1:3",
        "--resume",
        "--no-sync",
        "--envs=A=1",
        "--envs",
        "B=2",
    ]
    flags = {"num_workers": "1:3", "resume": True, "sync": False, "envs": ("A=1", "B=2")}
    assert read_args(words) == (Action.TRAIN, flags)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"worker_resource_request": {"cpu": "2", "memory": "4Gi"}}, "cpu=2,memory=4Gi"),
        ({"model_params": {"lr": 0.5, "deep": True}}, "lr=0.5;deep=true"),
        ({"model_params": {"name": "1"}}, '{"name":"1"}'),
        ({"envs": {"A": "1", "B": "x;y"}}, '{"A":"1","B":"x;y"}'),
        ({"node_selector": {"pool": ""}}, '{"pool":""}'),
        ({"image_pull_secrets": ["a", "b"]}, "a,b"),
    ],
)
def test_a_value_with_parts_is_short_where_that_is_exact(flags: Any, word: str) -> None:
    _, written = as_args(Action.TRAIN, flags)
    assert written.partition("=")[2] == word
