"""A C++ compiler that keeps its object files: `python scripts/cached_compile.py g++ -c … -o …`.

The objects are in `~/.cache/elasticdl/objects`, so a new clone compiles only what no other clone
has compiled. An object's name is a digest of all that it is made from. Other commands, those that
link, run as they are.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 1 << 30
"""Several versions of all objects. The objects that have not been used for longest are removed."""
_INCLUDED = {".h", ".hpp", ".inl", ".cpp"}
"""Suffixes of what a source may include. nanobind includes its own sources."""
_UNKNOWN = ("-isystem", "-iquote", "-include", "-imacros", "@")
"""Flags that bring in files that a digest does not see."""
_SYSTEM = """#include <features.h>
#if __has_include(<openssl/opensslv.h>)
#include <openssl/opensslv.h>
#endif
"""
"""What defines the versions of the system's own headers."""


def main(command: Sequence[str]) -> int:
    """Run a compiler's command, or copy what it made before. Return its exit code.

    A process reads headers once: they must not change while it compiles.
    """
    if "-c" not in command or "-o" not in command or any(map(_is_unknown, command)):
        return subprocess.run(command, check=False).returncode
    made = Path(command[command.index("-o") + 1])
    kept = cache() / digest(command)
    with suppress(FileNotFoundError):  # absent, or another process has just removed it
        os.utime(kept)
        shutil.copyfile(kept, made)
        return 0
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        keep(made, kept)
    return code


def _is_unknown(part: str) -> bool:
    return part.startswith(_UNKNOWN)


def cache() -> Path:
    """The folder of the objects, which exists."""
    home = os.environ.get("ELASTICDL_CACHE_DIR") or Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "elasticdl"
    )
    folder = Path(home, "objects")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def keep(made: Path, kept: Path, most_bytes: int = MOST_BYTES) -> None:
    """Copy an object to the cache, whole or not at all, and keep the cache's size below a limit."""
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as part:
        part.write(made.read_bytes())
    os.replace(part.name, kept)
    used: list[tuple[float, int, str]] = []
    for entry in os.scandir(kept.parent):
        with suppress(FileNotFoundError):  # another process removes the same
            used.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    total = 0
    for _, size, path in sorted(used, reverse=True):
        total += size
        if total > most_bytes:
            Path(path).unlink(missing_ok=True)


def digest(command: Sequence[str]) -> str:
    """Of the compiler, its target and flags, the sources, and every header that is no system's.

    Paths count relative to the repository: all clones share their objects.
    """
    output = command.index("-o") + 1
    told = [part for at, part in enumerate(command) if at != output]
    sources = [path for part in told if (path := Path(part)).suffix in {".cc", ".cpp"}]
    flags = [part for part in told[1:] if part.startswith(("-std", "-O", "-m", "-f"))]
    folders = [Path(part[2:]) for part in told if part.startswith("-I")]
    folders += sorted({path.parent for path in sources})
    total = hashlib.blake2b(digest_size=20)
    for part in (
        repr([part.replace(str(ROOT), "") for part in told]).encode(),
        _predefined(told[0], *flags),
        *(path.read_bytes() for path in sources),
        *(_included(folder.resolve()) for folder in folders),
    ):
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


@functools.cache
def _predefined(compiler: str, *flags: str) -> bytes:
    """All macros of the compiler with these flags and of the system's main headers."""
    how = [compiler, *flags, "-dM", "-E", "-x", "c++", "-"]
    ran = subprocess.run(how, input=_SYSTEM.encode(), capture_output=True, check=True)
    return ran.stdout


@functools.cache
def _included(folder: Path) -> bytes:
    """A digest of what a source can include from this folder: names and contents."""
    # Of the repository only its packages: an environment lies there, too.
    own = [folder / "elasticdl", folder / "tests"] if folder == ROOT else [folder]
    total = hashlib.blake2b()
    for path in sorted(path for place in own for path in place.rglob("*")):
        if path.suffix in _INCLUDED:
            text = path.read_bytes()
            total.update(f"{path.relative_to(folder)} {len(text)}\n".encode() + text)
    return total.digest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
