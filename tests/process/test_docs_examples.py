"""Code blocks of the documentation run as they stand.

One that cannot run says why in a comment above it:

    <!-- not run: REASON -->      the block is not run
    <!-- file: PATH -->           the block is written to that file

The blocks of a page run in order, in one folder, with the environment of the tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "model_zoo/README.md"])
FENCE = re.compile(
    r"^(?:<!-- (not run|file): (.+?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
RUN = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
FORKS = r"""
import gc, json, os, signal, sys, time
from contextlib import suppress
sys.modules["sklearn"] = None  # Keras would import it, and with it SciPy
import keras, tensorflow
del sys.modules["sklearn"]
gc.freeze()  # programs then end sooner
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
for line in sys.stdin:
    text, folder, told, limit_s = json.loads(line)
    end_s = time.monotonic() + limit_s
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)
        os.chdir(folder)
        for standard in (1, 2):
            os.dup2(os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), standard)
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
        sys.exit()
    os.setpgid(child, child)
    try:
        ended, status = 0, 0
        while not ended and time.monotonic() < end_s:
            time.sleep(0.01)
            ended, status = os.waitpid(child, os.WNOHANG)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(child, 0)
    with open(told, "a") as file:
        print("\nended with", os.waitstatus_to_exitcode(status), file=file)
"""
"""Runs programs as `python -c` does, each in a fork of its own: to import Keras and TensorFlow
takes more time than most of them. The package itself is not imported before. A program and its
children end with their time limit, or with the server.
"""
PARSED: dict[str, Callable[[str], Any]] = {"json": json.loads, "yaml": yaml.safe_load}
LIMIT_S = 240
START_S = 120
"""For the server, which imports Keras and TensorFlow."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    marker: str
    argument: str
    """The reason or the path that the marker gives."""
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        marker, argument, language, body = found.groups(default="")
        yield Block(
            str(page.relative_to(ROOT)),
            text[: found.start()].count("\n") + 1,
            marker,
            argument,
            language,
            body,
        )


BLOCKS = {str(page.relative_to(ROOT)): list(blocks(page)) for page in PAGES}
RUNNABLE = [
    page
    for page, found in BLOCKS.items()
    if any(one.language in RUN and not one.marker for one in found)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder in which `elasticdl` is found as a reader finds it: on PATH, and as
    .venv/bin/elasticdl.
    """
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}",
    "KUBECONFIG": os.devnull,
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
RunPython = Callable[..., str]
"""Runs a program in a folder, for at most `limit_s`. Returns what it printed, and as the last line
how it ended.
"""


@pytest.fixture(scope="module")
def run_python() -> Iterator[RunPython]:
    with forks() as run:
        yield run


@contextmanager
def forks() -> Iterator[RunPython]:
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=ENVIRONMENT, text=True) as server:
        assert server.stdin is not None

        def run(text: str, folder: Path, limit_s: float = LIMIT_S) -> str:
            told = folder / "told"
            asked = json.dumps([text, str(folder), str(told), limit_s])
            print(asked, file=server.stdin, flush=True)

            def ended() -> bool:
                return told.exists() and "\nended with " in told.read_text()

            until(
                "the program ends",
                ended,
                START_S + limit_s,
                over=lambda: server.poll() is not None,
            )
            printed = told.read_text()
            told.unlink()
            return printed

        try:
            yield run
        finally:
            server.terminate()


def run(page: str, folder: Path, run_python: RunPython) -> None:
    for block in BLOCKS[page]:
        if block.marker == "file":
            (folder / block.argument).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.argument).write_text(block.text)
        elif block.language in RUN and not block.marker:
            printed = run_block(block, folder, run_python)
            assert printed.endswith("\nended with 0\n"), f"{page}:{block.line}\n{printed}"


def run_block(block: Block, folder: Path, run_python: RunPython) -> str:
    if block.language == "python":
        return run_python(block.text, folder)
    done = subprocess.run(
        [*RUN[block.language], block.text],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    return f"{done.stdout}\nended with {done.returncode}\n"


def receipt(folder: Path, job: str) -> dict[str, int]:
    return json.loads((folder / "jobs" / job / "receipt.json").read_text())["total"]


def accuracy(folder: Path, job: str) -> float:
    rows = [
        json.loads(line)
        for line in (folder / "jobs" / job / "metrics.jsonl").read_text().splitlines()
    ]
    return [row["values"]["accuracy"] for row in rows if "accuracy" in row["values"]][-1]


def test_the_tutorial_trains_evaluates_and_predicts_with_a_new_zoo(
    folder: Path, run_python: RunPython
) -> None:
    run("docs/tutorial.md", folder, run_python)
    total = receipt(folder, "first")
    assert (total["trained"], total["lost"]) == (total["expected"], 0)
    assert accuracy(folder, "first") >= 0.9
    assert list(folder.glob("predictions/*.npz"))


# `test_wheel.py` runs the README's blocks.
@pytest.mark.parametrize("page", sorted({*RUNNABLE} - {"README.md", "docs/tutorial.md"}))
def test_the_blocks_of_a_page_run(page: str, folder: Path, run_python: RunPython) -> None:
    run(page, folder, run_python)


def test_a_program_begins_without_the_package_and_is_reported_with_its_error(
    folder: Path, run_python: RunPython
) -> None:
    there = "import sys\nprint([one for one in sys.modules if one.startswith('elasticdl')])"
    assert run_python(there, folder) == "[]\n\nended with 0\n"
    printed = run_python("import sys\nprint('b')\nraise ValueError('c')", folder)
    assert "b\n" in printed and "ValueError: c" in printed
    assert printed.endswith("\nended with 1\n")


def test_a_program_that_hangs_is_ended(folder: Path, run_python: RunPython) -> None:
    text = "import time\ntime.sleep(1000)"
    assert run_python(text, folder, limit_s=0.5) == "\nended with -9\n"


def test_data_in_the_documentation_can_be_parsed() -> None:
    parsed = [
        PARSED[one.language](one.text)
        for found in BLOCKS.values()
        for one in found
        if one.language in PARSED
    ]
    assert len(parsed) >= 2 and all(parsed)


def test_every_block_names_its_language_and_every_fence_is_a_block() -> None:
    known = {*RUN, *PARSED, "text"}
    unknown = [
        f"{one.page}:{one.line} {one.language!r}"
        for found in BLOCKS.values()
        for one in found
        if one.language not in known
    ]
    assert unknown == []
    for page in PAGES:
        fences = len(re.findall(r"^\s*```", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert fences == 2 * len(BLOCKS[str(page.relative_to(ROOT))]), page


def test_lists_and_tables_begin_after_an_empty_line() -> None:
    """GitHub shows them without one, the site does not."""
    begins = re.compile(r"^(?![-|>#]|\d+\. |\s|$|```|<!--).+\n(?:- |\d+\. |\|).*", re.MULTILINE)
    glued = [
        f"{page.relative_to(ROOT)}: {one[0]}"
        for page in PAGES
        for one in begins.finditer(page.read_text(encoding="utf-8"))
    ]
    assert glued == []
