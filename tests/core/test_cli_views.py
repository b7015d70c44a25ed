"""What people are shown, made from a status."""

from __future__ import annotations

import asyncio
import io
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from elasticdl.cli.jobs.event_follower import Events
from elasticdl.cli.jobs.job import JobLocation, Kind, Report
from elasticdl.cli.jobs.local_launch import LocalRun, outcome_of, refusal_of
from elasticdl.cli.verbs.list import as_row
from elasticdl.cli.verbs.status import lines
from elasticdl.cli.views import progress
from elasticdl.cli.views.documents import Format
from elasticdl.cli.views.goodput import cause_lines, goodput_line
from elasticdl.cli.views.live_view import LineView, LiveView, NoView, picture, view_for
from elasticdl.cli.views.result_output import summary, tell_end
from elasticdl.cluster.logs.log_files import LogFollower
from elasticdl.errors import PermanentError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_status import (
    NO_RECORDS,
    ClusterShare,
    Goodput,
    JobStatus,
    StepsStatus,
    TimeSpent,
    UpdateCounts,
)
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.outcome import Outcome, write_outcome
from elasticdl.master.core.state import JobState
from tests.statuses import epoch, process, receipt
from tests.waiting import until_async

pytestmark = pytest.mark.core


def job(**flags: object) -> JobSpec:
    return JobSpec.from_flags(
        Action.TRAIN, {"model_zoo": "zoo", "model_def": "iris", "training_data": "a.csv", **flags}
    )


def status(**changes: Any) -> JobStatus:
    """A status as a fresh master tells it, with changes."""
    return replace(JobState(job()).status(), **changes)


def running() -> JobStatus:
    return status(
        message="training, epoch 2 of 2",
        epoch=1,
        epochs=2,
        records=replace(NO_RECORDS, expected=200, trained=150, left=50),
        receipt=receipt(epoch(0, 100, 100), epoch(1, 100, 50)),
        records_per_s=25.0,
        loss=0.25,
        metrics={"auc": 0.9},
        gauges={"worker-0": {"staleness_mean": 1.0, "records_per_s": 25.0}},
        processes=(
            process("worker-0", shard="training shard 3"),
            process("worker-1", state="ended"),
            process("ps-0", state="starting"),
        ),
        waiting=("ps-0 is starting",),
    )


def painted(found: JobStatus, events: list[str], columns: int = 100) -> str:
    console = Console(file=io.StringIO(), width=columns, color_system=None)
    console.print(picture(found, events, columns))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def test_a_fresh_status_can_be_shown_in_every_form() -> None:
    assert "checking the model and the data" in progress.head(status())
    assert "checking the model and the data" in painted(status(), [])
    assert status().eta_s is None


def test_a_model_that_was_trained_before_is_not_said_to_have_version_0() -> None:
    early = replace(running(), action="evaluate")
    assert "version" not in progress.head(early) and "version" not in painted(early, [])
    assert "version 7" in progress.head(replace(early, version=7))
    assert "version 7" in painted(replace(early, version=7), [])


def test_the_picture_has_progress_rate_eta_measures_processes_waits_and_events() -> None:
    shown = painted(running(), ["worker-1 ended by SIGKILL [infrastructure]"])
    for words in (
        "training, epoch 2 of 2", "75 %  150 of 200", "50 %  50 of 100", "ETA 2 s", "25 records/s",
        "loss 0.25", "auc 0.9", "staleness 1", "training shard 3", "starting",
        "waiting: ps-0 is starting", "[infrastructure]",
    ):  # fmt: skip
        assert words in shown, words
    assert "worker-1  " not in shown, "ended processes are history"


def test_the_limit_of_staleness_comes_with_its_reason() -> None:
    gauges = {"worker-0": {"staleness_limit": 0.0}, "ps-0": {"staleness_mean": 1.0}}
    assert "step" not in "".join(progress.measures(replace(running(), gauges=gauges)))
    gauges = {
        "worker-0": {"staleness_limit": 0.0, "exchange_share": 0.2},
        "worker-1": {"staleness_limit": 1.0, "exchange_share": 0.4},
    }
    assert (
        "steps begin before a worker's last update is applied (pull and push take 30 % of a step)"
        in progress.measures(replace(running(), gauges=gauges))
    )
    gauges = {"worker-0": {"staleness_limit": 4.0}}
    assert "steps begin before a worker's last 4 updates are applied" in progress.measures(
        replace(running(), gauges=gauges)
    )


def test_many_processes_are_cut_and_counted() -> None:
    shown = painted(status(processes=tuple(process(f"worker-{index}") for index in range(40))), [])
    assert "worker-15" in shown and "worker-16" not in shown and "and 24 more" in shown


def test_lines_come_with_each_event_and_with_progress_now_and_then() -> None:
    stream = io.StringIO()
    view = LineView(stream, every_s=0.0)
    view.show(running(), [{"text": "worker-1 ended by SIGKILL", "cause": "infrastructure"}])
    view.show(None, [])
    assert stream.getvalue().splitlines() == [
        "worker-1 ended by SIGKILL [infrastructure]",
        (
            "training, epoch 2 of 2, 150/200 records (75 %), 25/s, ETA 2 s, version 0, 1/1 worker,"
            " training loss 0.25, validation auc 0.9, staleness 1"
        ),
    ]


def test_a_line_of_progress_that_stays_the_same_says_for_how_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, now_s = io.StringIO(), iter((100.0, 100.0, 110.0, 110.0, 120.0, 120.0))
    monkeypatch.setattr("time.monotonic", lambda: next(now_s))
    view = LineView(stream, every_s=0.0)
    for message in ("checking", "checking", "training"):
        view.show(status(message=message), [])
    assert stream.getvalue().splitlines() == ["checking", "checking, for 10 s", "training"]


def test_text_from_the_job_cannot_play_tricks_with_a_terminal() -> None:
    nasty = "\x1b[2Jgone\x07\u202e"
    assert "\x1b" not in progress.event_line({"text": nasty, "cause": ""})
    assert "\x1b" not in painted(
        status(waiting=(nasty,), processes=(process("worker-0", message=nasty),)), []
    )


def test_a_growing_file_is_read_once_and_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = Events(path, from_end=False)
    assert events.read() == []
    path.write_text('{"text": "a"}\n{"text"')
    assert events.read() == [{"text": "a"}]
    with path.open("a") as file:
        file.write(': "b"}\nnot json\n[1]\n{"text": "c"}\n')
    assert events.read() == [{"text": "b"}, {"text": "c"}]
    assert Events(path, from_end=True).read() == []
    assert LogFollower(path).read(limit_bytes=5) == b'{"tex'


def left(tmp_path: Path, code: int, output: str = "") -> JobDirectory:
    directory = JobDirectory(tmp_path)
    total = {"expected": 2, "trained": 2, "repeated": 0, "bad": 0, "lost": 0, "left": 0}
    outcome = Outcome(
        code,
        "m",
        hint="h",
        receipt={"epochs": [], "total": total},
        metrics={"auc": 0.9},
        loss=0.25,
        output=output,
        action="train",
    )
    write_outcome(directory, outcome, running())
    return directory


def test_a_done_job_has_its_results(tmp_path: Path) -> None:
    outcome = outcome_of(left(tmp_path, 0, output="out"), 0, interrupted=False)
    assert outcome.error() is None
    assert summary(outcome) == [
        "records  expected 2  trained 2  repeated 0  lost 0",
        "metrics  training loss 0.25  validation auc 0.9",
        "output   out",
        f"job      {tmp_path}",
    ]


def test_the_goodput_and_the_longest_causes_of_the_rest_are_shown() -> None:
    account = Goodput(
        200.0,
        0.6125,
        (
            TimeSpent("compute", "step", 122.5, "worker-0", 80.0),
            TimeSpent("pull", "servers_away", 50.0, "worker-1", 50.0),
            TimeSpent("pull", "servers", 20.0, "worker-0", 15.0),
            TimeSpent("lost", "out_of_memory", 6.5, None, None),
            TimeSpent("idle", "between", 1.0, "worker-0", 1.0),
        ),
    )
    line = "61.3 % of 3 min of all workers; pull 35.0 %, lost 3.2 %"
    assert goodput_line(account) == line
    assert cause_lines(account) == [
        "pull, servers away: 50 s, 25.0 %, worker-1 50 s of it",
        "pull, servers: 20 s, 10.0 %, worker-0 15 s of it",
        "lost, out of memory: 6.5 s, 3.2 %",
    ]
    short = replace(account, seconds=24.0)
    assert goodput_line(short) == (
        "61.3 % of 24 s of all workers;"
        " the job is too short to judge by: much of it is start and end"
    )
    counted = replace(receipt(expected=2, trained=2), goodput=account).to_json()
    outcome = Outcome(0, "done", "/jobs/ads", receipt=counted)
    assert f"goodput  {line}" in summary(outcome)


def test_servers_come_before_workers_and_a_restarted_one_in_its_place() -> None:
    names = ("ps-0", "ps-10", "ps-2", "worker-0", "worker-10", "worker-2", "ps-0.1")
    found = status(processes=tuple(process(name) for name in names))
    report = Report("job", JobLocation(Kind.LOCAL), "running", 1.0, found, None, "", "")
    shown = [line.split()[0] for line in lines(report)]
    ordered = ["ps-0", "ps-0.1", "ps-2", "ps-10", "worker-0", "worker-2", "worker-10"]
    assert [name for name in shown if name in names] == ordered
    assert [row.name for row in progress.processes(found)] == ordered


def test_the_third_interrupt_kills_a_master_that_the_second_has_not_ended(tmp_path: Path) -> None:
    class Supervisor:
        def __init__(self) -> None:
            self.heard: list[str] = []
            self.ended = asyncio.Event()

        async def stop(self, grace_s: float) -> None:
            self.heard.append("stop")

        async def end(self) -> None:
            self.heard.append("end")
            await self.ended.wait()

        async def close(self) -> None:
            self.heard.append("close")
            self.ended.set()

    async def interrupted() -> list[str]:
        supervisor: Any = Supervisor()
        run = LocalRun(job(), JobDirectory(tmp_path), NoView())
        run._supervisor = supervisor
        for heard in ("stop", "end", "close", "close"):
            run.interrupt("Ctrl-C")
            await until_async("it is heard", partial(supervisor.heard.count, heard))
        await asyncio.gather(*run._side_tasks)
        return supervisor.heard

    assert asyncio.run(interrupted()) == ["stop", "end", "close"]


def test_a_job_that_was_done_before_the_interrupt_reached_it_is_done(tmp_path: Path) -> None:
    assert outcome_of(left(tmp_path, 0), 0, interrupted=True).exit_code == 0


def test_an_interrupted_job_says_how_to_continue_only_if_it_can(tmp_path: Path) -> None:
    directory = left(tmp_path, 130)
    assert "no checkpoint exists" in outcome_of(directory, 130, interrupted=True).hint
    (directory.checkpoints / "version-3").mkdir(parents=True)
    assert "no checkpoint exists" in outcome_of(directory, 130, interrupted=True).hint, (
        "one without a manifest is none"
    )
    (directory.checkpoints / "version-3/manifest.json").touch()
    hint = outcome_of(directory, 130, interrupted=True).hint
    assert hint.startswith("resume with: ") and hint.endswith(
        f"elasticdl train -f {tmp_path}/job.yaml --job-dir {tmp_path} --resume"
    )


def test_a_resumed_job_that_is_stopped_in_its_check_says_how_to_continue(tmp_path: Path) -> None:
    directory = left(tmp_path, 130)
    outcome = outcome_of(directory, 130, interrupted=True)
    stopped = refusal_of(directory, outcome)
    assert stopped is not None and not stopped.hint, "a new job leaves nothing"
    (directory.checkpoints / "version-3").mkdir(parents=True)
    (directory.checkpoints / "version-3/manifest.json").touch()
    directory.spec.write_text(job().replace(resume=True).model_dump_json())
    stopped = refusal_of(directory, outcome)
    assert stopped is not None and stopped.hint.startswith("resume with: ")


def test_a_master_that_left_its_word_and_was_then_killed_by_the_second_signal_was_stopped(
    tmp_path: Path,
) -> None:
    outcome = outcome_of(left(tmp_path, 130), -15, interrupted=False)
    assert outcome.exit_code == 130
    assert "no checkpoint exists" in outcome.hint and "--resume" not in outcome.hint


@pytest.mark.parametrize(
    ("action", "word"),
    [(Action.TRAIN, "trained"), (Action.EVALUATE, "evaluated"), (Action.PREDICT, "predicted")],
)
def test_a_receipt_says_what_was_done_with_the_records(
    tmp_path: Path, action: Action, word: str
) -> None:
    outcome = replace(outcome_of(left(tmp_path, 0), 0, interrupted=False), action=action)
    assert summary(outcome)[0] == f"records  expected 2  {word} 2  repeated 0  lost 0"


@pytest.mark.parametrize(("repeated", "words"), [(0, "repeated 0"), (2, "repeated at least 2")])
def test_a_lower_bound_of_nothing_is_no_bound(repeated: int, words: str) -> None:
    counts = replace(receipt(expected=9, trained=9), repeated_at_least=True)
    counts = replace(counts, total=replace(counts.total, repeated=repeated))
    assert words in summary(Outcome(0, "", "j", receipt=counts.to_json()))[0]


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        (UpdateCounts(20, 0, 0, at_least=False), "applied 20  lost 0"),
        (UpdateCounts(20, 0, 0, at_least=True), "applied 20  lost 0"),
        (UpdateCounts(20, 4, 0, at_least=False), "applied 20  lost 4"),
        (UpdateCounts(9, 4, 7, at_least=True), "applied 9  lost at least 4  repeated at least 7"),
    ],
)
def test_a_receipt_says_what_became_of_updates(
    tmp_path: Path, updates: UpdateCounts, words: str
) -> None:
    outcome = outcome_of(left(tmp_path, 0), 0, interrupted=False)
    outcome = replace(outcome, receipt={**outcome.receipt, "updates": asdict(updates)})
    assert summary(outcome)[1] == f"updates  {words}"


def test_an_end_is_not_said_twice(capsys: pytest.CaptureFixture[str]) -> None:
    tell_end(Outcome(130, "stopped: Ctrl-C", "/jobs/a"), Format.TABLE)
    assert capsys.readouterr().err == "Stopped: Ctrl-C\n"


@pytest.mark.parametrize("code", [-9, 0, 1])
def test_a_supervisor_that_left_no_word_never_counts_as_done(tmp_path: Path, code: int) -> None:
    outcome = outcome_of(JobDirectory(tmp_path), code, interrupted=False)
    assert outcome.exit_code == 1
    error = outcome.error()
    assert (
        isinstance(error, PermanentError)
        and "without recording an outcome" in error.message
        and "master-0.log" in error.hint
    )
    assert "no space" not in error.message


def test_a_supervisor_that_left_no_word_on_a_full_disk_is_reported_with_the_cause() -> None:
    outcome = outcome_of(JobDirectory(Path("/proc/self")), 1, interrupted=False)  # It has 0 bytes.
    assert outcome.message.endswith("; no space is left for /proc/self")


def test_a_master_that_was_killed_leaves_a_job_that_can_continue(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path)
    (directory.checkpoints / "version-3").mkdir(parents=True)
    (directory.checkpoints / "version-3/manifest.json").touch()
    outcome = outcome_of(directory, -9, interrupted=False)
    assert "; resume with: " in outcome.hint
    assert outcome.hint.endswith(
        f"elasticdl train -f {tmp_path}/job.yaml --job-dir {tmp_path} --resume"
    )


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_the_picture_fits_the_terminal(columns: int) -> None:
    found = running()
    records = replace(found.records, trained=1_234_567, expected=9_999_999)
    found = replace(found, records=records)
    lines = painted(found, ["an event"], columns).splitlines()
    assert all(len(line) <= columns for line in lines)
    assert any("1,234,567 of 9,999,999" in line for line in lines)


def test_what_a_process_says_is_no_markup_and_moves_no_cursor() -> None:
    said = process("worker-0", message="cannot read [/data/a.csv] [red]\x1b[2J")
    found = replace(running(), processes=(said,), message="waits\x1b[2J")
    text = painted(found, [], 120)
    assert "cannot read [/data/a.csv] [red]" in text and "\x1b" not in text


def test_no_picture_is_painted_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    for name, value, painted_over in (
        ("TERM", "xterm", True),
        ("TERM", "dumb", False),
        ("NO_COLOR", "1", False),
    ):
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv(name, value)
        view = view_for()
        view.close()
        assert isinstance(view, LiveView) is painted_over, (name, value)


@pytest.mark.parametrize(
    ("share", "told"),
    [
        (
            ClusterShare(3, 7, 2, 20, 2, 3),
            "share: 7 of 2:20 workers have a node, 2 guaranteed, the last on rung 3, weight 3",
        ),
        (ClusterShare(1, 1, 4, 4, 1, None), "share: 1 of 4 workers have a node, 1 guaranteed"),
        (ClusterShare(1, 0, 4, 4, None, None), "share: 0 of 4 workers have a node, without"),
    ],
)
def test_a_job_on_a_cluster_shows_what_it_has_of_it(share: ClusterShare, told: str) -> None:
    place = JobLocation(Kind.KUBERNETES, namespace="team")
    report = Report("ads", place, "running", 1.0, status(cluster_share=share), None, "")
    assert [line for line in lines(report) if line.startswith(told)]


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (StepsStatus(True, "few steps"), "steps: synchronous: few steps"),
        (StepsStatus(False, ""), "steps: asynchronous"),
    ],
)
def test_a_status_says_how_the_workers_train_and_why(steps: StepsStatus, told: str) -> None:
    report = Report("ads", JobLocation(Kind.LOCAL), "running", 1.0, status(steps=steps))
    assert told in lines(report)
    assert as_row(report)["steps"] == {"sync": steps.sync, "reason": steps.reason}


def test_the_end_of_a_process_is_reported_once() -> None:
    ended = partial(process, state="ended", cause="finished")
    rows = (ended("worker-0", message="finished"), ended("ps-0", message="its parameters moved"))
    place = JobLocation(Kind.LOCAL, job_dir="/jobs/ads")
    shown = lines(Report("ads", place, "done", 1.0, status(processes=rows), 0, "done"))
    ends = [line.partition("finished")[2].strip() for line in shown if "-0 " in line]
    assert ends == ["its parameters moved", ""]


def test_summary_and_status_say_why_records_are_left_where_the_end_does_not() -> None:
    why = "training ended early: 16 steps are done"
    left = receipt(expected=100, trained=40, why_left=why)
    assert (
        summary(Outcome(0, "done", "/jobs/ads", receipt=left.to_json()))[1]
        == f"left     60 records: {why}"
    )
    for end in (why, f"{why}, and ended at once"):
        assert summary(Outcome(1, end, "/j", receipt=left.to_json()))[1] == "job      /j"
    place = JobLocation(Kind.LOCAL, job_dir="/jobs/ads")
    early = replace(left, counted="some seconds before its master was killed")
    assert "counted: some seconds before its master was killed" in lines(
        Report("ads", place, "failed", 1.0, status(receipt=early), 1, why)
    )
    assert f"left: 60 records, {why}" in lines(
        Report("ads", place, "done", 1.0, status(receipt=left), 0, "done")
    )
    assert not [
        line
        for line in lines(Report("ads", place, "failed", 1.0, status(receipt=left), 1, why))
        if "left:" in line
    ]
