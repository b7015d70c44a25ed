"""Curves reach a tracker once and in order, whatever happens to file, tracker and master."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from elasticdl.errors import SpecError, TransientError
from elasticdl.history.compaction import Policy
from elasticdl.history.lines import JsonLines
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.outcome import Outcome
from elasticdl.tracking import choice, following
from elasticdl.tracking.choice import refuse_missing_package, without_password
from elasticdl.tracking.followed_file import FollowedFile, Position
from elasticdl.tracking.following import Following, FollowLimits, SavedState, follow
from elasticdl.tracking.metric_rows import metric_row
from elasticdl.tracking.run_of_job import end_of, run_of
from elasticdl.tracking.tracker import MetricRow, Run, RunEnd

pytestmark = pytest.mark.core
LIMITS = FollowLimits(look_s=0.001, longest_pause_s=0.002, end_s=60.0)
AT_ONCE = FollowLimits(look_s=0.001, longest_pause_s=0.002, end_s=0.0)
END = RunEnd(0, "done", "done")


def row(version: int, at_s: float, kind: str = "training", **values: Any) -> dict[str, Any]:
    values = values or {"loss": 0.5}
    stamp = {"at": 1.7e9 + at_s, "at_s": at_s, "version": version, "records": 10 * version}
    return {**stamp, "kind": kind, "values": values}


def write(path: Path, *rows: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def steps(rows: Sequence[MetricRow]) -> list[int]:
    return [row.step for row in rows]


def test_rows_come_once_and_a_half_written_one_later(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = FollowedFile(path, Position(), metric_row)
    assert rows.read() == []
    write(path, row(1, 1.0), row(2, 1.0, "evaluation", accuracy=0.75, odd=None))
    with path.open("a") as file:
        file.write('{"at_s": 2.0, ')
    first = rows.read()
    assert first == rows.read(), "not sent yet"
    assert first[0] == MetricRow(1, 1.7e9 + 1, {"train/loss": 0.5, "records": 10.0})
    assert first[1].values == {"validation/accuracy": 0.75, "records": 20.0}
    rows.sent()
    assert rows.read() == []
    with path.open("a") as file:
        file.write('"kind": "training", "version": 3, "values": {"loss": 1}}\n')
    assert steps(rows.read()) == [3]
    rows.sent()
    assert rows.position == Position(2.0, 1)


@pytest.mark.parametrize("sent", range(7))
def test_a_next_reader_begins_after_the_rows_that_were_sent(tmp_path: Path, sent: int) -> None:
    path = tmp_path / "metrics.jsonl"
    times = [1.0, 2.0, 2.0, 2.0, 3.0, 3.0]
    written = [row(version, at_s) for version, at_s in enumerate(times)]
    position = Position()
    for one in written[:sent]:
        position = position.after(one)
    write(path, *written)
    assert steps(FollowedFile(path, position, metric_row).read()) == list(range(sent, 6))


def test_a_file_that_is_compacted_gives_no_row_twice_and_each_new_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path, Policy(4_000, lambda one: False, sparse=True))
    rows, seen = FollowedFile(path, Position(), metric_row), []
    for version in range(400):
        lines.append(row(version, float(version // 3)))
        seen += steps(rows.read())
        rows.sent()
    lines.close()
    seen += steps(rows.read())
    assert "left out" in path.read_text() and seen == list(range(400))


def test_a_file_that_is_replaced_after_it_was_opened_gives_all_rows(tmp_path: Path) -> None:
    class ReplacedOnce(type(tmp_path)):  # type: ignore[misc]
        def open(self, *arguments: Any) -> Any:
            file = super().open(*arguments)
            if (compacted := tmp_path / "compacted").exists():
                compacted.rename(self)
            return file

    path = ReplacedOnce(tmp_path / "metrics.jsonl")
    write(tmp_path / "compacted", row(1, 1.0), row(2, 2.0), row(3, 3.0))
    with open(path, "w") as file:
        file.write(json.dumps(row(1, 1.0)) + "\n")
    rows, seen = FollowedFile(path, Position(), metric_row), []
    for _ in range(2):
        seen += steps(rows.read())
        rows.sent()
    assert seen == [1, 2, 3]


@dataclass
class Scripted:
    """A tracker that fails in the calls whose numbers are in `failing`."""

    name = "Scripted"
    failing: Callable[[int], bool] = lambda call: False
    calls: int = 0
    runs: list[Run] = field(default_factory=list)
    rows: list[MetricRow] = field(default_factory=list)
    ends: list[RunEnd] = field(default_factory=list)
    is_safe: bool = True
    left: int = 0

    def _call(self) -> None:
        self.calls += 1
        if self.failing(self.calls):
            raise TransientError(f"refused call {self.calls}")

    def open(self, run: Run) -> str:
        self._call()
        self.runs.append(run)
        return "here"

    def log(self, rows: Sequence[MetricRow]) -> bool:
        self._call()
        self.rows += rows
        return self.is_safe

    def leave(self) -> None:
        self._call()
        self.left += 1

    def close(self, end: RunEnd) -> None:
        self._call()
        self.ends.append(end)


@dataclass
class After:
    """The job's end comes after some looks; None: the master leaves then."""

    looks: int
    end: RunEnd | None
    before_look: Callable[[int], None] = lambda look: None
    look: int = 0

    def wait(self, limit_s: float) -> RunEnd | None:
        self.look += 1
        self.before_look(self.look)
        if self.look <= self.looks:
            return None
        if self.end is None:
            raise EOFError
        return self.end


def followed(
    folder: Path, tracker: Scripted, ends: After, limits: FollowLimits = LIMITS
) -> tuple[bool, list[tuple[str, str]]]:
    state = SavedState(folder / "tracker.json")
    run = Run(state.key, "job", folder, {"lr": "0.1"})
    rows = FollowedFile(folder / "metrics.jsonl", state.position, metric_row)
    said: list[tuple[str, str]] = []
    whole = follow(
        Following(tracker, run, rows, state),
        ends,
        lambda level, text: said.append((level, text)),
        limits,
    )
    return whole, said


@pytest.mark.parametrize("is_safe", [True, False])
def test_the_next_master_s_process_continues_the_run_after_the_rows_that_were_sent(
    tmp_path: Path, is_safe: bool
) -> None:
    first, second = Scripted(is_safe=is_safe), Scripted()
    write(tmp_path / "metrics.jsonl", row(1, 1.0))
    assert followed(tmp_path, first, After(2, None))[0] and first.left == 1
    write(tmp_path / "metrics.jsonl", row(2, 2.0))
    assert followed(tmp_path, second, After(0, END))[0]
    assert [run.key for run in first.runs] == [run.key for run in second.runs]
    assert (steps(first.rows), steps(second.rows), first.ends) == ([1], [2], [])
    assert second.ends == [END]


def test_an_error_of_any_kind_opens_the_run_again_and_repeats_rows_that_are_not_safe(
    tmp_path: Path,
) -> None:
    class Dies(Scripted):
        def _call(self) -> None:
            self.calls += 1
            if self.calls == 3:
                raise RuntimeError("\n")

    def before(look: int) -> None:
        write(tmp_path / "metrics.jsonl", row(look, float(look)))

    tracker = Dies(is_safe=False)
    whole, said = followed(tmp_path, tracker, After(2, END, before))
    assert whole and steps(tracker.rows) == [1, 1, 2, 3] and tracker.ends == [END]
    assert [run.key for run in tracker.runs] == [tracker.runs[0].key] * 2
    assert [text for _, text in said] == [
        "tracking this job: here",
        "Scripted: RuntimeError; the job continues, and this is tried again",
    ]


def test_a_full_disk_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def before(look: int) -> None:
        if look == 3:
            monkeypatch.undo()

    def full(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(following, "write_json", full)
    write(tmp_path / "metrics.jsonl", row(1, 1.0))
    tracker = Scripted()
    whole, said = followed(tmp_path, tracker, After(4, END, before))
    assert whole and steps(tracker.rows) == [1]
    assert [level for level, _ in said] == ["warning", "info"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("is_safe, again", [(True, [2]), (False, [1, 2])])
def test_rows_that_a_killed_process_did_not_make_safe_are_sent_again(
    tmp_path: Path, is_safe: bool, again: list[int]
) -> None:
    def killed(look: int) -> None:
        if look == 3:
            raise Killed

    write(tmp_path / "metrics.jsonl", row(1, 1.0))
    with pytest.raises(Killed):
        followed(tmp_path, Scripted(is_safe=is_safe), After(9, END, killed))
    write(tmp_path / "metrics.jsonl", row(2, 2.0))
    second = Scripted()
    assert followed(tmp_path, second, After(0, END))[0] and steps(second.rows) == again


def test_a_tracker_that_fails_at_times_gets_everything_and_people_one_warning(
    tmp_path: Path,
) -> None:
    tracker = Scripted(lambda call: call % 3 != 0 and call < 20)

    def before(look: int) -> None:
        write(tmp_path / "metrics.jsonl", row(look, float(look)))

    whole, said = followed(tmp_path, tracker, After(40, END, before))
    assert whole and steps(tracker.rows) == list(range(1, 42)) and tracker.ends == [END]
    assert [level for level, _ in said] == ["warning", "info"]


def test_a_tracker_that_is_away_is_given_up_at_the_end_of_the_job(tmp_path: Path) -> None:
    tracker = Scripted(lambda call: True)
    write(tmp_path / "metrics.jsonl", row(1, 1.0))
    whole, said = followed(tmp_path, tracker, After(5, END), AT_ONCE)
    assert not whole and [level for level, _ in said] == ["warning"]
    assert tracker.calls == 6, "one more attempt after the end"
    # Whoever resumes the job sends what is missing.
    again = Scripted()
    assert followed(tmp_path, again, After(0, END))[0] and steps(again.rows) == [1]


def test_what_is_said_has_no_password_of_an_address_in_the_environment(tmp_path: Path) -> None:
    class Talks(Scripted):
        def open(self, run: Run) -> str:
            super().open(run)
            return "run 1 at https://me:secret@host/runs"

        def _call(self) -> None:
            self.calls += 1
            if self.calls == 1:
                raise TransientError("POST https://me:secret@host/api failed.")

    _, said = followed(tmp_path, Talks(), After(9, END))
    assert [text for _, text in said] == [
        "Scripted: POST https://host/api failed; the job continues, and this is tried again",
        "tracking this job: run 1 at https://host/runs",
    ]


@pytest.mark.parametrize("password", ["pass", "p@ss", "p/ss", "p/@s:s", ""])
def test_no_part_of_a_password_is_shown(password: str) -> None:
    text = f"POST https://me:{password}@host/api, then https://host/runs"
    assert without_password(text) == "POST https://host/api, then https://host/runs"


def spec_of(**flags: object) -> JobSpec:
    given = {"model_zoo": "/z", "model_def": "iris", "training_data": "/t", **flags}
    return JobSpec.from_flags(Action.TRAIN, given)


def test_parameters_are_those_of_the_training_and_none_of_the_environment(tmp_path: Path) -> None:
    spec = spec_of(
        tracker="mlflow:http://host:5000",
        model_params="lr=0.1;deep=true",
        envs="PASSPHRASE=xyzzy",
        num_workers="1:3",
        job_name="iris-1",
    )
    run = run_of(spec, "k", tmp_path)
    assert (run.name, run.uri) == ("iris-1", "http://host:5000")
    expected = {"model_params.lr": "0.1", "model_params.deep": "true", "num_workers": "1:3"}
    assert expected.items() <= run.params.items() and run.params["minibatch_size"] == "64"
    assert "xyzzy" not in str(run.params) and "image_name" not in run.params


def test_the_end_has_the_receipt_and_the_last_metrics() -> None:
    receipt = {
        "total": {"expected": 300, "lost": 0},
        "updates": {"applied": 30, "lost": 0, "at_least": False},
        "goodput": {"seconds": 9.0, "share": 0.75, "spent": []},
    }
    metrics = {"accuracy": 0.9, "auc": None, "head/f1": 0.5}
    end = end_of(Outcome(130, "stopped", receipt=receipt, metrics=metrics, loss=0.25), 30)
    assert (end.state, end.version) == ("stopped", 30)
    assert end.summary == {
        "receipt/expected": 300.0,
        "receipt/lost": 0.0,
        "receipt/updates/applied": 30.0,
        "receipt/updates/lost": 0.0,
        "receipt/goodput": 0.75,
        "final/accuracy": 0.9,
        "final/head/f1": 0.5,
        "final/loss": 0.25,
    }
    assert end_of(Outcome(1, "failed"), 0).summary == {}


@pytest.mark.parametrize(
    "tracker, problem",
    [
        ("tensorboard", "expected mlflow"),
        ("mlflow:", "expected mlflow"),
        ("wandb:project", "takes no address"),
        ("mlflow:https://me:secret@host", "contains a password"),
        ("mlflow:https://token@host", "contains a password"),
        ("mlflow:postgresql://me:secret@host/runs", "contains a password"),
    ],
)
def test_a_wrong_tracker_is_refused(tracker: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        spec_of(tracker=tracker)


@pytest.mark.parametrize(
    "variable, problem",
    [
        ("WANDB_API_KEY=abc", "is a secret"),
        ("MLFLOW_TRACKING_TOKEN=abc", "is a secret"),
        ("DATABRICKS_CLIENT_SECRET=abc", "is a secret"),
        ("MLFLOW_TRACKING_URI=postgresql://me:abc@host/runs", "contains a secret"),
        ("WANDB_BASE_URL=https://abc@host", "contains a secret"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT=' http://me:abc@host'", "contains a secret"),
    ],
)
def test_a_tracker_s_credentials_do_not_go_into_the_job(variable: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem) as raised:
        spec_of(envs=variable)
    assert "abc" not in raised.value.message


def test_addresses_without_credentials_may_go_into_the_job() -> None:
    envs = {"MLFLOW_TRACKING_URI": "postgresql://me@host/runs", "WANDB_BASE_URL": "http://h:1"}
    assert spec_of(envs=envs).cluster.envs == envs


@pytest.mark.parametrize(
    "tracker, installed, variable, hint",
    [
        ("mlflow:http://h:1", [], "", r"pip install 'elasticdl\[mlflow\]'"),
        ("wandb", ["mlflow"], "", r"pip install 'elasticdl\[wandb\]'"),
        ("mlflow", ["mlflow"], "", "pip install mlflow"),
        ("mlflow", ["mlflow"], "sqlite:///a.db", "pip install mlflow"),
        ("mlflow:postgresql+psycopg2://h/a", ["mlflow"], "http://h:1", "pip install mlflow"),
        ("mlflow", ["mlflow"], "mysql://me:secret@h/a", "pip install mlflow"),
    ],
)
def test_a_missing_package_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, tracker: str, installed: list[str], variable: str, hint: str
) -> None:
    monkeypatch.setattr(choice, "is_installed", lambda package: package in installed)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    with pytest.raises(SpecError) as raised:
        refuse_missing_package(spec_of(tracker=tracker))
    assert re.search(hint, raised.value.hint), raised.value
    assert "secret" not in raised.value.message
    monkeypatch.setattr(choice, "is_installed", lambda package: True)
    refuse_missing_package(spec_of(tracker=tracker))


@pytest.mark.parametrize(
    "tracker, variable", [("mlflow", "http://h:1"), ("mlflow", "databricks"), ("", "")]
)
def test_a_server_needs_no_database(
    monkeypatch: pytest.MonkeyPatch, tracker: str, variable: str
) -> None:
    monkeypatch.setattr(choice, "is_installed", lambda package: package == "mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///a.db")
    refuse_missing_package(spec_of(tracker=tracker, envs=f"MLFLOW_TRACKING_URI={variable}"))


@pytest.mark.parametrize("folder", ["file:/runs", "/runs", "runs"])
def test_a_folder_must_be_allowed_as_mlflow_demands(
    monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(choice, "is_installed", lambda package: package == "mlflow")
    with pytest.raises(SpecError, match=f"the folder {folder}"):
        refuse_missing_package(spec_of(tracker=f"mlflow:{folder}"))
    refuse_missing_package(spec_of(tracker=f"mlflow:{folder}", envs="MLFLOW_ALLOW_FILE_STORE=true"))


def test_a_folder_named_like_a_package_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "curves_of_runs").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not choice.is_installed("curves_of_runs") and choice.is_installed("json")
