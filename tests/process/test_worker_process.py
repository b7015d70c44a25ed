"""A worker process meets signals, hangs and its parent's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl.clock import ManualClock, SystemClock
from elasticdl.errors import ExitCode
from elasticdl.worker.process.hang_watch import HangWatch, Hung, StoodStill
from elasticdl.worker.process.shutdown import Failed, Shutdown

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
LIMIT_S = 30.0

PRELUDE = """
import sys, threading
from elasticdl.own_process import hold_signals
from elasticdl.worker.process.os_process import *
from elasticdl.worker.process.shutdown import *
hold_signals()
ending = Shutdown()
drain_on_signal(ending, grace_s=0.7)
end_by_force(ending)
print("ready", flush=True)
"""


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def start(processes: list[subprocess.Popen[str]], body: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + body],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    processes.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_reason_to_drain(
    processes: list[subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = start(
        processes,
        f"assert ending.wait({LIMIT_S}); print(ending.reason.reason, flush=True); leave(ending)",
    )
    process.send_signal(number)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert output == f"{number.name}\n"
    assert process.returncode == ExitCode.DRAINED


def test_no_thread_is_there_that_a_signal_could_meet_before_signals_are_held() -> None:
    """NumPy starts threads when it is imported, as many as there are cores to use."""
    program = (
        "import elasticdl.worker.main, os, sys; print(len(os.listdir('/proc/self/task')), 'numpy'"
        " in sys.modules)"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout == "1 False\n"


def test_a_main_thread_that_hangs_does_not_outlive_the_limit_of_a_drain(
    processes: list[subprocess.Popen[str]],
) -> None:
    process = start(processes, "lock = threading.Lock(); lock.acquire(); lock.acquire()")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == ExitCode.FORCED
    assert "still running after 0 s (draining: SIGTERM)" in output


def test_what_was_printed_is_not_lost_at_the_end(processes: list[subprocess.Popen[str]]) -> None:
    process = start(
        processes, "sys.stdout.write('last words'); ending.fail(ValueError()); leave(ending)"
    )
    assert process.wait(LIMIT_S) is not None
    # Not by `communicate`, which does not give what came together with the first line.
    output = process.stdout.read() if process.stdout is not None else ""
    assert output == "last words"
    assert process.returncode == ExitCode.JOB_FAILED


def test_what_takes_long_gets_all_stacks_dumped_once(tmp_path: Path) -> None:
    clock = ManualClock()
    with (tmp_path / "log").open("w+") as log:
        watch = HangWatch(clock, output=log)
        with watch.doing("a step"):
            with watch.doing("feed"):
                clock.advance(59.0)
            assert not watch.check()
            clock.advance(2.0)
            assert watch.check()
            clock.advance(100.0)
            assert not watch.check()
        log.seek(0)
        place, name, *stack = log.readlines()
        assert place.startswith(f"{threading.current_thread().name} is at ")
        assert name == f"thread {threading.current_thread().name}:\n", (
            "who takes long comes first, whoever else is there"
        )
        assert any("test_what_takes_long_gets_all_stacks_dumped_once" in line for line in stack)


def test_a_wait_for_work_is_no_hang(tmp_path: Path) -> None:
    clock = ManualClock()
    watch = HangWatch(clock)
    with watch.doing("a step"):
        pass
    clock.advance(1000.0)
    assert not watch.check()


def test_what_others_wait_for_is_hung_after_two_minutes_or_ten_times_the_longest_so_far() -> None:
    clock = ManualClock()
    watch = HangWatch(clock, long_s=1e9)
    with watch.owing("a part"):
        clock.advance(20.0)
    for _ in range(2):
        with watch.owing("a part"):
            clock.advance(199.0)
            watch.check()
            clock.advance(2.0)
            with pytest.raises(
                Hung,
                match=(
                    r"a part has not finished for 201 s while others wait for it"
                    r" \(limit 200 s\)"
                ),
            ):
                watch.check()
        watch = HangWatch(clock, long_s=1e9)
        watch.learn("a part", 20.0)
    with watch.owing("another"):
        clock.advance(121.0)
        with pytest.raises(Hung, match="limit 120 s"):
            watch.check()


def test_long_work_that_continues_is_told_of_and_is_not_hung() -> None:
    clock = ManualClock()
    watch = HangWatch(clock)
    with watch.owing("a part"):
        for second in range(1000):
            clock.advance(1.0)
            watch.moving()
            assert not watch.check()
            activity = watch.activity()
            assert second < 4 or (activity is not None and 5.0 <= activity.age_s <= 20.0)
        clock.advance(121.0)
        with pytest.raises(Hung):
            watch.check()


def test_one_that_waits_for_others_is_not_hung_and_learns_nothing_from_how_long_they_take() -> None:
    clock = ManualClock()
    watch = HangWatch(clock)
    done = False
    with watch.owing("a part", lambda: done):
        clock.advance(10.0)
        assert not watch.check()
        done = True
        clock.advance(1000.0)
        assert not watch.check()
    with watch.owing("a part", lambda: False):
        clock.advance(121.0)
        with pytest.raises(Hung):
            watch.check()


def standing(place: Path, body: str, /, **names: object) -> threading.Thread:
    """A thread that runs user code."""
    path = place / "module.py"
    path.write_text(body)
    code = compile(body, str(path), "exec")
    return threading.Thread(target=lambda: exec(code, dict(names)), daemon=True)


def test_user_code_that_stands_at_one_place_is_named_by_file_and_line_after_five_minutes(
    tmp_path: Path,
) -> None:
    clock, go, there = ManualClock(), threading.Event(), threading.Event()
    watch = HangWatch(clock, long_s=1e9)
    body = "with watch.starting('building the model', folder):\n    there.set()\n    go.wait()\n"
    thread = standing(tmp_path, body, watch=watch, folder=str(tmp_path), go=go, there=there)
    thread.start()
    assert there.wait(LIMIT_S)
    try:
        watch.check()
        clock.advance(299.0)
        watch.check()
        clock.advance(2.0)
        with pytest.raises(StoodStill) as caught:
            while True:  # until the thread is in `wait`, its place changes
                watch.check()
                clock.advance(301.0)
        assert caught.value.message.startswith("building the model has made no progress for 30")
        assert caught.value.message.endswith(f" s, at {tmp_path}/module.py:3, in <module>")
    finally:
        go.set()
        thread.join(LIMIT_S)


def test_user_code_that_goes_from_place_to_place_may_take_as_long_as_it_likes(
    tmp_path: Path,
) -> None:
    clock, turns = ManualClock(), [threading.Event() for _ in range(8)]
    there = [threading.Event() for _ in range(8)]
    watch = HangWatch(clock, long_s=1e9)
    body = "with watch.starting('building the model', folder):\n"
    body += "".join(f"    there[{n}].set()\n    turns[{n}].wait()\n" for n in range(8))
    thread = standing(tmp_path, body, watch=watch, folder=str(tmp_path), turns=turns, there=there)
    thread.start()
    for here, turn in zip(there, turns, strict=True):
        assert here.wait(LIMIT_S)
        watch.check()
        clock.advance(200.0)
        watch.check()
        turn.set()
    thread.join(LIMIT_S)


def test_a_worker_whose_user_code_hangs_reports_that_and_ends(tmp_path: Path) -> None:
    reported: list[StoodStill] = []
    left, go = threading.Event(), threading.Event()
    shutdown = Shutdown()
    watch = HangWatch(SystemClock(), still_s=0.2)
    thread = standing(
        tmp_path,
        "with watch.starting('building', folder):\n    go.wait()\n",
        watch=watch,
        folder=str(tmp_path),
        go=go,
    )
    thread.start()
    watch.start(shutdown, left.set, reported.append)
    try:
        assert left.wait(LIMIT_S)
        assert len(reported) >= 1 and isinstance(shutdown.reason, Failed)
        assert "module.py:2" in reported[0].message
    finally:
        go.set()
        thread.join(LIMIT_S)
