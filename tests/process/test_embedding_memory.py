"""What a million rows cost a process."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import numpy as np
from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec, TableSpec
from elasticdl.embedding.table import native_table

def peak_bytes():
    # Not getrusage: its maximum is inherited from the process that started this one.
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

table = native_table(TableSpec(name="t", dim=16), OptimizerSpec(kind=OptimizerKind.ADAM))
ids = np.random.default_rng(0).integers(-2**63, 2**63 - 1, 1_000_000)
table.lookup(np.arange(10))
before = peak_bytes()
for first in range(0, len(ids), 10_000):
    table.lookup(ids[first : first + 10_000])
raw_bytes = len(ids) * 16 * 3 * 4
print((peak_bytes() - before) / raw_bytes, table.memory_bytes / raw_bytes)
"""


def test_a_million_rows_with_adams_slots_cost_little_more_than_their_floats():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    process, table = map(float, ran.stdout.split())
    assert 1.0 < process <= 1.25
    assert 1.0 < table <= 1.20
