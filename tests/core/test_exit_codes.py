"""Every exit code is classified and documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticdl.errors import ExitCode

pytestmark = pytest.mark.core

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"
RESTARTED = {
    ExitCode.USER_ERROR,
    ExitCode.FENCED,
    ExitCode.DRAINED,
    ExitCode.SUPERSEDED,
    ExitCode.FORCED,
    ExitCode.UNAVAILABLE,
    ExitCode.CANNOT_RUN,
}
"""Codes of processes: a master that exits with one has not decided the job's outcome."""


def test_every_code_says_whether_a_master_is_started_again() -> None:
    assert {code for code in ExitCode if not code.is_final} == RESTARTED


def test_the_reference_lists_every_code_once() -> None:
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)]
    assert sorted(listed) == sorted(ExitCode)
