"""Programs in C++ alone, compiled with a sanitizer and run: they say "all held", or what did not.

`scripts/cached_compile.py` keeps the objects: to compile takes five times as long as to run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from scripts import cached_compile
from tests.fuzz.budget import fuzz_s

ROOT = Path(__file__).parents[2]
SANITIZERS = ("address,undefined", "thread")
_FLAGS = [
    "-std=c++17",
    "-O1",
    "-g1",  # functions and lines; objects of a fifth of the size
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pthread",
    "-DELASTICDL_KILL_POINTS",
    f"-I{ROOT}",
]


def check_held(
    sources: Sequence[Path],
    sanitizers: str,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    more_s: float = 0.0,
) -> None:
    """Compile into `folder`, on all cores, and run with these variables, for `more_s` longer than
    others may.
    """
    compiler = ["g++", *_FLAGS, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(partial(_compiled, compiler, folder), range(len(sources)), sources))
    program = str(folder / "program")
    _run([*compiler, *objects, "-lssl", "-lcrypto", "-o", program]).check_returncode()
    ran = _run([program], variables, more_s)
    if (
        "unexpected memory mapping" in ran.stderr
    ):  # ThreadSanitizer's addresses were taken by the kernel's randomisation
        ran = _run(["setarch", "-R", program], variables, more_s)
    assert (ran.returncode, ran.stdout) == (0, "all held\n"), ran.stderr[-4000:]


def _compiled(compiler: Sequence[str], folder: Path, number: int, source: Path) -> str:
    made = folder / f"{number}.o"  # some sources have the same name in different folders
    command = [*compiler, "-c", str(source), "-o", str(made)]
    assert cached_compile.main(command) == 0, f"{' '.join(command)} failed: see stderr"
    return str(made)


def _run(
    command: list[str], variables: Mapping[str, str] | None = None, more_s: float = 0.0
) -> subprocess.CompletedProcess[str]:
    limit_s = 280 + fuzz_s() + more_s
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=limit_s,
        env={**os.environ, **(variables or {})},
    )
