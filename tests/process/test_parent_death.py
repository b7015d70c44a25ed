"""A process can ask the kernel to end it with its parent; that needs no orphan reaper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from elasticdl.cluster.local.parent_death import PARENT_PID_VARIABLE, die_with_parent
from tests.waiting import gone, until

pytestmark = pytest.mark.process
LIMIT_S = 20.0

CHILD = """
import os, sys, time
from elasticdl.cluster.local.parent_death import die_with_parent
die_with_parent()
print(os.getpid(), os.environ.get("ELASTICDL_PARENT_PID"), flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys, time
env = {**os.environ, "ELASTICDL_PARENT_PID": str(os.getpid())}
subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=env)
time.sleep(600)
"""


def test_a_process_ends_with_its_parent_and_forgets_whose_child_it_was() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, variable = parent.stdout.readline().split()
        parent.kill()
        until("the process ends with its parent", lambda: gone(int(pid)), LIMIT_S)
    assert variable == "None", "its own children have another parent"


def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    program = (
        "from elasticdl.cluster.local.parent_death import die_with_parent;"
        f" die_with_parent({os.getpid()} + 1); print('alive')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_without_a_parent_to_die_with_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARENT_PID_VARIABLE, raising=False)
    die_with_parent()
