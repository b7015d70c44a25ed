"""Servers, clients and the wire between them in C++ alone, under the sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PARTS = ("embedding", "rpc", "ps", "checkpoint")
NOT_HERE = {"bindings.cc", "module.cc"}  # they need Python
SOURCES = [
    source for part in PARTS for source in sorted((ROOT / f"elasticdl/{part}/native").glob("*.cc")) if source.name not in NOT_HERE
]
SOURCES += [ROOT / "elasticdl/data/native/crc32c.cc", ROOT / "tests/native/bulk_test.cc"]
FLAGS = ["-std=c++17", "-O1", "-g", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{ROOT}"]


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_servers_and_clients_hold_under_the_sanitizers(sanitizers: str, tmp_path: Path) -> None:
    program = tmp_path / "bulk_test"
    compiler = ["g++", *FLAGS, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", *map(str, SOURCES), "-o", str(program)]
    compiled = subprocess.run(compiler, capture_output=True, text=True, timeout=280)
    assert compiled.returncode == 0, compiled.stderr
    ran = run([str(program)])
    if "unexpected memory mapping" in ran.stderr:  # ThreadSanitizer's addresses were taken by the kernel's randomisation
        ran = run(["setarch", "-R", str(program)])
    assert (ran.returncode, ran.stdout) == (0, "all held\n"), ran.stderr[-4000:]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=240)
