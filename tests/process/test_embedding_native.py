"""The C++ table alone, under the sanitizers, with threads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "elasticdl/embedding/native"
SOURCES = [NATIVE / f"{name}.cc" for name in ("table", "optimizer", "initializer", "distinct")] + [
    ROOT / "tests/native/table_test.cc"
]
FLAGS = ["-std=c++17", "-O1", "-g", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{ROOT}"]


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_the_table_holds_under_the_sanitizers(sanitizers, tmp_path):
    program = tmp_path / "table_test"
    compiler = ["g++", *FLAGS, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", *map(str, SOURCES), "-o", str(program)]
    compiled = subprocess.run(compiler, capture_output=True, text=True, timeout=240)
    assert compiled.returncode == 0, compiled.stderr
    ran = run([str(program)])
    if "unexpected memory mapping" in ran.stderr:  # ThreadSanitizer's addresses were taken by the kernel's randomisation
        ran = run(["setarch", "-R", str(program)])
    assert (ran.returncode, ran.stdout) == (0, "all held\n"), ran.stderr[-4000:]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=240)
