"""Horovod's own elastic driver: a kill of one of two workers, and the join of its replacement."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from bench.jobs import ROOT

T = TypeVar("T")


def horovodrun() -> list[str]:
    """Return the command line of `horovodrun`, without its script.

    The script's first line names the interpreter that built the cached wheel.
    """
    return [sys.executable, "-m", "horovod.runner.launch"]


def horovod_elastic(rounds: int) -> dict[str, Any]:
    """Times in s of each round: from SIGKILL to the survivor's next step, the survivor's pause at
    the join; steps that were lost.
    """
    found = [_kill_and_join() for _ in range(rounds)]
    return {
        name: [value for one in found for value in one[name]]
        for name in ("kill", "join", "lost_steps", "typical_step")
    }


def _kill_and_join() -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        hosts = Path(folder) / "hosts"
        # Two "hosts": after a failure the driver excludes only one of them.
        hosts.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
        hosts.chmod(0o755)
        log = Path(folder) / "log"
        home = str(Path(sys.executable).parent)
        command = [
            *horovodrun(), "-np", "2", "--min-np", "1", "--max-np", "2", "--gloo",
            "--host-discovery-script", str(hosts), "--blacklist-cooldown-range", "5", "10",
            "--elastic-timeout", "60", sys.executable, "-m", "bench.peer_elastic",
        ]  # fmt: skip
        environment = {
            **os.environ,
            "PEER_LOG": str(log),
            "PYTHONPATH": str(ROOT),
            "PATH": f"{home}:{os.environ['PATH']}",
        }
        with open(Path(folder) / "out", "w") as out:
            driver = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
            )
            try:
                return _killed_and_joined(log)
            finally:
                for line in _lines(log):
                    if line[1] == "START":
                        _kill(int(line[2]))
                if driver.poll() is None:
                    os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()


def _killed_and_joined(log: Path) -> dict[str, list[float]]:
    """Measure one round; returns no values if no replacement joined."""

    def together(after_s: float) -> list[str] | None:
        return next(
            (
                line
                for line in _lines(log)
                if line[1] == "STEP" and line[4] == "2" and float(line[0]) > after_s
            ),
            None,
        )

    _until(
        lambda: (
            (found := _lines(log))
            and found[-1][1] == "STEP"
            and found[-1][4] == "2"
            and int(found[-1][5]) > 300
        )
    )
    victim = next(line[2] for line in _lines(log) if line[1] == "START" and line[3] == "1")
    at_s = time.time()
    _kill(int(victim))
    time.sleep(2.0)
    before, after = _steps_of_survivor(log, victim, at_s)
    typical_s = statistics.median(b[0] - a[0] for a, b in itertools.pairwise(before[-100:]))
    gaps = [
        (b[0] - a[0], b[0], a[1] - b[1] + 1)
        for a, b in zip([before[-1], *after], after, strict=False)
    ]
    _, step_s, lost = max(gaps)
    figures: dict[str, list[float]] = {
        "kill": [round(step_s - at_s, 4)], "join": [], "lost_steps": [lost],
        "typical_step": [round(typical_s, 4)]
    }  # fmt: skip
    joined = _until(lambda: together(at_s + 1.0), limit_s=40.0)
    if joined is None:
        print("Horovod's elastic driver: no replacement joined within 40 s", flush=True)
        return figures
    time.sleep(0.5)
    _, after = _steps_of_survivor(log, victim, at_s)
    later = [one for one in after if one[0] > step_s]
    return {**figures, "join": [round(max(b[0] - a[0] for a, b in itertools.pairwise(later)), 4)]}


def _steps_of_survivor(
    log: Path, victim: str, at_s: float
) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """Return (time, number) of the survivor's steps before and after `at_s`."""
    lines = _lines(log)
    survivor = next(line[2] for line in lines if line[1] == "STEP" and line[2] != victim)
    steps = [
        (float(line[0]), int(line[5]))
        for line in lines
        if line[1] == "STEP" and line[2] == survivor
    ]
    return [one for one in steps if one[0] <= at_s], [one for one in steps if one[0] > at_s]


def _lines(log: Path) -> list[list[str]]:
    return (
        [line.split() for line in log.read_text().rpartition("\n")[0].splitlines()]
        if log.exists()
        else []
    )


def _until(found: Callable[[], T], limit_s: float = 60.0) -> T | None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        answer = found()
        if answer:
            return answer
        time.sleep(0.1)
    return None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
