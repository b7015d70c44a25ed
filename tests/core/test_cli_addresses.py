"""Addresses in flags: where they are accepted, and where a path is expected."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from elasticdl.cli.main import elasticdl, run
from elasticdl.errors import SpecError
from elasticdl.flag import DATA, DIRECTORY, PLACE, Value, mark
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_flags import FIELDS, is_used
from elasticdl.job_problems import flag_of as flag

pytestmark = pytest.mark.core
NEEDED = ["--model-zoo", "zoo", "--model-def", "iris", "--training-data", "a.csv"]
ADDRESS = "s3://bucket/there"


def commands(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield (*names, name), command


OF_DATA = {name for name, field in FIELDS.items() if mark(field, Value) == DATA} | {"file"}
PATHS = [
    (words, parameter)
    for words, command in commands(elasticdl)
    for parameter in command.params
    if isinstance(parameter.type, click.Path) and parameter.name not in OF_DATA
]


@pytest.mark.parametrize(
    ("words", "parameter"),
    PATHS,
    ids=[" ".join((*words, str(parameter.name))) for words, parameter in PATHS],
)
def test_an_address_is_refused_where_a_path_is_expected(
    words: tuple[str, ...],
    parameter: click.Parameter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    option = isinstance(parameter, click.Option)
    given = [parameter.opts[0], ADDRESS] if option else [ADDRESS]
    needed = NEEDED if words[0] in (*Action, "check") else []
    assert run([*words, *needed, *given, *(["job"] if option and not needed else [])]) == 2
    told = capsys.readouterr().err
    assert "is an address" in told or "does not accept" in told
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "name", [name for name, field in FIELDS.items() if mark(field, Value) == DIRECTORY]
)
@pytest.mark.parametrize("cluster", [False, True])
def test_a_job_refuses_an_address_on_a_machine_and_on_a_cluster(name: str, cluster: bool) -> None:
    action = next(action for action in Action if is_used(name, action))
    with pytest.raises(SpecError, match=f"{flag(name)}: .* is an address"):
        JobSpec.from_flags(
            action,
            {
                "model_zoo": "zoo",
                "model_def": "iris",
                "training_data": "s3://only/custom_data_reader/knows",
                **({"image_name": "i"} if cluster else {}),
                name: ADDRESS,
            },
        )


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("https://user:do-not-show@host/x.csv", "contains a password, key or signature"),
        ("https://host/x.csv?X-Amz-Signature=do-not-show", "contains a password, key or signature"),
        ("memory://do-not-show/x.csv", "memory of one process"),
        ("MEMORY://x/y.csv", "memory of one process"),
    ],
)
def test_an_address_that_no_job_may_have_is_refused(address: str, words: str) -> None:
    flags = {"model_zoo": "zoo", "model_def": "iris", "training_data": address}
    with pytest.raises(SpecError, match=f"--training-data: .*{words}") as caught:
        JobSpec.from_flags(Action.TRAIN, flags)
    assert address.startswith("memory") or "do-not-show" not in str(caught.value)


def test_a_file_of_flags_has_no_secret_in_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    address = "https://host/job.yaml?X-Amz-Signature=do-not-show"
    assert run(["train", "-f", address]) == 2
    told = capsys.readouterr().err
    assert "contains a password, key or signature" in told and "do-not-show" not in told


def test_the_directory_of_a_job_on_a_cluster_is_a_path() -> None:
    flags = {"model_def": "iris", "training_data": "t", "image_name": "i", "job_dir": ADDRESS}
    with pytest.raises(SpecError, match=f"--job-dir {ADDRESS} with --image-name"):
        JobSpec.from_flags(Action.TRAIN, flags)


@pytest.mark.parametrize(
    "name",
    [name for name, field in FIELDS.items() if mark(field, Value) in (DIRECTORY, PLACE, DATA)],
)
@pytest.mark.parametrize("scheme", ["s3", "S3", "s3a", "gs", "gcs", "abfs", "abfss", "hdfs"])
def test_an_address_with_one_slash_is_no_path(name: str, scheme: str) -> None:
    action = next(action for action in Action if is_used(name, action))
    needed = {"model_zoo": "zoo", "model_def": "iris", "training_data": "t"}
    host = "/" if scheme == "hdfs" else ""  # Hadoop's short form is a path without a host.
    meant = f"did you mean {scheme.lower()}://{host}bucket/Key/x.csv?"
    with pytest.raises(SpecError, match=f"{flag(name)}: .*{re.escape(meant)}"):
        JobSpec.from_flags(action, {**needed, name: f"{scheme}:/bucket/Key/x.csv"})


def test_one_slash_shows_no_secret_and_other_colons_stay_paths() -> None:
    needed = {"model_zoo": "zoo", "model_def": "iris"}
    with pytest.raises(SpecError, match=r"did you mean s3://BUCKET/KEY\?") as caught:
        JobSpec.from_flags(Action.TRAIN, {**needed, "training_data": "s3:/me:do-not-show@b/x"})
    assert "do-not-show" not in str(caught.value)
    for path in ("s3:x", "./s3:/bucket/x", "data:/x", "/s3:/x"):
        spec = JobSpec.from_flags(Action.TRAIN, {**needed, "training_data": path})
        assert spec.data.training_data == path


@pytest.mark.parametrize("address", ["s3://", "s3:///", "s3://bucket/x//y"])
def test_an_address_of_a_job_has_no_empty_part(address: str) -> None:
    flags = {"model_zoo": "zoo", "model_def": "iris", "training_data": "t", "job_dir": address}
    with pytest.raises(SpecError, match="empty part"):
        JobSpec.from_flags(Action.TRAIN, flags)


def test_a_job_at_an_address_copies_its_checkpoints_there_unless_told_otherwise() -> None:
    flags = {"model_zoo": "zoo", "model_def": "iris", "training_data": "t", "job_dir": ADDRESS}
    assert JobSpec.from_flags(Action.TRAIN, flags).checkpoint_copies == f"{ADDRESS}/checkpoints"
    given = JobSpec.from_flags(Action.TRAIN, {**flags, "checkpoint_dir": "gs://other/place"})
    assert given.checkpoint_copies == "gs://other/place"
    assert "checkpoint_dir" not in JobSpec.from_flags(Action.TRAIN, flags).flags(defaults=False)


def test_predictions_may_go_to_an_address() -> None:
    flags = {
        "model_zoo": "zoo",
        "model_def": "iris",
        "prediction_data": "s3://bucket/x.csv",
        "checkpoint_dir_for_init": "checkpoints",
        "output": ADDRESS,
    }
    assert JobSpec.from_flags(Action.PREDICT, flags).checkpoint.output == ADDRESS


def test_an_export_s_address_needs_no_volume_on_a_cluster() -> None:
    flags = {"model_def": "iris", "training_data": "s3://bucket/x.csv", "image_name": "i"}
    spec = JobSpec.from_flags(Action.TRAIN, {**flags, "output": ADDRESS})
    assert spec.checkpoint.output == ADDRESS


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "PGPASSWORD"])
def test_a_secret_variable_of_the_job_is_refused_and_not_shown(name: str) -> None:
    flags = {
        "model_zoo": "zoo",
        "model_def": "iris",
        "training_data": "x.csv",
        "envs": f"AWS_REGION=r;{name}=do-not-show",
    }
    with pytest.raises(SpecError, match=f"--envs: {name} is a secret") as caught:
        JobSpec.from_flags(Action.TRAIN, flags)
    assert "do-not-show" not in str(caught.value)


def test_a_path_for_copies_of_checkpoints_is_refused() -> None:
    flags = {"model_zoo": "z", "model_def": "i", "training_data": "x", "checkpoint_dir": "/data"}
    with pytest.raises(SpecError, match="--checkpoint-dir: '/data' is a path"):
        JobSpec.from_flags(Action.TRAIN, flags)


@pytest.mark.parametrize("strategy", ["ParameterServerStrategy", "AllreduceStrategy"])
def test_a_job_on_a_cluster_keeps_its_checkpoints_at_an_address_or_copies_those_on_a_volume(
    strategy: str,
) -> None:
    flags: dict[str, object] = {"model_def": "i", "image_name": "i", "training_data": "x"}
    flags |= {"checkpoint_dir": ADDRESS, "resume": True, "distribution_strategy": strategy}
    alone = JobSpec.from_flags(Action.TRAIN, flags)
    assert (alone.checkpoints_at, alone.checkpoint_copies) == (ADDRESS, "")
    assert alone.keeps_checkpoints and alone.takes_checkpoints and not alone.shares_job_dir
    # The journal is where it is without a volume.
    assert alone.workers_hold_journal == alone.trains_on_ring
    volume = {"volume": "claim_name=c,mount_path=/data", "job_dir": "/data/job"}
    copied = JobSpec.from_flags(Action.TRAIN, {**flags, **volume})
    assert (copied.checkpoints_at, copied.checkpoint_copies) == ("", ADDRESS)
    assert copied.keeps_checkpoints and copied.shares_job_dir and not copied.workers_hold_journal


@pytest.mark.parametrize("address", ["hdfs://name:8020/iris", "sftp://host/iris"])
def test_a_store_that_truncates_before_it_writes_is_no_only_place_of_checkpoints(
    address: str,
) -> None:
    flags = {"model_def": "i", "image_name": "i", "training_data": "x", "checkpoint_dir": address}
    with pytest.raises(SpecError, match="does not replace a file in one step"):
        JobSpec.from_flags(Action.TRAIN, flags)
    volume = {"volume": "claim_name=c,mount_path=/data", "job_dir": "/data/job"}
    assert JobSpec.from_flags(Action.TRAIN, {**flags, **volume}).checkpoint_copies == address


def test_the_number_of_servers_may_change_on_a_cluster_with_a_store() -> None:
    flags: dict[str, object] = {"model_def": "i", "image_name": "i", "training_data": "x"}
    flags |= {"num_ps_pods": "1:4", "autoscale": True, "num_workers": 2}
    with pytest.raises(SpecError, match="needs a place for checkpoints") as refused:
        JobSpec.from_flags(Action.TRAIN, flags)
    assert "--checkpoint-dir" in refused.value.hint and "--volume" in refused.value.hint
    assert JobSpec.from_flags(Action.TRAIN, {**flags, "checkpoint_dir": ADDRESS}).autoscales_servers
