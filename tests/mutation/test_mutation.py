"""`python -m tests.mutation` on a small scale: a known mutant is noticed, the code as it is passes,
and all that are marked as equivalent are still there.
"""

from __future__ import annotations

import ast
import functools
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.mutation.equivalent import EQUIVALENT, why_equivalent
from tests.mutation.mutants import changes_of, mutants_of, put_in
from tests.mutation.oracles import forked, jobs_fail
from tests.mutation.targets import PARTS, TESTS

pytestmark = pytest.mark.core
LEDGER = "master.core.data.ledger"


def check_what_jobs_notice() -> None:
    [mutant] = [
        one
        for one in mutants_of(LEDGER)
        if one.function == "Ledger._settle_records"
        and (one.text, one.change) == ("count.trained += done - bad", "dropped")
    ]

    def with_it() -> int:
        put_in(mutant)
        return int(jobs_fail(range(1), ["ps"]))

    assert forked(with_it, 60, 600.0, tells=True) == 1
    assert not jobs_fail(range(1), ["ps"])


def check_limits() -> None:
    def loop() -> int:
        while True:
            pass

    def wait() -> int:
        signal.pause()
        return 0

    assert forked(loop, 1, 600.0) == -signal.SIGXCPU
    assert forked(wait, 60, 0.1) is None
    read, write = os.pipe()

    def leave_a_process() -> int:
        subprocess.Popen(["sleep", "600"], pass_fds=[write])
        return 3

    assert forked(leave_a_process, 60, 600.0) == 3
    os.close(write)
    # The end of the pipe: nobody is left who has it.
    assert select.select([read], [], [], 60.0)[0] and os.read(read, 1) == b""


def test_jobs_notice_records_that_are_not_booked_and_forks_have_limits() -> None:
    """In a process without threads: it forks."""
    program = (
        "from tests.mutation import test_mutation as here;"
        " here.check_what_jobs_notice(); here.check_limits()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "line, changed",
    [
        ("if a < b: c()", ["if not a < b:\n    c()", "if a <= b:\n    c()", "if a < b:\n    pass"]),
        ("self.a = 1 + b", ["pass", "self.a = 1 - b", "self.a = 2 + b"]),
        ("a -= b", ["pass", "a += b"]),
        ("return min(a, not b)", ["return", "return max(a, not b)", "return min(a, b)"]),
        ("a = [b for b in c if b or d]", ["a = [b for b in c]", "a = [b for b in c if b and d]"]),
        (
            "match a:\n        case 1 if b < c: d()",
            [
                "match a:\n    case 1 if not b < c:\n        d()",
                "match a:\n    case 1 if b <= c:\n        d()",
                "match a:\n    case 1 if b < c:\n        pass",
            ],
        ),
        ("_LOG.info('a')", []),
        ("assert a is None", []),
    ],
)
def test_a_line_is_changed_in_these_ways(line: str, changed: list[str]) -> None:
    def function() -> ast.FunctionDef:
        [made] = ast.parse(f"def f(self):\n    {line}").body
        assert isinstance(made, ast.FunctionDef)
        return made

    found = []
    for number in range(len(changes_of(function()))):
        tree = function()
        changes_of(tree)[number].apply()
        found.append("\n".join(ast.unparse(one) for one in tree.body))
    assert sorted(found) == sorted(changed)


@functools.cache
def all_mutants() -> list[str | None]:
    return [
        why_equivalent(one) for part in PARTS.values() for name in part for one in mutants_of(name)
    ]


def test_what_is_marked_as_equivalent_is_still_in_the_code() -> None:
    stale = [one for one in EQUIVALENT if one.why not in all_mutants()]
    assert not stale


def test_the_tests_that_are_asked_are_there() -> None:
    assert [name for name in TESTS if not Path(ROOT, name).exists()] == []
