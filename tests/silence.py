"""Say which tests run when none has ended for a long time; in CI, end a run that stands still.

pytest-timeout ends a test that takes too long with a signal, which needs the interpreter;
faulthandler (pyproject.toml) ends its process without. This is for what neither sees: a process of
pytest that stands still between tests.
"""

from __future__ import annotations

import os
import threading
import time
from typing import final

import pytest

SAID_AFTER_S, SAID_EVERY_S = 240.0, 120.0
ENDED_AFTER_S = 1_800.0
"""Longer than the time limit of every test."""
STOOD_STILL = 70


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
            if silent_s > ENDED_AFTER_S and "CI" in os.environ:
                self._say("the run stands still and is ended")
                os._exit(STOOD_STILL)

    def _say(self, text: str) -> None:
        terminal = self._config.get_terminal_writer()
        terminal.line(f"\n{text}")
        terminal.flush()
