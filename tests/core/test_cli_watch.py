"""What `status --watch` says into a file or a pipe, and what it ends with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from elasticdl.cli.jobs.job import JobLocation, Kind, Report
from elasticdl.cli.verbs import status as status_verb
from elasticdl.cli.views.documents import Format
from elasticdl.cli.views.line_progress import EVERY_S, LineProgress
from elasticdl.job_status import NO_RECORDS, unknown_status
from elasticdl.jobdir.outcome import Outcome
from tests.statuses import process

pytestmark = pytest.mark.core


def report(
    trained: int = 0, message: str = "training", state: str = "running", **known: Any
) -> Report:
    records = replace(NO_RECORDS, trained=trained, expected=100, left=100 - trained)
    status = replace(unknown_status(message), records=records, **known)
    return Report("ads", JobLocation(Kind.LOCAL, job_dir="/jobs/ads"), state, 1.0, status)


def test_a_line_is_said_when_something_has_changed_and_of_records_every_ten_seconds() -> None:
    now = 0.0
    changes = LineProgress(now_s=lambda: now, wall=lambda: "12:00:00")
    assert changes.lines(report(10)) == ["12:00:00  training, 10/100 records (10 %)"]
    assert changes.lines(report(20)) == []
    now = EVERY_S
    assert changes.lines(report(30)) == ["12:00:00  training, 30/100 records (30 %)"]
    now = 2 * EVERY_S
    assert changes.lines(report(30)) == [], "nothing has changed"
    assert changes.lines(report(31, "evaluating")) == [
        "12:00:00  evaluating, 31/100 records (31 %)"
    ]


def test_a_metric_that_is_no_number_is_no_news_each_second() -> None:
    changes = LineProgress(now_s=lambda: 0.0, wall=lambda: "")
    assert len(changes.lines(report(metrics={"auc": float("nan")}))) == 1
    assert changes.lines(report(metrics={"auc": float("nan")})) == []


def test_ends_and_waits_are_lines_of_their_own_and_said_once() -> None:
    changes = LineProgress(now_s=lambda: 0.0, wall=lambda: "")
    ready, ended = (
        process("worker-0", "ready"),
        process("worker-0", "ended", cause="oom", message="out of memory\x1b[2J"),
    )
    changes.lines(report(processes=(ready,)))
    found = changes.lines(report(processes=(ended,), waiting=("quota cpu 8 of 8 used",)))
    assert [line.strip() for line in found[:2]] == [
        "worker-0: out of memory\N{REPLACEMENT CHARACTER}[2J [oom]",
        "waiting: quota cpu 8 of 8 used",
    ]
    assert len(found) == 3 and "worker" not in found[2]
    assert changes.lines(report(processes=(ended,), waiting=("quota cpu 8 of 8 used",))) == []


class Scripted:
    """A job that stands otherwise at each look."""

    name, place = "ads", JobLocation(Kind.LOCAL, job_dir="/jobs/ads")

    def __init__(self, *looks: Report) -> None:
        self._looks: Iterator[Report] = iter(looks)
        self._now = next(self._looks)

    def outcome(self) -> Outcome | None:
        ended = self._now.exit_code
        return None if ended is None else Outcome(ended, self._now.outcome, "/jobs/ads")

    def report(self) -> Report:
        seen, self._now = self._now, next(self._looks, self._now)
        return seen


def ended(code: int) -> Report:
    one = report(100, "the end", "failed")
    return Report(
        one.job, one.place, one.state, 2.0, one.status, code, "no such file", "look there"
    )


@pytest.mark.parametrize("form", [Format.TABLE, Format.JSON, Format.YAML])
def test_a_watch_ends_with_the_end_of_the_job_and_its_exit_code(
    form: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    job: Any = Scripted(report(10), report(20, "evaluating"), ended(1))
    assert status_verb._watch(job, form, every_s=0.0) == 1
    output = capsys.readouterr().out
    if form is Format.TABLE:
        *lines, exit_line, hint = output.splitlines()
        assert (
            len(lines) == 3 and "training, 10/100" in lines[0] and "evaluating, 20/100" in lines[1]
        )
        assert (exit_line, hint) == ("ended with exit code 1: no such file", "hint: look there")
    elif form is Format.JSON:
        assert [json.loads(line)["exit_code"] for line in output.splitlines()] == [None, None, 1]
