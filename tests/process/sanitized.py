"""Programs in C++ alone, compiled with a sanitizer and run: they say "all held", or what did not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
SANITIZERS = ("address,undefined", "thread")
_FLAGS = ["-std=c++17", "-O1", "-g", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{ROOT}"]


def check_held(sources: Sequence[Path], sanitizers: str, folder: Path) -> None:
    """Compile into `folder`, on all cores, and run."""
    compiler = ["g++", *_FLAGS, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(partial(_compiled, compiler, folder), range(len(sources)), sources))
    program = str(folder / "program")
    _run([*compiler, *objects, "-o", program]).check_returncode()
    ran = _run([program])
    if "unexpected memory mapping" in ran.stderr:  # ThreadSanitizer's addresses were taken by the kernel's randomisation
        ran = _run(["setarch", "-R", program])
    assert (ran.returncode, ran.stdout) == (0, "all held\n"), ran.stderr[-4000:]


def _compiled(compiler: Sequence[str], folder: Path, number: int, source: Path) -> str:
    made = str(folder / f"{number}.o")  # some sources have the same name in different folders
    compiled = _run([*compiler, "-c", str(source), "-o", made])
    assert compiled.returncode == 0, compiled.stderr
    return made


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=280)
