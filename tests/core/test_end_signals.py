"""The signals that end a local job at once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from elasticdl.cluster.local.supervisor.end_signals import asking_to_end, wake
from elasticdl.jobdir.layout import JobDirectory

pytestmark = pytest.mark.core


def test_the_supervisor_is_woken_and_then_asked_twice_with_a_pause_after_each(
    tmp_path: Path,
) -> None:
    sent: list[signal.Signals | str] = []
    wake(JobDirectory(tmp_path), sent.append)
    for pause_s in asking_to_end(sent.append):
        assert pause_s > 0.0
        sent.append("pause")
    assert sent == [signal.SIGCONT, signal.SIGTERM, "pause", signal.SIGTERM, "pause"]
