"""The embedding table alone, on one core, against loops bound by memory (table_limits.cpp), all in
one run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [
    *(
        ROOT / f"elasticdl/embedding/native/{name}.cc"
        for name in ("table", "idle", "optimizer", "initializer", "unique_ids")
    ),
    ROOT / "elasticdl/ps/native/kept_memory.cc",
]
# The table has setup.py's portable flags; the loops are compiled for this machine.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-ffp-contract=off",
    f"-I{ROOT}",
]
LIMIT_FLAGS = ["-std=c++17", "-O3", "-march=native", "-fno-math-errno", f"-I{ROOT}"]
AIM = 0.7


def measure() -> dict[str, float]:
    """Rows/s of 1,000,000 rows of dim 16 with Adam, 50,000 ids a call; memory as a multiple of the
    raw rows.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        figures = json.loads(
            subprocess.run(
                one_core([str(program)]), check=True, capture_output=True, timeout=600
            ).stdout
        )
    for work in ("lookup", "adam"):
        figures[f"kept_{work}_ratio"] = figures[f"kept_{work}"] / figures[f"table_{work}"]
        figures[f"{work}_ratio"] = figures[f"table_{work}"] / figures[f"limit_{work}_prefetch"]
    figures["noted_adam_ratio"] = figures["noted_adam"] / figures["table_adam"]
    figures["memory_ratio"] = figures["table_bytes"] / figures["raw_bytes"]
    figures["process_memory_ratio"] = process_memory_ratio()
    show(figures)
    return figures


def build(folder: Path) -> Path:
    limits = folder / "table_limits.o"
    subprocess.run(
        ["g++", *LIMIT_FLAGS, "-c", str(ROOT / "bench/table_limits.cpp"), "-o", str(limits)],
        check=True,
        timeout=300,
    )
    program = folder / "table_limits"
    subprocess.run(
        ["g++", *FLAGS, *map(str, SOURCES), str(limits), "-o", str(program), "-pthread"],
        check=True,
        timeout=300,
    )
    return program


def one_core(command: list[str]) -> list[str]:
    core = max(os.sched_getaffinity(0))
    return ["taskset", "-c", str(core), *command]


def process_memory_ratio() -> float:
    """Growth of a Python process's peak by making the rows, over the raw rows."""
    made = subprocess.run(
        [sys.executable, "-m", "bench.row_memory"],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    return float(made.stdout.split()[0])


def show(figures: dict[str, float]) -> None:
    print(
        f"{'M rows/s on one core':<34}{'table':>8}{'limit':>8}{'ratio':>8}   aim >= {AIM}"
        f"{'kept':>8}{'ratio':>8}"
    )
    for work, title in (("lookup", "lookup, 64 B a row"), ("adam", "Adam update, 192 B a row")):
        table, limit = figures[f"table_{work}"] / 1e6, figures[f"limit_{work}_prefetch"] / 1e6
        kept = figures[f"kept_{work}"] / 1e6
        print(
            f"{title:<34}{table:>8.1f}{limit:>8.1f}{table / limit:>8.2f}{'':13}"
            f"{kept:>8.1f}{kept / table:>8.2f}"
        )
    noted = figures["noted_adam_ratio"]
    print(f"Adam update that notes its rows, over one that does not: {noted:.3f}")
    touched, kept = figures["table_first_touch"] / 1e6, figures["kept_first_touch"] / 1e6
    print(f"{'first touch':<34}{touched:>8.1f}{'':29}{kept:>8.1f}{kept / touched:>8.2f}")
    print(
        f"memory over raw rows: table {figures['memory_ratio']:.3f}, whole process"
        f" {figures['process_memory_ratio']:.3f}   aim <= 1.25"
    )
