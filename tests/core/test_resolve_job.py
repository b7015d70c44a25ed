"""Which job somebody means."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
import pytest

from elasticdl.checkpoint.layout import MANIFEST
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.cli.jobs.directory_job import DirectoryJob
from elasticdl.cli.jobs.job import JobQuery, Kind
from elasticdl.cli.jobs.local_jobs import local_jobs
from elasticdl.cli.jobs.resolve_job import resolve_job
from elasticdl.cli.main import run
from elasticdl.cli.verbs.list import as_row
from elasticdl.cli.verbs.status import lines
from elasticdl.cli.views.progress import age, ends, table
from elasticdl.cluster.kubernetes.kubeconfig import contexts, no_cluster
from elasticdl.errors import ExitCode, PermanentError, SpecError
from elasticdl.job_status import NO_RECORDS, CheckpointStatus, JobStatus, unknown_status
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.supervisor_file import SupervisorFile, write_supervisor
from tests.statuses import process
from tests.waiting import until

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the test's own, and no cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return tmp_path


def made(directory: Path, name: str = "digits", **left: object) -> Path:
    directory.mkdir(parents=True)
    (directory / "job.json").write_text(json.dumps({"cluster": {"job_name": name}}))
    if left:
        (directory / "status.json").write_text(json.dumps(left))
    return directory


def test_a_bare_name_is_a_job_in_jobs_or_a_directory(here: Path) -> None:
    made(here / "jobs" / "digits")
    made(here / "elsewhere" / "iris", name="iris")
    with resolve_job(JobQuery(job="digits")) as job:
        assert (job.name, job.place.kind, job.place.job_dir) == (
            "digits",
            Kind.LOCAL,
            str(here / "jobs" / "digits"),
        )
    with resolve_job(JobQuery(job="elsewhere/iris")) as job:
        assert job.name == "iris"
    with resolve_job(JobQuery(job_dir=str(here / "elsewhere" / "iris"))) as job:
        assert job.name == "iris"
    assert [job.name for job in local_jobs()] == ["digits"]


def test_a_job_in_a_directory_of_another_name_is_found_by_the_name_that_list_shows(
    here: Path,
) -> None:
    made(here / "jobs" / "long", name="fruit-1")
    (listed,) = local_jobs()
    with resolve_job(JobQuery(job=listed.name)) as job:
        assert job.place.job_dir == str(here / "jobs" / "long")


def test_where_it_was_looked_for_is_reported(here: Path) -> None:
    made(here / "jobs" / "digits")
    with (
        pytest.raises(
            PermanentError, match=r"there is no job in jobs/iris or iris; no cluster is set up here"
        ) as caught,
        resolve_job(JobQuery("iris")),
    ):
        pass
    assert (
        caught.value.exit_code is ExitCode.NO_SUCH_JOB
        and "in ./jobs there are digits" in caught.value.hint
    )
    with (
        pytest.raises(PermanentError, match=r"there is no job in /x/iris; no cluster"),
        resolve_job(JobQuery("/x/iris")),
    ):
        pass
    with (
        pytest.raises(PermanentError, match=r"there is no job in x/iris$") as caught,
        resolve_job(JobQuery(job_dir="x/iris")),
    ):
        pass
    assert caught.value.exit_code is ExitCode.NO_SUCH_JOB


def test_kube_contexts_are_read_from_all_files_and_what_cannot_be_read_has_none(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [
        "contexts: [{name: a}, {name: b}, {name: 3}, 7]",
        "nonsense: [",
        "[]",
        "contexts: {}",
        "contexts: [{name: b}, {name: c}]",
    ]
    files = [here / str(number) for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    (here / "none").mkdir()
    monkeypatch.setenv(
        "KUBECONFIG", os.pathsep.join(map(str, [*files, here / "none", here / "missing"]))
    )
    assert contexts() == ["a", "b", "c"]


def test_a_cluster_that_cannot_be_asked_is_reported(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "kubeconfig").write_text("nonsense: [")
    monkeypatch.setenv("KUBECONFIG", str(here / "kubeconfig"))
    assert no_cluster() is None
    words = (
        "there is no job in jobs/iris or iris, and the cluster cannot be asked: no"
        " usable Kubernetes configuration"
    )
    with pytest.raises(PermanentError, match=words) as caught, resolve_job(JobQuery("iris")):
        pass
    assert caught.value.exit_code is ExitCode.NO_SUCH_JOB


@pytest.mark.parametrize(
    "query",
    [
        JobQuery(),
        JobQuery(namespace="ns"),
        JobQuery("digits", job_dir="jobs/digits", namespace="ns"),
    ],
)
def test_what_names_no_job_or_two_is_bad_usage(query: JobQuery) -> None:
    with pytest.raises(click.UsageError), resolve_job(query):
        pass


@pytest.mark.parametrize("length", [4000, 100_000])
@pytest.mark.parametrize(
    "words",
    [
        ["status", "{}"],
        ["status", "--job-dir", "{}"],
        ["stop", "--yes", "{}"],
        ["checkpoints", "list", "{}"],
        ["logs", "--job-dir", "{}", "worker-0"],
    ],
)
def test_no_error_shows_a_name_of_any_length(
    words: list[str], length: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([word.format("a" * length) for word in words]) != 0
    assert len(capsys.readouterr().err) < 1500


def test_a_command_without_a_job_says_which_there_are(here: Path) -> None:
    made(here / "jobs" / "digits")
    with pytest.raises(click.UsageError, match=r"\. In \./jobs there are digits;"):
        resolve_job(JobQuery()).__enter__()
    with pytest.raises(click.UsageError, match="`elasticdl list` shows all") as caught:
        resolve_job(JobQuery(namespace="ns")).__enter__()
    assert "digits" not in caught.value.message


def test_a_command_without_a_job_says_how_many_more_there_are(here: Path) -> None:
    for number in range(10):
        made(here / "jobs" / f"job-{number}")
    with pytest.raises(click.UsageError, match="job-6, job-7 and 2 more; `elasticdl list` shows"):
        resolve_job(JobQuery()).__enter__()


def test_a_job_that_has_ended_answers_from_what_it_left(here: Path) -> None:
    job = DirectoryJob(
        JobDirectory(
            made(
                here / "j",
                exit_code=130,
                message="stopped: enough",
                hint="resume it",
                status=replace(unknown_status(""), version=7).to_json(),
            )
        )
    )
    outcome, report = job.outcome(), job.report()
    assert outcome is not None and (outcome.exit_code, outcome.message) == (130, "stopped: enough")
    assert (report.state, report.as_dict()["version"], report.as_dict()["exit_code"]) == (
        "stopped",
        7,
        130,
    )
    assert "no checkpoint exists" in report.hint
    assert as_row(report)["records"] == {"trained": 0, "expected": 0}


def test_a_job_that_failed_before_it_began_has_a_status_too(here: Path) -> None:
    report = DirectoryJob(
        JobDirectory(made(here / "j", exit_code=2, message="no such model", hint="", status=None))
    ).report()
    assert (report.state, report.as_dict()["message"], report.as_dict()["processes"]) == (
        "failed",
        "no such model",
        [],
    )


def aged(directory: Path, age_s: float) -> None:
    """Nothing has been written there for so long."""
    then_s = time.time() - age_s
    for path in (*directory.iterdir(), directory):
        os.utime(path, (then_s, then_s))


def test_a_young_job_without_a_master_is_starting_and_an_old_one_was_killed(here: Path) -> None:
    directory = made(here / "j")
    job = DirectoryJob(JobDirectory(directory))
    assert job.outcome() is None and job.report().state == "waiting"
    aged(directory, 3600.0)
    outcome = job.outcome()
    assert outcome is not None and outcome.exit_code == 1 and "was killed" in outcome.message


def test_status_names_the_process_of_a_local_master(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectoryJob, "status", lambda _: unknown_status("trains"))
    directory = made(here / "j")
    environment = {**os.environ, "ELASTICDL_JOB_DIR": str(directory)}
    with subprocess.Popen(["sleep", "60"], env=environment) as process:
        try:
            # For a moment after the exec the kernel shows no environment.
            until("it has its environment", Path(f"/proc/{process.pid}/environ").read_bytes)
            address = {"address": "127.0.0.1:1", "pid": process.pid, "term": 1, "token": "secret"}
            (directory / "master.json").write_text(json.dumps(address))
            shown = lines(DirectoryJob(JobDirectory(directory)).report())
        finally:
            process.kill()
    assert any(line.split() == ["master-0", "ready", "pid", str(process.pid)] for line in shown)
    assert "pid" not in "".join(lines(DirectoryJob(JobDirectory(directory)).report()))


def test_what_was_known_of_a_killed_job_is_read_once(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two readings one might find the file gone: the status was then empty and the outcome was
    not.
    """
    directory, readings = made(here / "j"), []
    job = DirectoryJob(JobDirectory(directory))

    def once(directory: JobDirectory, message: str, exit_code: int) -> JobStatus | None:
        readings.append(directory)
        return replace(unknown_status(""), version=7) if len(readings) == 1 else None

    aged(directory, 3600.0)
    monkeypatch.setattr("elasticdl.jobdir.job_end.status_when_killed", once)
    found = job.report()
    assert (found.state, found.as_dict()["version"], len(readings)) == ("failed", 7, 1)


def checkpointed(directory: JobDirectory, *versions: int) -> None:
    for version in versions:
        manifest = Manifest(version=version, servers=1, parameters=None, files=())
        (directory.checkpoints / f"version-{version}").mkdir(parents=True)
        path = directory.checkpoints / f"version-{version}" / MANIFEST
        path.write_text(manifest.model_dump_json())


def test_the_newest_checkpoint_of_a_killed_job_is_the_one_on_disk(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = JobDirectory(made(here / "j"))
    saved = CheckpointStatus(5, str(directory.checkpoints / "version-5"), 10, 1.0)
    counts = replace(NO_RECORDS, expected=100, trained=40)
    known = replace(unknown_status(""), at_s=8.0, version=6, records=counts, checkpoints=(saved,))
    monkeypatch.setattr("elasticdl.jobdir.job_end.status_when_killed", lambda *_: known)
    began = {"seq": 0, "at": time.time() - 3620.0, "at_s": 0.0, "kind": "job", "text": ""}
    directory.events.write_text(json.dumps(began) + "\n")
    checkpointed(directory, 5, 9)
    (directory.checkpoints / "version-12").mkdir()
    aged(directory.path, 3600.0)
    aged(directory.checkpoints, 3600.0)
    report = DirectoryJob(directory).report()
    status, newest = report.status, directory.checkpoints / "version-9"
    assert [checkpoint.version for checkpoint in status.checkpoints] == [5, 9]
    assert status.checkpoints[-1].path == str(newest)
    assert status.version == 6, "version and counts are of one moment"
    assert lines(report)[-1] == f"checkpoint: version 9, {newest} (taken 12 s after these counts)"
    for later in (replace(status, version=9), replace(status, at_s=3600.0)):
        assert lines(replace(report, status=later))[-1].endswith("/version-9")


def test_a_job_that_was_done_before_it_was_resumed_has_the_checkpoint_of_then(here: Path) -> None:
    directory = JobDirectory(made(here / "j"))
    checkpointed(directory, 9)
    left = {"exit_code": 0, "message": "done", "hint": "", "status": unknown_status("").to_json()}
    directory.status.write_text(json.dumps(left))
    aged(directory.path, 3600.0)
    (found,) = DirectoryJob(directory).report().status.checkpoints
    assert found.version == 9


def test_a_young_job_that_has_come_to_its_receipt_is_not_starting_any_more(here: Path) -> None:
    """Its master was killed between its last two files: whoever waits for the job would wait for
    ever.
    """
    directory = made(here / "j")
    job, receipt = DirectoryJob(JobDirectory(directory)), directory / "receipt.json"
    aged(directory, 20.0)
    receipt.write_text("{}")
    os.utime(directory, (time.time() - 15.0, time.time() - 15.0))
    outcome = job.outcome()
    assert outcome is not None and outcome.exit_code == 1 and "was killed" in outcome.message
    os.utime(receipt, (time.time() - 30.0, time.time() - 30.0))
    assert job.outcome() is None, "that receipt is of the run before"


def test_a_master_that_takes_its_address_away_first_is_not_taken_for_killed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = made(here / "j")
    os.utime(directory / "job.json", (0, 0))

    def leaves_its_word(_seconds: float) -> None:
        (directory / "status.json").write_text(
            json.dumps({"exit_code": 0, "message": "done", "hint": ""})
        )

    monkeypatch.setattr(time, "sleep", leaves_its_word)
    outcome = DirectoryJob(JobDirectory(directory)).outcome()
    assert outcome is not None and (outcome.exit_code, outcome.message) == (0, "done")


def test_what_ended_since_the_last_look_is_announced_once() -> None:
    def status(*states: str) -> JobStatus:
        rows = tuple(
            process(f"worker-{i}", state, cause="preempted", message="preempted")
            for i, state in enumerate(states)
        )
        return replace(unknown_status(""), processes=rows)

    assert ends(None, status("ended")) == []
    (event,) = ends(status("ready", "ended"), status("ended", "ended", "ready"))
    assert event == {"text": "worker-0: preempted", "cause": "preempted", "level": "warning"}


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0s"), (119, "119s"), (121, "2m"), (7300, "2h"), (200_000, "2d")]
)
def test_ages_are_short(seconds: float, words: str) -> None:
    assert age(seconds) == words


def test_columns_stand_below_each_other() -> None:
    assert table([("A", "B"), ("long", "x y"), ("", "")]) == ["A     B", "long  x y", ""]


def test_of_two_jobs_of_one_name_none_is_taken_for_the_other(here: Path) -> None:
    made(here / "jobs" / "one", name="ads")
    made(here / "jobs" / "two", name="ads")
    with (
        pytest.raises(SpecError, match="there are 2 jobs ads, in jobs/one and jobs/two") as caught,
        resolve_job(JobQuery("ads")),
    ):
        pass
    assert caught.value.hint == "choose one, for example --job-dir jobs/one"
    made(here / "jobs" / "ads", name="ads")
    with resolve_job(JobQuery("ads")) as job:
        assert job.place.job_dir == str(here / "jobs" / "ads"), (
            "the directory of that name is meant"
        )


def test_a_name_that_no_directory_could_have_is_no_job(here: Path) -> None:
    with (
        pytest.raises(PermanentError, match="there is no job in") as caught,
        resolve_job(JobQuery("n" * 300)),
    ):
        pass
    assert caught.value.exit_code is ExitCode.NO_SUCH_JOB


def test_a_process_that_got_the_number_of_a_dead_master_is_not_taken_for_it(here: Path) -> None:
    directory = made(here / "j")
    (directory / "master.json").write_text(
        json.dumps({"pid": os.getpid(), "token": "t", "address": "127.0.0.1:1", "page": ""})
    )
    job = DirectoryJob(JobDirectory(directory))
    outcome = job.outcome()
    assert outcome is not None and "was killed" in outcome.message
    with pytest.raises(PermanentError, match="was killed"):
        job.end("would kill ourselves")


def test_a_job_that_runs_on_a_cluster_and_whose_volume_is_seen_here_is_asked_there(
    here: Path,
) -> None:
    directory = made(here / "j")
    (directory / "master.json").write_text(
        json.dumps({"pid": 7, "address": "10.0.0.1:1", "page": ""})
    )
    (directory / "kubernetes.json").write_text(
        json.dumps({"namespace": "team", "job": "digits", "uid": "u"})
    )
    job = DirectoryJob(JobDirectory(directory))
    assert job.outcome() is None and job.report().state == "running"
    with pytest.raises(PermanentError, match="runs on a cluster") as caught:
        job.scale(1, 2)
    assert caught.value.hint == "run `elasticdl status digits --namespace team`"


@pytest.mark.parametrize("asked", ["1:2", "0", "many", "-1"])
def test_scale_takes_one_number_of_servers(
    here: Path, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made(here / "jobs" / "j")
    assert run(["scale", "digits", f"--num-ps-pods={asked}"]) == ExitCode.USAGE
    assert "invalid number of parameter servers" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [("scale", "--num-workers", "2"), ("checkpoint",), ("dashboard",)])
def test_a_job_that_has_ended_cannot_be_told_anything(
    verb: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(here / "jobs" / "digits", exit_code=0, message="done", hint="", status=None)
    assert run([verb[0], "digits", *verb[1:]]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (
        captured.err
        == f"Error: job digits in {here}/jobs/digits has ended\nHint: see `elasticdl status"
        " digits`\n"
    )


def test_to_stop_a_job_that_has_ended_is_no_error(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(here / "jobs" / "digits", exit_code=1, message="m", hint="", status=None)
    assert run(["stop", "digits"]) == 0
    assert capsys.readouterr().err == f"job digits in {here}/jobs/digits has ended already\n"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """With what reasons a master was asked to stop."""
    asked = list[str]()

    class Master:
        def status(self) -> JobStatus:
            return unknown_status("")

        def stop(self, reason: str) -> None:
            asked.append(reason)

    @contextmanager
    def master(_: DirectoryJob, restart_s: float = 0.0) -> Iterator[Master]:
        yield Master()

    monkeypatch.setattr(DirectoryJob, "_master", master)
    return asked


@pytest.mark.parametrize("flags", [(), ("--reason", "enough")])
def test_a_stop_names_the_command_unless_a_person_gives_the_reason(
    here: Path, asked: list[str], flags: tuple[str, ...]
) -> None:
    made(here / "jobs" / "digits")
    assert run(["stop", "digits", "--yes", *flags]) == 0
    assert asked == [flags[-1] if flags else "`elasticdl stop`"]


@pytest.mark.parametrize(
    ("action", "versions", "kept"),
    [
        ("train", (), "; it has no checkpoint"),
        ("train", (5, 9), "; its newest checkpoint is version-9"),
        ("evaluate", (), ""),
    ],
)
def test_a_stop_at_once_says_so_and_what_a_resume_continues_from(
    here: Path,
    asked: list[str],
    capsys: pytest.CaptureFixture[str],
    action: str,
    versions: tuple[int, ...],
    kept: str,
) -> None:
    """It said that there is no last checkpoint, even if one was just saved."""
    directory = JobDirectory(made(here / "jobs" / "digits"))
    spec = {"action": action, "cluster": {"job_name": "digits"}}
    directory.spec.write_text(json.dumps(spec))
    checkpointed(directory, *versions)
    environment = {**os.environ, "ELASTICDL_JOB_DIR": str(directory.path)}
    with subprocess.Popen(["sleep", "60"], env=environment) as process:
        until("it has its environment", Path(f"/proc/{process.pid}/environ").read_bytes)
        write_supervisor(directory, SupervisorFile(process.pid))
        assert run(["stop", "digits", "--yes", "--now"]) == 0
    assert asked == ["`elasticdl stop --now`"]
    assert capsys.readouterr().err.endswith(f"ended at once{kept}\n")


def test_logs_are_listed_as_data_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = made(here / "jobs" / "digits", exit_code=0, message="m", hint="", status=None)
    (directory / "logs").mkdir()
    (directory / "logs" / "worker-0.log").write_text("x" * 2000)
    assert run(["logs", "digits", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"process": "worker-0", "what": "2,000 bytes"}]
    assert run(["logs", "digits", "worker-0", "-o", "json"]) == 2


def test_list_says_directories_from_here(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(here / "jobs" / "digits", exit_code=0, message="done", hint="", status=None)
    assert run(["list"]) == 0
    _head, row = capsys.readouterr().out.splitlines()
    assert row.split()[:3] == ["digits", "jobs/digits", "done"]
