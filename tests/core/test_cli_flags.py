"""Flags, YAML and the job that they make."""

from __future__ import annotations

import json
import shlex
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from elasticdl import original_names
from elasticdl.cli.api import start
from elasticdl.cli.main import exit_code_of, run
from elasticdl.cli.request import Request, settle
from elasticdl.cluster.kubernetes.submitted_job import spec_of
from elasticdl.errors import Corrupted, ExitCode, Refused, SpecError, UserError
from elasticdl.job import JobSpec
from elasticdl.job_args import read_args
from elasticdl.job_choices import Action, Shuffle
from elasticdl.job_flags import FIELDS, is_used
from elasticdl.job_problems import flag_of as flag
from elasticdl.kubernetes_flags import KubernetesSection
from elasticdl.yaml_documents import as_yaml, parse_yaml

pytestmark = pytest.mark.core
NEEDED = ["--model-zoo", "zoo", "--model-def", "iris", "--training-data", "a.csv"]
MOUNT = {
    "mount_path": "",
    "claim_name": "",
    "host_path": "",
    "type": "",
    "source": {},
    "sub_path": "",
    "read_only": False,
}
OTHERS: dict[str, tuple[str, Any]] = {
    "model_zoo": ("z", "z"),
    "checkpoint_dir": ("s3://b/c", "s3://b/c"),
    "tracker": ("mlflow:http://h:1", "mlflow:http://h:1"),
    "model_def": ("a.b", "a.b"),
    "model_params": ("lr=0.5;name='1';deep=true", {"lr": 0.5, "name": "1", "deep": True}),
    "data_reader_params": ("sep=|", {"sep": "|"}),
    "shuffle": ("shards", "shards"),
    "distribution_strategy": ("ParameterServerStrategy", "ParameterServerStrategy"),
    "global_batch": ("fixed", "fixed"),
    "lr_scaling": ("none", "none"),
    "seed": ("7", 7),
    "max_staleness": ("3", 3),
    "wire_precision": ("bfloat16", "bfloat16"),
    "num_workers": ("1:3", "1:3"),
    "autoscale": ("", True),
    "job_name": ("iris", "iris"),
    "envs": ("A=1;B=x", {"A": "1", "B": "x"}),
    "evaluation_seconds": ("2.5", 2.5),
    "checkpoint_seconds": ("2.5", 2.5),
    "export_seconds": ("2.5", 2.5),
    "resume": ("", True),
    "sync": ("", True),
    "volume": (
        "host_path=/x,mount_path=/y,read_only=true",
        [{**MOUNT, "host_path": "/x", "mount_path": "/y", "read_only": True}],
    ),
    "image_pull_policy": ("Always", "Always"),
    "image_pull_secrets": ("a,b", ["a", "b"]),
    "master_resource_request": ("cpu=500m", {"cpu": "500m"}),
    "master_resource_limit": ("cpu=2,memory=1Gi", {"cpu": "2", "memory": "1Gi"}),
    "worker_resource_request": ("memory=1.5Gi", {"memory": "1.5Gi"}),
    "worker_resource_limit": ("nvidia.com/gpu=1", {"nvidia.com/gpu": "1"}),
    "ps_resource_request": ("memory=1e9", {"memory": "1e9"}),
    "ps_resource_limit": ("memory=2G", {"memory": "2G"}),
    "priority_ladder": ("on", "on"),
    "gang": ("", True),
    "labels": ("team=a,x.io/y=z", {"team": "a", "x.io/y": "z"}),
    "node_selector": ("pool=spot,disk=ssd", {"pool": "spot", "disk": "ssd"}),
    "tolerations": ('[{"key": "spot"}]', [{"key": "spot"}]),
    "affinity": ('{"nodeAffinity": {}}', {"nodeAffinity": {}}),
    "oom_memory_limit": ("4Gi", "4Gi"),
    "tls": ("on", "on"),
    "num_ps_pods": ("1:9", "1:9"),
}


ALSO: dict[str, list[str]] = {
    "autoscale": ["--num-workers", "1:3"],
    "num_ps_pods": ["--autoscale"],
    "export_seconds": ["--output", "/exports"],
    "keep_export_max": ["--export-seconds", "60", "--output", "/exports"],
    "grads_to_wait": ["--sync"],
    "backup_workers": ["--sync", "--num-workers", "10"],
    "virtual_workers": ["--distribution-strategy", "AllreduceStrategy"],
}
"""What else a flag needs."""


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert (
        run(["train", *NEEDED, "--validation-data", "v.csv", *arguments, "--dry-run", "-o", "json"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", list(FIELDS))
@pytest.mark.parametrize("spell", [flag, lambda name: f"--{name}"], ids=["kebab", "snake"])
def test_every_field_of_a_job_is_a_flag(
    name: str, spell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    is_number = FIELDS[name].annotation in (int, float)
    text, value = OTHERS.get(name, ("9", 9) if is_number else ("text", "text"))
    given = [spell(name), *([text] if text else []), *ALSO.get(name, [])]
    if not is_used(name, Action.TRAIN):
        assert run(["train", *NEEDED, *given]) == 2
        return
    if name not in KubernetesSection.model_fields:
        assert dry_run(capsys, *given)[name] == value
        return
    submitted = dry_run(capsys, "--image-name", "registry/zoo", *given)
    assert spec_of(submitted).flags()[name] == value


@pytest.mark.parametrize(
    "name", [name for name in KubernetesSection.model_fields if name != "image_name"]
)
def test_a_flag_of_a_cluster_says_so_where_there_is_none(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    is_number = FIELDS[name].annotation is int
    text, _ = OTHERS.get(name, ("9", 9) if is_number else ("text", "text"))
    given = [flag(name), *([text] if text else [])]
    assert run(["train", *NEEDED, *given, "--dry-run"]) == 2
    assert f"{flag(name)} without --image-name" in capsys.readouterr().err


def test_the_model_zoo_of_a_cluster_is_that_of_its_image_unless_it_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        run(
            [
                "train",
                "--image-name",
                "i",
                "--model-def",
                "m",
                "--training-data",
                "t",
                "--dry-run",
                "-o",
                "json",
            ]
        )
        == 0
    )
    assert spec_of(json.loads(capsys.readouterr().out)).model.model_zoo == "/model_zoo"
    assert spec_of(dry_run(capsys, "--image-name", "i")).model.model_zoo == "zoo"


def test_volumes_add_up_in_the_form_that_elasticdl_had_and_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    volumes = [
        "claim_name=c1,mount_path=/data;host_path=/x,mount_path=/y",
        '{"source": {"nfs": {"server": "n"}}, "mount_path": "/n"}',
    ]
    spec = spec_of(
        dry_run(
            capsys,
            "--image-name",
            "i",
            *[part for volume in volumes for part in ("--volume", volume)],
        )
    )
    assert [mount.mount_path for mount in spec.kubernetes.volume] == ["/data", "/y", "/n"]
    assert [mount.claim_name for mount in spec.kubernetes.volume] == ["c1", "", ""]
    assert spec.kubernetes.volume[2].source == {"nfs": {"server": "n"}}


def test_a_flag_that_is_given_twice_adds_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    found = dry_run(capsys, "--envs", "A=1", "--envs", "B=2;C=3")
    assert found["envs"] == {"A": "1", "B": "2", "C": "3"}


def test_a_variable_of_the_environment_has_the_text_that_was_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = dry_run(capsys, "--envs", "DEBUG=true;VERSION=1.10;MASK=007;NAME='a b'")
    assert found["envs"] == {"DEBUG": "true", "VERSION": "1.10", "MASK": "007", "NAME": "a b"}


def test_a_flag_whose_value_has_parts_takes_json(capsys: pytest.CaptureFixture[str]) -> None:
    given = {
        "model_params": '{"text": "a;b", "lr": 0.5, "n": "1"}',
        "envs": '{"A": "x;y"}',
        "node_selector": '{"pool": "a,b"}',
    }
    words = [word for name, text in given.items() for word in (flag(name), text)]
    asked = spec_of(
        dry_run(capsys, "--image-name", "i", *words, "--image-pull-secrets", '["a", "b"]')
    )
    assert (asked.model.model_params, asked.cluster.envs) == (
        {"text": "a;b", "lr": 0.5, "n": "1"},
        {"A": "x;y"},
    )
    assert (asked.kubernetes.node_selector, asked.kubernetes.image_pull_secrets) == (
        {"pool": "a,b"},
        ("a", "b"),
    )
    for wrong in ('{"a": 1', '["a"', '{"a": [1]}'):
        assert run(["train", *NEEDED, "--model-params", wrong]) == 2
        assert "--model-params" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["train", "evaluate", "check"])
def test_a_flag_of_the_original_is_told_what_takes_its_place(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([verb, "--num_minibatches_per_task", "8"]) == 2
    said = capsys.readouterr().err
    assert "no --num-minibatches-per-task: --records-per-task N" in " ".join(said.split())


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("--evaluation_throttle_secs=5", "--evaluation-seconds"),
        ("--docker_image_repository=x", "elasticdl zoo build"),
        ("--use_go_ps=true", "one parameter server, in C++"),
        ("--distribution_strategy=Local", "a job without --image-name runs here"),
        ("--shuffle=true", "`records` shuffles records"),
    ],
)
def test_other_flags_and_values_of_the_original_get_a_word(
    flag: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", *NEEDED, flag]) == 2
    assert instead in " ".join(capsys.readouterr().err.split())


def test_no_flag_of_the_original_that_exists_is_said_to_be_gone() -> None:
    assert not set(original_names.FLAGS) & set(FIELDS)
    named = {
        word.strip(".,:;")
        for text in original_names.FLAGS.values()
        for word in text.split()
        if word.startswith("--")
    }
    flags = {f"--{name.replace('_', '-')}" for name in FIELDS}
    assert named <= flags | {"--dry-run", "--no-sync"}


def test_variables_in_the_original_form_get_a_word() -> None:
    said = list[str]()
    flags = {"model_zoo": "zoo", "model_def": "iris", "training_data": "a.csv"}
    settle(Request(Action.TRAIN, {**flags, "envs": "A=1,2;C=3"}), said.append)
    assert not said
    settle(Request(Action.TRAIN, {**flags, "envs": "A=1,B=2"}), said.append)
    assert said == ["--envs: A is '1,B=2'; a semicolon begins another variable"]


def test_a_beginning_of_a_flag_is_not_that_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *NEEDED, "--num-epoch", "3"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--worker-resource-request gpu=1", "such as nvidia.com/gpu"),
        ("--worker-resource-limit disk=1Gi", "give ephemeral-storage"),
        ("--worker-pod-priority 0.5", "'0.5' is a share of pods, not a priority class"),
        ("--num-workers 3:1", "--num-workers: MIN 3 is greater than MAX 1"),
        ("--num-workers 1:1000000", "--num-workers: 1000000 workers: a job has at most"),
        ("--num-workers 'a few'", "--num-workers: expected N or MIN:MAX, got 'a few'"),
        (
            "--num-workers 0",
            "--num-workers: expected N or MIN:MAX, whole numbers of at least 1, got 0",
        ),
        ("--minibatch-size 0", "--minibatch-size: expected a whole number of at least 1, got '0'"),
        (
            "--minibatch-size 64k",
            "--minibatch-size: expected a whole number of at least 1, got '64k'",
        ),
        (
            "--seed -1",
            "--seed: expected a whole number of at least 0, got '-1'",
        ),
        (
            "--seed 9223372036854775808",
            "--seed: expected a whole number of at least 0 and below 9223372036854775808, got '92",
        ),
        (
            "--num-epochs 2147483648",
            "--num-epochs: expected a whole number of at least 1 and at most 2147483647, got '214",
        ),
        (
            "--stall-seconds 1e30",
            "--stall-seconds: expected a number of seconds of at least 0 and at most 2147483647,",
        ),
        ("--num-ps-pods 1001", "--num-ps-pods: 1001 servers: a job has at most 1000"),
        (
            "--max-staleness 9",
            "--max-staleness: expected auto, or a whole number of at least 0 and at most 8,"
            " got '9'",
        ),
        (
            "--evaluation-seconds 5m",
            "--evaluation-seconds: expected a number of seconds of at least 0, got '5m'",
        ),
        (
            "--evaluation-seconds inf",
            "--evaluation-seconds: expected a number of seconds of at least 0, got 'inf'",
        ),
        (
            "--evaluation-seconds nan",
            "--evaluation-seconds: expected a number of seconds of at least 0, got 'nan'",
        ),
        ("--envs A=1 --envs A=2", "--envs: A is given twice"),
        ("--sync --max-staleness 1", "--max-staleness 1 with --sync"),
        ("--grads-to-wait 4", "--grads-to-wait without --sync"),
        ("--backup-workers 1", "--backup-workers without --sync"),
        (
            "--sync --backup-workers 2 --num-workers 2",
            "--backup-workers 2 with --num-workers 2: a step needs at least 3 workers",
        ),
        (
            "--sync --grads-to-wait 4 --backup-workers 1 --num-workers 2:4",
            "--backup-workers 1 with --num-workers 2:4: a step needs at least 5 workers",
        ),
        ("--sync --grads-to-wait -1", "--grads-to-wait: expected a whole number"),
        (
            "--sync --distribution-strategy AllreduceStrategy",
            "--sync with --distribution-strategy AllreduceStrategy",
        ),
        ("--model-params lr", "--model-params: expected key=value, got 'lr'"),
        ("--shuffle twice", "'twice' is not one of"),
        ("--job-name Iris!", "invalid --job-name 'Iris!'"),
        (f"--job-name {'x' * 53}", "invalid --job-name"),
        ("--job-name ирис", "invalid --job-name"),
        ("--evaluation-steps 5", "without --validation-data"),
        ("--detach", "--detach is for jobs on a cluster"),
    ],
)
def test_a_wrong_value_names_the_flag_and_what_is_expected(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", *NEEDED, *shlex.split(arguments)]) == 2
    assert message in capsys.readouterr().err


ODD = ("0", "-1", "1e30", "9" * 22, "9" * 5000, "x" * 100_000, "a\nb", "\u202eä", "\udcff")
SWITCHES = [name for name, field in FIELDS.items() if field.annotation in (bool, bool | None)]


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in SWITCHES])
def test_an_odd_value_is_taken_or_refused_in_a_few_words(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    action = next(action for action in Action if is_used(name, action))
    rest = ["--model-zoo", "z", "--model-def", "m", "--dry-run", "-o", "json"]
    rest += ["--checkpoint-dir-for-init", "c"]
    rest += ["--prediction-data", "p"] if action is Action.PREDICT else ["--training-data", "t"]
    for value in ODD:
        for cluster in ([], ["--image-name", "i"]):
            code = run([action, *rest, *cluster, flag(name), value])
            told = capsys.readouterr().err
            assert code in (0, 2)
            if code == 2:
                assert flag(name) in told and len(told) < 700 and told.count("\n") < 5, told
            else:
                assert value == "0" or FIELDS[name].annotation not in (int, float), value
                # A custom reader may take a query or a list of files.
                longest = 65_536 if name.endswith("_data") else 100
                assert len(value) <= longest and value != "\udcff"
    assert not [*tmp_path.iterdir()]


TEXTS = [name for name, field in FIELDS.items() if field.annotation is str]


@pytest.mark.parametrize("value", ["", " "])
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_not_empty(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As a shell passes a variable that is not set: the job would go elsewhere than was meant."""
    action = next(action for action in Action if is_used(name, action))
    told = f"{flag(name)} is empty\nHint: give it a value, or leave it out"
    for cluster in ([], ["--image-name", "i"]):
        assert run([action, *NEEDED[:4], *cluster, flag(name), value]) == 2
        assert told in capsys.readouterr().err
    with pytest.raises(SpecError, match=f"{flag(name)} is empty"):
        start(action, {name: value})
    with pytest.raises(SpecError, match=f"{flag(name)} is empty"):
        read_args([action, f"{flag(name)}={value}"])


def test_a_file_has_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *NEEDED, "-f", "", "--dry-run"]) == 2
    assert "--file is empty\nHint: give it a value, or leave it out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--volume claim_name=c,mount_path=/d,colour=red", "--volume: unknown key 'colour'"),
        ("--tolerations {}", "--tolerations: expected a list, got {}"),
        ("--volume claim_name=c", "--volume: mount_path is missing"),
        ("--volume mount_path=/d", "expected one of claim_name, host_path and source, got none"),
        ("--volume claim_name=c,mount_path=d", "mount_path 'd': expected an absolute path"),
        ("--volume claim_name=c,mount_path=/tmp", "mount_path '/tmp': expected an absolute path"),
        (
            "--volume claim_name=c,mount_path=/d;claim_name=e,mount_path=/d/",
            "two volumes have mount_path /d",
        ),
        (
            "--volume claim_name=c,mount_path=/d,type=Directory",
            "type=Directory requires a host_path",
        ),
        ("--worker-resource-limit 'memory=2 GB'", "memory=2 GB: invalid quantity '2 GB'"),
        ("--worker-resource-limit memory=0", "memory=0: expected more than 0"),
        ("--worker-resource-limit memory=1e30", "memory=1e30: expected less than 8Ei"),
        ("--oom-memory-limit 8Ei", "--oom-memory-limit: 8Ei: expected less than 8Ei"),
        ("--fs-group 4294967296", "--fs-group: expected a whole number of at least 0 and at most"),
        ("--worker-resource-limit cpu=1Gi", "cpu=1Gi: expected cores"),
        ("--worker-resource-limit cpu", "--worker-resource-limit: expected key=value"),
        ("--oom-memory-limit lots", "--oom-memory-limit: invalid quantity 'lots'"),
        ("--tolerations [{", "--tolerations: expected JSON"),
        ("--affinity [1]", "--affinity"),
        ("--job-dir here", "--job-dir here is not an absolute path"),
        ("--output /out", "--output /out is not on a writable --volume"),
        ("--model-def zoo/iris.py", "--model-def 'zoo/iris.py' is not a dotted name"),
        (
            "--checkpoint-steps 9",
            "--checkpoint-steps needs a place for checkpoints that all pods reach",
        ),
        ("--resume", "--resume needs a place for checkpoints"),
        (
            "--volume claim_name=c,mount_path=/d,read_only=true --output /d/o",
            "is not on a writable --volume",
        ),
    ],
)
def test_a_wrong_value_for_a_cluster_names_the_flag_and_what_is_expected(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", *NEEDED, "--image-name", "i", *shlex.split(arguments)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --model-zoo z --model-def m", "--training-data is missing"),
        ("train --model-zoo z --training-data t", "--model-def is missing"),
        (
            "train",
            "--model-zoo, --model-def and --training-data are missing\nHint: give them as a flag",
        ),
        (
            "evaluate --model-zoo z --model-def m",
            "--validation-data and --checkpoint-dir-for-init are missing",
        ),
        (
            "evaluate --model-zoo z --model-def m --validation-data v",
            "--checkpoint-dir-for-init is missing",
        ),
        (
            "predict --model-zoo z --model-def m",
            "--prediction-data and --checkpoint-dir-for-init are missing",
        ),
        ("trian", "Did you mean 'train'?"),
        ("train --num-worker 3", "'--num-workers'"),
        ("list -A --namespace team", "cannot be used together"),
    ],
)
def test_what_a_verb_needs_or_does_not_know_is_named(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shlex.split(arguments)) == 2
    assert message in capsys.readouterr().err


def test_a_dry_run_makes_nothing_and_prints_what_f_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        run(["train", *NEEDED, "--num-workers", "1:3", "--model-params", "name='1'", "--dry-run"])
        == 0
    )
    text = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "job.yaml").write_text(text)
    assert run(["train", "-f", "job.yaml", "--dry-run", "-o", "yaml"]) == 0
    assert capsys.readouterr().out == text


def yaml_job(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return ["train", "-f", str(path), "--dry-run", "-o", "json"]


def test_flags_win_over_the_file_and_the_file_over_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = yaml_job(
        tmp_path,
        "model-zoo: z\nmodel_def: m\ntraining-data: t\nnum-epochs: 4\nminibatch-size: 8\nresume:"
        " true\n",
    )
    assert run([*command, "--num-epochs", "5", "--no-resume"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [
        found[key] for key in ("model_zoo", "num_epochs", "minibatch_size", "seed", "resume")
    ] == ["z", 5, 8, 0, False]


def test_yaml_is_read_as_people_mean_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "model_zoo: z\nmodel_def: m\ntraining_data: t\nnum_workers: 1:3\njob_name: yes\n"
        "model_params: {lr: 1e-3, deep: true, mode: on, day: 2026-11-21, n: 007}\nenvs: {A: 1}\n"
    )
    assert run(yaml_job(tmp_path, text)) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_workers"], found["job_name"], found["envs"]) == ("1:3", "yes", {"A": "1"})
    assert found["model_params"] == {
        "lr": 0.001,
        "deep": True,
        "mode": "on",
        "day": "2026-11-21",
        "n": 7,
    }


def test_a_file_may_say_what_a_cluster_is_told_in_its_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
image-name: registry/zoo
model-def: m
training-data: /data/t
volume:
  - {claim_name: c, mount_path: /data}
  - {source: {nfs: {server: n, path: /x}}, mount_path: /nfs, read_only: true}
  - host_path=/y,mount_path=/y
worker-resource-limit: {cpu: 2, memory: 4Gi, nvidia.com/gpu: 1}
node-selector: {pool: spot}
image-pull-secrets: [a, b]
tolerations:
  - {key: spot, operator: Exists}
affinity:
  nodeAffinity: {}
"""
    assert run(yaml_job(tmp_path, text)) == 0
    asked = spec_of(json.loads(capsys.readouterr().out)).kubernetes
    assert [(mount.mount_path, mount.read_only) for mount in asked.volume] == [
        ("/data", False),
        ("/nfs", True),
        ("/y", False),
    ]
    assert (
        asked.volume[1].source == {"nfs": {"server": "n", "path": "/x"}}
        and asked.volume[2].host_path == "/y"
    )
    assert asked.worker_resource_limit == {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}
    assert (asked.node_selector, asked.image_pull_secrets) == ({"pool": "spot"}, ("a", "b"))
    assert (asked.tolerations, asked.affinity) == (
        ({"key": "spot", "operator": "Exists"},),
        {"nodeAffinity": {}},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num-worker: 3\n", "unknown key 'num-worker'\nHint: did you mean num-workers?"),
        ("colour: blue\n", "unknown key 'colour'"),
        ("seed: 1\nseed: 2\n", "job.yaml:2: the key 'seed' is there twice"),
        ("? [a, b]\n: 1\n", "job.yaml:1: found unhashable key"),
        ("num-epochs: 1\nnum_epochs: 2\n", "duplicate key 'num_epochs'"),
        ("- a\n- b\n", "expected keys and values, got a list"),
        ("seed: [1\nx: 2\n", "job.yaml:2: "),
        (
            "seed: !!python/object/apply:os.system ['true']\n",
            "job.yaml:1: the tag !!python/object/apply:os.system is not supported",
        ),
        (
            "envs: !!set {A}\n",
            "job.yaml:1: the tag !!set is not supported\nHint: without a tag, write text, a"
            " number, a list, or keys and values\n",
        ),
        (
            "seed: 1\n---\nseed: 2\n",
            "job.yaml:2: another document begins here\nHint: remove the line `---`, or keep one"
            " document: a file has the flags of one job\n",
        ),
        (
            "seed: 1\nnum_epochs: 010\n",
            "job.yaml:2: 010 is 8 in YAML 1.1 and 10 in YAML 1.2\nHint: remove the leading 0, or"
            " write '010' for text\n",
        ),
        ("job_name: -08\n", "job.yaml:1: -08 is text in YAML 1.1 and -8 in YAML 1.2\nHint: "),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(yaml_job(tmp_path, text)) == 2
    error = capsys.readouterr().err
    assert message in error and "job.yaml" in error


_BOMB = "".join(
    f"{key}: &{key} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, key in zip("abcdefgh", "bcdefghi", strict=True)
)
_TOO_LARGE = "aliases make it larger than 100,000 values"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a: &a [x, y]\n{_BOMB}", f"job.yaml: {_TOO_LARGE}"),
        ("affinity: &a {x: *a}\n", "job.yaml:1: an alias contains itself"),
        ("affinity: {x: &a [1, *a]}\n", "job.yaml:1: an alias contains itself"),
        ("? &a [*a]\n: 1\n", "job.yaml:1: an alias contains itself"),
        (f"affinity: {'{a: ' * 40}{'}' * 40}\n", "--affinity: nested deeper than 32"),
        (f"affinity: {'[' * 5000}{']' * 5000}\n", "job.yaml: nested too deeply"),
        (f"seed: {'9' * 5000}\n", "job.yaml:1: '999"),
        ("seed: !!int x\n", "job.yaml:1: 'x' is not a value of !!int"),
        ("stall_seconds: !!float x\n", "job.yaml:1: 'x' is not a value of !!float"),
        ('stall_seconds: !!float ""\n', "job.yaml:1: '' is not a value of !!float"),
        ("envs: !!map 3\n", "job.yaml:1: expected a mapping node, but found scalar"),
        ("resume: !!bool x\n", "job.yaml:1: 'x' is not a value of !!bool"),
        ("job_name: !!timestamp x\n", "the tag !!timestamp is not supported"),
        ("job_name: !!binary aGFsbG8=\n", "the tag !!binary is not supported"),
        ("job_name: !mine x\n", "the tag !mine is not supported"),
        ("model_params: !!set {a, b}\n", "the tag !!set is not supported"),
        ("model_params: !!omap [a: 1]\n", "the tag !!omap is not supported"),
        ("envs: [A=x, 1A=x]\n", "--envs: invalid name '1A' in '1A=x': expected letters, digits"),
        ('output: "a\\0b"\n', "--output: NUL characters are not supported"),
        ('envs: {A: "\\0"}\n', "--envs: NUL characters are not supported"),
        ('envs: {A: "\\ud800"}\n', "--envs is not text in UTF-8"),
        ("num_epochs: true\n", "--num-epochs: expected a whole number of at least 1, got True"),
        ("stall_seconds: true\n", "--stall-seconds: expected a number of seconds"),
        ("weight: true\n", "--weight: expected a whole number of at least 1"),
        (
            "num_workers: {a: 1}\n",
            "--num-workers: expected N or MIN:MAX, whole numbers of at least 1",
        ),
        ("num_ps_pods: {a: 1}\n", "--num-ps-pods: expected N or MIN:MAX, whole numbers, got {'a'"),
        ("num_ps_pods: ~\n", "--num-ps-pods: expected N or MIN:MAX, whole numbers, got None"),
        ("envs: {A: {b: 1}}\n", "--envs: A: expected text or a number, got {'b': 1}"),
        ("envs: {A: ~}\n", "--envs: A: expected text or a number, got None"),
        ("envs: {'A=B': c}\n", "--envs: invalid name 'A=B' of a variable"),
        ("envs: {'': c}\n", "--envs: invalid name '' of a variable"),
        ("node_selector: {a: [b]}\n", "--node-selector: a: expected text or a number, got ['b']"),
        ("service_account: ''\n", "--service-account is empty"),
        ("model_def: ''\n", "--model-def is empty"),
    ],
)
def test_an_odd_file_is_refused_in_a_few_words(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = text.partition(":")[0]
    rest = {"model_zoo": "z", "model_def": "m", "training_data": "t"}
    lines = "".join(f"{key}: {value}\n" for key, value in rest.items() if key != name)
    begun = time.process_time()
    assert run(yaml_job(tmp_path, text + lines)) == 2
    told = capsys.readouterr().err
    assert message in told and len(told) < 700
    assert time.process_time() - begun < 3


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("training_data", 65_536),
        ("validation_data", 65_536),
        ("model_zoo", 4_096),
        ("job_dir", 4_096),
    ],
)
def test_a_text_has_a_greatest_length_that_a_query_for_a_reader_fits_in(
    tmp_path: Path, key: str, most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = {"model_zoo": "z", "model_def": "m", "training_data": "t"}
    longest = "SELECT ".ljust(most, "x")
    for text, code in ((longest, 0), (f"{longest}x", 2)):
        lines = "".join(f"{name}: {value}\n" for name, value in {**rest, key: text}.items())
        assert run(yaml_job(tmp_path, lines)) == code
    told = capsys.readouterr().err
    assert f"{flag(key)} has {most + 1:,} characters, expected at most {most:,}" in told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "Error: job.yaml:4: --seed: expected a whole number of at least 0, got 'x'"),
        (["--job-name", "A"], "Error: job.yaml:4: --seed: expected a whole number"),
        (["--seed", "y"], "Error: --seed: expected a whole number of at least 0, got 'y'"),
        (["--seed", "1"], "Error: job.yaml:5: invalid --job-name 'B'"),
        (["--seed", "1", "--job-name", "A"], "Error: invalid --job-name 'A'"),
    ],
)
def test_an_error_of_a_value_in_a_file_names_the_file(
    given: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "model_zoo: z\nmodel_def: m\ntraining_data: t\nseed: x\njob-name: B\n"
    (tmp_path / "job.yaml").write_text(text)
    assert run(["train", "-f", "job.yaml", *given, "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith(told)


def test_true_is_true_in_variables_and_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "image_name: i\nmodel_def: m\ntraining_data: t\nenvs: {A: true, B: 1.5}\n"
    assert run(yaml_job(tmp_path, f"{text}node_selector: {{spot: true, gpu: false}}\n")) == 0
    asked = spec_of(json.loads(capsys.readouterr().out))
    assert asked.cluster.envs == {"A": "true", "B": "1.5"}
    assert asked.kubernetes.node_selector == {"spot": "true", "gpu": "false"}


def test_variables_from_python_may_be_anything_that_has_a_text() -> None:
    flags = {"model_zoo": "z", "model_def": "m", "training_data": "t"}
    values = {"A": Path("/data"), "B": np.int64(3), "C": Decimal("0.10"), "D": True}
    asked = JobSpec.from_flags(Action.TRAIN, {**flags, "envs": values})
    assert asked.cluster.envs == {"A": "/data", "B": "3", "C": "0.10", "D": "true"}
    with pytest.raises(SpecError, match="--envs: A: expected text or a number"):
        JobSpec.from_flags(Action.TRAIN, {**flags, "envs": {"A": {1, 2}}})


def test_json_is_not_nested_without_end(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ('{"a":' * depth + "1" + "}" * depth for depth in (40, 900, 50_000)):
        assert run(["train", *NEEDED, "--image-name", "i", "--affinity", text, "--dry-run"]) == 2
        told = capsys.readouterr().err
        assert "--affinity: nested deeper than 32" in told and len(told) < 700


def test_a_file_that_is_not_there_or_not_text_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "-f", str(tmp_path / "nowhere.yaml")]) == 2
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert run(["train", "-f", str(tmp_path / "binary")]) == 2
    errors = capsys.readouterr().err
    assert "No such file" in errors and "is not text in UTF-8" in errors


scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
)


@given(
    params=st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), scalars, max_size=4),
    low=st.integers(1, 50),
    more=st.integers(0, 50),
    shuffle=st.sampled_from(Shuffle),
    seconds=st.floats(0, 1e6),
)
def test_a_job_comes_back_the_same_from_its_flags_through_yaml_and_json(
    params: dict[str, Any], low: int, more: int, shuffle: Shuffle, seconds: float
) -> None:
    given_flags = {
        "model_zoo": "z", "model_def": "m", "training_data": "t", "validation_data": "v",
        "model_params": params, "num_workers": f"{low}:{low + more}", "shuffle": shuffle,
        "evaluation_seconds": seconds,
    }  # fmt: skip
    spec = JobSpec.from_flags(Action.TRAIN, given_flags)
    assert JobSpec.from_flags(Action.TRAIN, spec.flags()) == spec
    assert JobSpec.from_flags(Action.TRAIN, yaml.safe_load(as_yaml(spec.flags()))) == spec
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_our_yaml_reads_what_our_yaml_writes(tmp_path: Path) -> None:
    value = {
        "a": "1:3",
        "b": "yes",
        "c": "007",
        "d": 1e-7,
        "e": None,
        "f": "2026-11-21",
        "g": {"h": [1, 2.5, True]},
        "i": "~",
        "j": "",
        "k": "a\x85b\u2028c\u2029 d\ne",
        "08": "08",
        "1e3": ["1e3", "0e1", "12E03", "010"],
    }
    assert parse_yaml(as_yaml(value).encode(), "x.yaml") == value


def test_exit_codes_for_the_masters_eyes_become_ones_for_people() -> None:
    assert exit_code_of(UserError("x")) == ExitCode.USAGE
    assert exit_code_of(SpecError("x")) == ExitCode.USAGE
    assert exit_code_of(Refused("x")) == ExitCode.JOB_FAILED
    assert exit_code_of(Corrupted("x")) == ExitCode.JOB_FAILED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["wait", "ads", "--timeout", "5m"],
            "expected a number of seconds of at least 0, such as 300, got '5m'.",
        ),
        (["wait", "ads", "--timeout", "nan"], "expected a number of seconds of at least 0"),
        (["wait", "ads", "--timeout", "1e30"], "expected at most 2147483647 seconds, got '1e30'."),
        (["analyze", "a.yaml", "--output", ""], "'--output': the path is empty."),
        (["analyze", "a.yaml", "--output", "."], "--output . is a directory, expected a file"),
        (["zoo", "init", ""], "'DIR': the path is empty."),
        (["scale", "ads", "--num-workers", "1:10001"], "invalid range of workers: 1:10001"),
        (["logs", "ads", "-n", "-1"], "expected a whole number of lines, or 0 for all, got '-1'."),
        (["logs", "ads", "-n", "9" * 5000], "expected a whole number of lines, or 0 for all, got"),
        (["scale", "ads", "--num-workers", "9" * 5000], "invalid range of workers: '999"),
        (["scale", "ads", "--num-ps-pods", "9" * 5000], "invalid number of parameter servers: '99"),
        (["why", "ads", "-n", "all"], "expected a whole number of lines, or 0 for all, got 'all'."),
        (
            ["train", *NEEDED, "--resume"],
            "--resume does not say which job to resume\nHint: give the --job-dir or --job-name",
        ),
        (
            ["train", "-f", "a.yaml"],
            (
                "a.yaml: expected keys and values, got text\nHint: -f takes a YAML file with lines"
                " such as"
            ),
        ),
    ],
)
def test_other_wrong_words_say_what_is_expected(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("x,y\n")
    assert run(arguments) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"], "nothing half-made is left"


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "-A"],
        ["train", *NEEDED, "--image-name", "i"],
        ["check", *NEEDED, "--image-name", "i"],
    ],
)
def test_where_no_cluster_is_set_up_it_is_said_and_what_to_do(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert run(arguments) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        f"Error: no cluster is set up here (there is no {tmp_path}/none)\nHint: name your"
        " kubeconfig"
    )


def test_help_is_a_word_too(capsys: pytest.CaptureFixture[str]) -> None:
    for words, flags in ((["help"], ["--help"]), (["help", "stop"], ["stop", "--help"])):
        assert run(words) == 0
        text = capsys.readouterr().out
        assert run(flags) == 0
        assert text.split() == capsys.readouterr().out.split() and "Usage" in text


@pytest.mark.parametrize("action", list(Action))
def test_a_verb_has_no_flag_that_it_does_not_use(
    action: Action, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([action, "--help"]) == 0
    text = capsys.readouterr().out
    for name in (name for name in FIELDS if not is_used(name, action)):
        assert f"{flag(name)} " not in text
        value = [text for text in (OTHERS.get(name, ("9", 9))[0],) if text]
        assert run([action, flag(name), *value]) == 2
        errors = capsys.readouterr().err
        assert (
            f"`elasticdl {action}` does not accept {flag(name)}\nHint: remove it; only"
            " `elasticdl " in errors
        )
        assert run(["check", "--for", str(action), flag(name), *value]) == 2
        assert capsys.readouterr().err == errors, "check says the same"
        with pytest.raises(SpecError, match=f"does not accept {flag(name)}"):
            start(action, {name: OTHERS.get(name, ("9", 9))[1]})
    of_file: dict[str, Any] = {
        "model_zoo": "z",
        "model_def": "m",
        "training_data": "t",
        "validation_data": "v",
        "prediction_data": "p",
    }
    of_file |= {
        "checkpoint_dir_for_init": "c",
        "output": "o",
        "num_epochs": 3,
        "checkpoint_steps": 5,
    }
    (tmp_path / "job.yaml").write_text(as_yaml(of_file))
    assert run([action, "-f", str(tmp_path / "job.yaml"), "--dry-run"]) == 0, (
        "a file may be for all verbs"
    )


NOT_OF_RINGS: tuple[str, ...] = (
    "wire_precision",
    "max_staleness",
    "max_nonfinite_steps",
    "embedding_threshold_bytes",
)
NOT_OF_RINGS += ("grads_to_wait", "backup_workers", "export_seconds")
NOT_OF_RINGS += ("ps_resource_request", "ps_resource_limit", "ps_pod_priority")


@pytest.mark.parametrize("name", NOT_OF_RINGS)
def test_what_a_ring_does_not_use_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = {
        "ps_resource_request": "cpu=1",
        "ps_resource_limit": "memory=1Gi",
        "wire_precision": "bfloat16",
    }.get(name, "4")
    assert (
        run(
            [
                "train",
                *NEEDED,
                "--distribution-strategy",
                "AllreduceStrategy",
                flag(name),
                value,
                "--dry-run",
            ]
        )
        == 2
    )
    assert f"{flag(name)} with --distribution-strategy AllreduceStrategy" in capsys.readouterr().err
