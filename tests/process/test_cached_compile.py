"""The compiler's cache gives the same object only for the same sources, headers and flags."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.cached_compile import ROOT, keep

pytestmark = pytest.mark.process

_COMPILER = """#!/bin/sh
case "$*" in *-dM*) ;; *) echo ran >> {log} ;; esac
exec g++ "$@"
"""


class Clone:
    """A source and its header in a folder, compiled through the cache, which others share."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self._cache, self._log = folder, cache, cache / "log"
        cache.mkdir(exist_ok=True)
        folder.mkdir()
        (folder / "value.h").write_text("#pragma once\nconstexpr int VALUE = 1;\n")
        (folder / "main.cc").write_text('#include "value.h"\nint value() { return VALUE; }\n')
        self._compiler = cache / "compiler"
        self._compiler.write_text(_COMPILER.format(log=self._log))
        self._compiler.chmod(0o755)

    def compile(self, *flags: str) -> bytes:
        """The object."""
        script = [sys.executable, "-IS", str(ROOT / "scripts/cached_compile.py")]
        subprocess.run(
            [*script, str(self._compiler), *flags, "-I.", "-c", "main.cc", "-o", "made.o"],
            cwd=self.folder,
            env={**os.environ, "ELASTICDL_CACHE_DIR": str(self._cache)},
            check=True,
            timeout=60,
            capture_output=True,
        )
        return (self.folder / "made.o").read_bytes()

    @property
    def compilations(self) -> int:
        return len(self._log.read_text().splitlines())


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "clone", tmp_path / "cache")


def test_another_clone_takes_the_object_that_one_has_compiled(clone: Clone, tmp_path: Path) -> None:
    made = clone.compile("-O1")
    other = Clone(tmp_path / "other", tmp_path / "cache")
    assert other.compile("-O1") == made
    assert clone.compilations == 1


def test_another_source_header_flag_or_compiler_compiles_again(clone: Clone) -> None:
    made = [clone.compile("-O1")]
    made.append(clone.compile("-O0"))
    (clone.folder / "value.h").write_text("constexpr int VALUE = 3;\n")
    made.append(clone.compile("-O1"))
    (clone.folder / "main.cc").write_text('#include "value.h"\nint other() { return VALUE; }\n')
    made.append(clone.compile("-O1"))
    clone.compile("-O1", "-march=x86-64-v2")
    assert clone.compilations == 5
    assert len(set(made)) == 4


def test_flags_that_include_unseen_files_are_not_cached(clone: Clone) -> None:
    for _ in range(2):
        clone.compile("-include", "value.h")
    assert clone.compilations == 2


def test_a_source_that_does_not_compile_is_kept_nowhere(clone: Clone) -> None:
    (clone.folder / "main.cc").write_text("no C++\n")
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            clone.compile()
    assert clone.compilations == 2


def test_the_objects_used_last_stay_within_the_limit(tmp_path: Path) -> None:
    made = tmp_path / "made.o"
    made.write_bytes(b"x" * 100)
    cache = tmp_path / "objects"
    cache.mkdir()
    for number in range(4):
        keep(made, cache / f"{number}", most_bytes=250)
        os.utime(cache / f"{number}", (number, number))
    assert sorted(path.name for path in cache.iterdir()) == ["2", "3"]
