"""The C++ table alone, under the sanitizers, with threads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.process.sanitized import ROOT, SANITIZERS, check_held

# Compiling is all work: minutes of it where other work has the cores.
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SOURCES = [
    *(
        ROOT / f"elasticdl/embedding/native/{name}.cc"
        for name in ("table", "idle", "optimizer", "initializer", "unique_ids")
    ),
    ROOT / "tests/native/table_test.cc",
]


@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_the_table_holds_under_the_sanitizers(sanitizers: str, tmp_path: Path) -> None:
    check_held(SOURCES, sanitizers, tmp_path)


def test_the_benchmark_of_the_table_fits_the_table() -> None:
    source = ROOT / "bench/table_limits.cpp"
    done = subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", f"-I{ROOT}", str(source)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
