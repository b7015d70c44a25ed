"""What may notice a mutant: tests that run its lines, the quickest first, then simulated jobs.

All run in forks of one process that has imported everything, and collected the tests. A fork has a
limit of CPU time, which does not depend on other work of the machine. Its deadline by the clock is
for those that wait forever.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.mutation.mutants import Mutant, put_in
from tests.simulation.runner import run_jobs

TESTS_CPU_S = 5.0
"""Of the tests that are asked about one mutant, by what they took in the first run."""
FEW, MORE, STRATEGIES = 3, 15, ("ps", "sync", "ring")
CPU_LIMIT_S, DEADLINE_S = 100, 1200.0
"""Of a fork: CPU time, and time of the clock on a machine that is busy with other work."""
FIRST_LIMIT_S = 1800
_DATA_BYTES = 4 << 30


class Verdict(StrEnum):
    """What became of a mutant."""

    BY_TEST = "a test"
    BY_SIMULATION = "a simulated job"
    BY_CPU_LIMIT = "the CPU limit"
    LATE = "no answer: the deadline"
    ENDED = "no answer: a signal or exit"
    SURVIVED = "nothing"
    UNPLACED = "not tried"


CAUGHT = (Verdict.BY_TEST, Verdict.BY_SIMULATION, Verdict.BY_CPU_LIMIT)
_NOTICED, _NOT_NOTICED, _UNPLACED, _BROKEN = 10, 0, 30, 40
"""Exit codes of forks."""


@dataclass(frozen=True)
class Ran:
    """What a test took, and the lines of each module that it ran."""

    cpu_s: float
    lines: Mapping[str, frozenset[int]]


def first_run(items: Sequence[pytest.Item], modules: Sequence[str], kept: Path) -> dict[str, Ran]:
    """Run all tests on the code as it is, by node id. Raises RuntimeError if one fails.

    `kept`: a folder for what came of each file of tests. It is used until a source of the project
    or of the tests changes.
    """
    files = {inspect.getfile(sys.modules[f"elasticdl.{module}"]): module for module in modules}
    sources = [one for part in ("elasticdl", "tests") for one in (ROOT / part).rglob("*.py")]
    digest = _digest(sorted(sources), ",".join(modules))
    found: dict[str, Ran] = {}
    kept.mkdir(parents=True, exist_ok=True)
    for path, group in itertools.groupby(items, key=lambda item: item.path):
        answer = kept / f"{path.stem}-{digest}.json"
        if not answer.exists():
            tests = list(group)
            trace = functools.partial(_trace, tests, files, answer)
            forked(trace, FIRST_LIMIT_S, FIRST_LIMIT_S, tells=True)
        if not answer.exists():
            raise RuntimeError(f"without any mutant, tests of {path.name} fail")
        for name, (cpu_s, ran) in json.loads(answer.read_text()).items():
            lines = {module: frozenset(lines) for module, lines in ran.items()}
            found[name] = Ran(cpu_s, lines)
    return found


def _digest(paths: Iterable[Path], more: str) -> str:
    digest = hashlib.sha256(more.encode())
    for path in paths:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _trace(items: Sequence[pytest.Item], files: Mapping[str, str], answer: Path) -> int:
    seen: dict[str, set[int]] = {module: set() for module in files.values()}

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        if (module := files.get(frame.f_code.co_filename)) is None:
            return None
        lines = seen[module]

        def step(frame: FrameType, event: str, argument: object) -> Any:
            lines.add(frame.f_lineno)
            return step

        return step

    ran: dict[str, tuple[float, dict[str, list[int]]]] = {}
    threading.settrace(enter)
    sys.settrace(enter)
    for item, following in zip(items, [*items[1:], None], strict=True):
        begin_s = time.process_time()
        if not _passes(item, following):
            print(f"without any mutant, {item.nodeid} fails", file=sys.stderr)
            return 1
        # A test may have set it, or ended it.
        sys.settrace(enter)
        lines = {module: sorted(found) for module, found in seen.items() if found}
        ran[item.nodeid] = (time.process_time() - begin_s, lines)
        for found in seen.values():
            found.clear()
    sys.settrace(None)
    answer.write_text(json.dumps(ran))
    return 0


def by_tests(mutant: Mutant, items: Sequence[pytest.Item], ran: Mapping[str, Ran]) -> Verdict:
    """Ask tests in a fork. Raises RuntimeError if the mutant cannot be tried."""
    chosen = chosen_for(mutant, items, ran)

    def ask() -> bool:
        following = [*chosen[1:], None]
        return not all(map(_passes, chosen, following))

    return _verdict(mutant, ask, Verdict.BY_TEST)


def by_jobs(mutant: Mutant) -> Verdict:
    """Simulate jobs in a fork, a few first. Raises RuntimeError if the mutant cannot be tried."""

    def ask() -> bool:
        return any(jobs_fail(seeds, STRATEGIES) for seeds in (range(FEW), range(FEW, MORE)))

    return _verdict(mutant, ask, Verdict.BY_SIMULATION)


def chosen_for(
    mutant: Mutant, items: Sequence[pytest.Item], ran: Mapping[str, Ran]
) -> list[pytest.Item]:
    """Those that ran its lines, the quickest first, as many as there is time for."""
    lines = set(range(mutant.lines[0], mutant.lines[1] + 1))
    covering = [item for item in items if lines & ran[item.nodeid].lines.get(mutant.module, set())]
    covering.sort(key=lambda one: ran[one.nodeid].cpu_s)
    chosen, left_s = [], TESTS_CPU_S
    for one in covering:
        left_s -= ran[one.nodeid].cpu_s
        if left_s < 0:
            break
        chosen.append(one)
    return chosen


def _verdict(mutant: Mutant, ask: Callable[[], bool], found: Verdict) -> Verdict:
    def work() -> int:
        try:
            put_in(mutant)
        except LookupError:
            return _UNPLACED
        try:
            return _NOTICED if ask() else _NOT_NOTICED
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - the mutant may raise anything
            return _NOTICED

    code = forked(work, CPU_LIMIT_S, DEADLINE_S)
    if code == _BROKEN:
        raise RuntimeError(f"cannot try {mutant}")
    verdicts = {
        _NOTICED: found,
        _NOT_NOTICED: Verdict.SURVIVED,
        _UNPLACED: Verdict.UNPLACED,
        -signal.SIGXCPU: Verdict.BY_CPU_LIMIT,
        None: Verdict.LATE,
    }
    return verdicts.get(code, Verdict.ENDED)


def jobs_fail(seeds: Iterable[int], strategies: Sequence[str]) -> bool:
    """Whether a simulated job of these seeds shows a defect."""
    return bool(run_jobs(seeds, strategies).failures)


def _passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    before = item.session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return item.session.testsfailed == before


def forked(
    work: Callable[[], int], cpu_s: int, deadline_s: float, *, tells: bool = False
) -> int | None:
    """The exit code of a fork that does this; minus the number of a signal that ended it, SIGXCPU
    after `cpu_s` of CPU time; None after `deadline_s`.

    No process of its group is left. `tells`: it may write to stderr.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _child(work, cpu_s, tells)
    with suppress(OSError):  # Both do it, so that the group is there whoever is first.
        os.setpgid(pid, pid)
    end_s = time.monotonic() + deadline_s
    ended = False
    try:
        while not (ended := _has_ended(pid)) and time.monotonic() < end_s:
            time.sleep(0.02)
    finally:
        os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) if ended else None


def _has_ended(pid: int) -> bool:
    """It is not waited for yet, so that nobody else can get its id."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _child(work: Callable[[], int], cpu_s: int, tells: bool) -> None:
    code = _BROKEN
    try:
        # What tests start ends with it, and a mutant that never stops taking memory is stopped.
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, _DATA_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, resource.RLIM_INFINITY))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        if not tells:
            os.dup2(quiet, 2)
        code = work()
    except BaseException:  # noqa: BLE001 - it must not go on in the fork as the program
        traceback.print_exc()
    finally:
        os._exit(code)
