"""The master and the process of its tracker: whatever that does, no job waits long for it."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.outcome import Outcome
from elasticdl.master.core.commands import Announce
from elasticdl.master.executor.tracker_process import TrackerProcess
from elasticdl.tracking.choice import Sent
from tests.waiting import until_async

pytestmark = pytest.mark.contract
GOOD = """
import json, os, sys
from pathlib import Path
print(json.dumps({"level": "info", "text": "tracking"}), "no JSON", sep="\\n", flush=True)
line = sys.stdin.readline()
Path(sys.argv[1], "end").write_text(line or "left")
Path(sys.argv[1], "env").write_text(os.environ.get("SOME_VARIABLE", ""))
print(json.dumps({"level": "warning", "text": "too late"}), flush=True)
sys.exit(0 if line else 1)
"""
HANGS = """
import os, sys, time
from pathlib import Path
Path(sys.argv[1], "began").write_text(str(os.getpid()))
time.sleep(600)
"""


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def process_of(
    folder: Path, program: str, **limits: float
) -> tuple[TrackerProcess, list[Announce], Callable[[], Coroutine[Any, Any, None]]]:
    told: list[Announce] = []
    command = (sys.executable, "-S", "-c", program)
    process = TrackerProcess(
        JobDirectory(folder), Sent.CURVES, {"SOME_VARIABLE": "x"}, command, **limits
    )
    return process, told, lambda: process.start(told.append)


def test_it_gets_the_end_and_what_it_says_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process, told, start = process_of(tmp_path, GOOD)

    async def work() -> None:
        await start()
        await until_async("it said something", lambda: told)
        await process.end(Outcome(0, "done", loss=0.5), 30)

    with caplog.at_level(logging.INFO):
        run(work())
    assert [(one.kind, one.text, one.level) for one in told] == [("tracker", "tracking", "info")]
    end = json.loads((tmp_path / "end").read_text())
    assert (end["version"], end["loss"], end["message"]) == (30, 0.5, "done")
    assert (tmp_path / "env").read_text() == "x"
    assert "too late" in caplog.text, "not an event after the job's end"


def test_a_master_that_leaves_closes_its_stdin(tmp_path: Path) -> None:
    process, told, start = process_of(tmp_path, GOOD, leave_s=60.0)

    async def work() -> None:
        await start()
        await until_async("it said something", lambda: told)
        await process.close()

    run(work())
    assert (tmp_path / "end").read_text() == "left" and len(told) == 1


@pytest.mark.parametrize("ends", [True, False])
def test_one_that_hangs_is_killed(
    tmp_path: Path, ends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    process, told, start = process_of(tmp_path, HANGS, end_s=0.01, leave_s=0.01)
    began = tmp_path / "began"

    async def work() -> None:
        await start()
        await until_async("it began", lambda: began.exists() and began.read_text())
        await (process.end(Outcome(0, "done"), 1) if ends else process.close())

    with caplog.at_level(logging.WARNING):
        run(work())
    assert not told and ends == ("did not take all" in caplog.text)
    assert not Path("/proc", began.read_text()).exists()


def test_one_that_fails_costs_one_warning(tmp_path: Path) -> None:
    process, told, start = process_of(tmp_path, "import sys; sys.exit(3)")

    async def work() -> None:
        await start()
        await until_async("its end is told", lambda: told)
        await process.end(Outcome(0, "done"), 1)

    run(work())
    assert [(one.level, "exit code 3" in one.text) for one in told] == [("warning", True)]


def test_one_that_cannot_start_costs_one_warning(tmp_path: Path) -> None:
    told: list[Announce] = []
    process = TrackerProcess(JobDirectory(tmp_path), Sent.TRACES, {}, (str(tmp_path / "missing"),))

    async def work() -> None:
        await process.start(told.append)
        await process.end(Outcome(0, "done"), 1)

    run(work())
    assert [one.level for one in told] == ["warning"]
