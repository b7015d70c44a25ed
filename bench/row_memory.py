"""`python -m bench.row_memory`: memory of a million rows of dimension 16 with Adam's slots,
relative to their raw floats.

Prints two numbers: by the growth of this process's peak, and by the table's own count.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec, TableSpec
from elasticdl.embedding.table import native_table

ROWS, DIM, CALL = 1_000_000, 16, 10_000


def peak_bytes() -> int:
    """Read the peak from /proc: getrusage's maximum is inherited from the parent process."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def main() -> None:
    table = native_table(TableSpec(name="t", dim=DIM), OptimizerSpec(kind=OptimizerKind.ADAM))
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, ROWS)
    table.lookup(np.arange(10))
    before = peak_bytes()
    for first in range(0, ROWS, CALL):
        table.lookup(ids[first : first + CALL])
    raw_bytes = ROWS * DIM * 3 * 4
    print((peak_bytes() - before) / raw_bytes, table.memory_bytes / raw_bytes)


if __name__ == "__main__":
    main()
