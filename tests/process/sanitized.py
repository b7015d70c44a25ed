"""Programs in C++ alone, compiled with a sanitizer and run: they say "all held", or what did not.

What was compiled is kept in the cache folder under a digest of all that went into it: to compile
takes five times as long as to run.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.fuzz.budget import fuzz_s

ROOT = Path(__file__).parents[2]
SANITIZERS = ("address,undefined", "thread")
_KEPT_S = 30 * 24 * 3600.0
_FLAGS = [
    "-std=c++17",
    "-O1",
    "-g",
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
) -> None:
    """Compile into `folder`, on all cores, and run with these variables."""
    compiler = ["g++", *_FLAGS, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(partial(_compiled, compiler, folder), range(len(sources)), sources))
    program = str(folder / "program")
    _run([*compiler, *objects, "-lssl", "-lcrypto", "-o", program]).check_returncode()
    ran = _run([program], variables)
    if (
        "unexpected memory mapping" in ran.stderr
    ):  # ThreadSanitizer's addresses were taken by the kernel's randomisation
        ran = _run(["setarch", "-R", program], variables)
    assert (ran.returncode, ran.stdout) == (0, "all held\n"), ran.stderr[-4000:]


def _compiled(compiler: Sequence[str], folder: Path, number: int, source: Path) -> str:
    made = folder / f"{number}.o"  # some sources have the same name in different folders
    kept = _cache() / _digest([*compiler, str(source.relative_to(ROOT))], source)
    if kept.exists():
        os.utime(kept)
        shutil.copyfile(kept, made)
        return str(made)
    compiled = _run([*compiler, "-c", str(source), "-o", str(made)])
    assert compiled.returncode == 0, compiled.stderr
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as part:
        part.write(made.read_bytes())
    os.replace(part.name, kept)
    return str(made)


def _cache() -> Path:
    home = (
        os.environ.get("ELASTICDL_CACHE_DIR")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elasticdl"
    )
    folder = Path(home, "sanitized")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if time.time() - old.stat().st_mtime > _KEPT_S:
            old.unlink(missing_ok=True)
    return folder


def _digest(command: Sequence[str], source: Path) -> str:
    """Of the compiler, what it is told, the source, and every header of the project."""
    told = "\0".join(part.replace(str(ROOT), "") for part in command)
    return hashlib.blake2b(
        told.encode() + _common() + source.read_bytes(), digest_size=20
    ).hexdigest()


@functools.cache
def _common() -> bytes:
    headers = sorted([*(ROOT / "elasticdl").rglob("*.h"), *(ROOT / "tests").rglob("*.h")])
    contents = [f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes() for path in headers]
    return b"\0".join([_run(["g++", "--version"]).stdout.encode(), *contents])


def _run(
    command: list[str], variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    limit_s = 280 + fuzz_s()
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=limit_s,
        env={**os.environ, **(variables or {})},
    )
