"""Which process is still the one that a file names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from elasticdl.jobdir.process_liveness import lives

pytestmark = pytest.mark.core


def test_a_process_that_has_ended_and_that_nobody_collected_does_not_live() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert lives(child.pid)
        assert child.stdin is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not lives(child.pid)


@pytest.mark.parametrize("pid", [0, -1, 2**40, "1", None, 1.5])
def test_what_is_no_number_of_a_process_lives_not(pid: object) -> None:
    assert not lives(pid)
