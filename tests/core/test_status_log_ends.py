"""The ends of logs that go into a report: bounded, those of processes that failed first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from elasticdl.cluster.logs.log_tails import ALL_BYTES, EACH_BYTES, ends_in
from elasticdl.job_status import JobStatus, ProcessStatus, unknown_status
from tests.statuses import process

pytestmark = pytest.mark.core


def ended(name: str, cause: str, since_s: float) -> ProcessStatus:
    return process(name, "ended", cause=cause, since_s=since_s)


def status(*processes: ProcessStatus) -> JobStatus:
    return replace(unknown_status(""), processes=processes)


def test_logs_of_processes_that_failed_come_first_the_last_one_before_all(tmp_path: Path) -> None:
    for name in ("master-0", "ps-0", "worker-10", "worker-2", "worker-0", "worker-1"):
        (tmp_path / f"{name}.log").write_text(f"this is {name}\n")
    (tmp_path / "worker-9.log").symlink_to("/etc/passwd")
    rows = (
        ended("worker-1", "infrastructure", 5.0),
        ended("ps-0.1", "out_of_memory", 9.0),
        ended("worker-0", "finished", 20.0),
    )
    found = ends_in(tmp_path, status(*rows))
    assert [one["process"] for one in found] == [
        "ps-0",
        "worker-1",
        "master-0",
        "worker-0",
        "worker-2",
        "worker-10",
    ]
    assert found[1]["text"] == "this is worker-1\n"


def test_of_a_long_log_there_are_the_last_lines_and_of_many_logs_so_many_as_fit(
    tmp_path: Path,
) -> None:
    for index in range(40):
        (tmp_path / f"worker-{index}.log").write_bytes(
            b"a line that is no news \xff\n" * 4_000 + b"the end\n"
        )
    found = ends_in(tmp_path, status())
    assert len(found) == ALL_BYTES // EACH_BYTES and found[0]["process"] == "worker-0"
    first, *lines = found[0]["text"].splitlines()
    assert first.startswith("… ") and "the report omits" in first
    assert lines[0] == "a line that is no news \ufffd" and lines[-1] == "the end"
    assert len(found[0]["text"]) <= EACH_BYTES + 100


def test_where_there_are_no_logs_there_are_none(tmp_path: Path) -> None:
    assert ends_in(tmp_path / "none", status()) == []
