"""What a million rows cost a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def test_a_million_rows_with_adams_slots_cost_little_more_than_their_floats() -> None:
    measure = [sys.executable, "-m", "bench.row_memory"]
    ran = subprocess.run(measure, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    process, table = map(float, ran.stdout.split())
    assert 1.0 < process <= 1.25
    assert 1.0 < table <= 1.20
