"""Say which tests run when none has ended for a long time; in CI, end a run that stands still.

pytest-timeout ends a test that takes too long with a signal, which needs the interpreter;
faulthandler (pyproject.toml) ends its process without. This says where all processes are, and ends
what neither sees: a process of pytest that stands still between tests.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import final

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

SAID_AFTER_S, SAID_EVERY_S = 240.0, 120.0
ENDED_AFTER_S = 1_800.0
"""Longer than the time limit of every test."""
STOOD_STILL = 70


def print_stacks_on_request(config: pytest.Config) -> None:
    """Have this process, which runs tests, print its stacks to stderr on SIGUSR1."""
    stderr = config.stash[fault_handler_stderr_fd_key]
    faulthandler.register(signal.SIGUSR1, file=stderr, all_threads=True)


def _workers() -> list[int]:
    """Processes of ours that run tests: they have the handler for SIGUSR1."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    bit = 1 << (signal.SIGUSR1 - 1)
    return [int(child) for child in children if int(_status(child).get("SigCgt", "0"), 16) & bit]


def _status(process: int | str) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _state(process: int) -> str:
    status = _status(process)
    return f"{status.get('State', 'gone')}, {status.get('VmRSS', 'no memory')}"


@final
class Silence:
    """A plugin for the process that collects the results."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._running: dict[str, float] = {}
        self._heard_s = time.monotonic()
        self._ended = threading.Event()

    def pytest_sessionstart(self) -> None:
        """Start to watch."""
        threading.Thread(target=self._watch, name="silence", daemon=True).start()

    def pytest_sessionfinish(self) -> None:
        """Stop watching."""
        self._ended.set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._running[nodeid] = self._heard_s = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended."""
        self._running.pop(nodeid, None)
        self._heard_s = time.monotonic()

    def _watch(self) -> None:
        said_s = 0.0
        while not self._ended.wait(5):
            now_s = time.monotonic()
            silent_s = now_s - self._heard_s
            if silent_s < SAID_AFTER_S or now_s - said_s < SAID_EVERY_S:
                continue
            said_s = now_s
            running = [
                f"{name} for {now_s - since_s:.0f} s" for name, since_s in self._running.items()
            ]
            self._say(f"no test has ended for {silent_s:.0f} s; running: {', '.join(running)}")
            for process in _workers():
                self._say(f"process {process} is {_state(process)}")
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGUSR1)
            if silent_s > ENDED_AFTER_S and "CI" in os.environ:
                self._say("the run stands still and is ended")
                os._exit(STOOD_STILL)

    def _say(self, text: str) -> None:
        terminal = self._config.get_terminal_writer()
        terminal.line(f"\n{text}")
        terminal.flush()
