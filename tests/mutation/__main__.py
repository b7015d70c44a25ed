"""Mutate the master's driver, leases, reconciliation and takeover, and see what is noticed.

`python -m tests.mutation --mutants 300 --seed 1`. The exit code is 1 if fewer than 95 % are caught.
See docs/testing.md.
"""

from __future__ import annotations

import argparse
import importlib
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import final

import pytest

from tests.conftest import ROOT
from tests.mutation import oracles
from tests.mutation.equivalent import why_equivalent
from tests.mutation.mutants import Mutant, mutants_of, prepare
from tests.mutation.oracles import CAUGHT, Verdict
from tests.mutation.targets import PARTS, TESTS
from tests.silence import Silence

LEAST_SHARE = 0.95
MODULES = [one for part in PARTS.values() for one in part]
KEPT = ROOT / "build/mutation"


@final
class Campaign:
    """A plugin of pytest that asks the tests about each mutant, and does not just run them."""

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self._mutants = mutants
        self.caught: Counter[str] = Counter()
        self.all: Counter[str] = Counter()
        self.verdicts: Counter[Verdict] = Counter()
        """Of both oracles: one may be asked about what the other could not tell."""
        self.equivalent = 0
        self.survivors: list[Mutant] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running the tests here."""
        for plugin in session.config.pluginmanager.get_plugins():
            if isinstance(plugin, Silence):
                plugin.pytest_sessionfinish()  # No test ends in this process.
        begin_s = time.monotonic()
        prepare()
        ran = oracles.first_run(session.items, MODULES, KEPT)
        took_s = time.monotonic() - begin_s
        print(f"{len(ran)} tests pass without a mutant, in {took_s:.0f} s", flush=True)
        left = self._ask(self._drawn(), lambda one: oracles.by_tests(one, session.items, ran))
        print(f"{len(left)} were not noticed by tests: jobs are simulated", flush=True)
        self.survivors = self._ask(left, oracles.by_jobs)
        return True

    def _drawn(self) -> list[Mutant]:
        """All but those that change nothing."""
        drawn = []
        for one in self._mutants:
            if why := why_equivalent(one):
                self.equivalent += 1
                print(f"equivalent: {one}: {why}", flush=True)
            else:
                self.all[one.module] += 1
                drawn.append(one)
        return drawn

    def _ask(self, mutants: Sequence[Mutant], oracle: Callable[[Mutant], Verdict]) -> list[Mutant]:
        """Those that were not caught. One that cannot be placed in the code does not count."""
        left = []
        for number, one in enumerate(mutants, 1):
            begin_s = spent_s()
            verdict = oracle(one)
            self.verdicts[verdict] += 1
            if verdict in CAUGHT:
                self.caught[one.module] += 1
            elif verdict is Verdict.UNPLACED:
                self.all[one.module] -= 1
            else:
                left.append(one)
            took_s = spent_s() - begin_s
            print(f"{number:4} by {verdict:27} {took_s:5.1f} s  {one}", flush=True)
        return left

    def report(self) -> str:
        """Caught of all by module, and those that were not."""
        lines = [f"not caught: {survivor}" for survivor in self.survivors]
        for part, modules in PARTS.items():
            lines += [
                f"{part:10} {module:42} {self.caught[module]:4} of {self.all[module]:4}"
                for module in modules
                if self.all[module]
            ]
        lines += [f"{number:4} by {verdict}" for verdict, number in sorted(self.verdicts.items())]
        lines.append(
            f"{self.caught.total()} of {self.all.total()} caught: {self.share:.1%};"
            f" {self.equivalent} equivalent ones were drawn, too"
        )
        return "\n".join(lines)

    @property
    def share(self) -> float:
        """Of those that were caught; those that change nothing do not count."""
        return self.caught.total() / max(1, self.all.total())


def spent_s() -> float:
    """CPU time of the forks that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument(
        "--mutants", type=int, default=300, help="number of mutants, drawn at random"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument(
        "--only", default="", metavar="WORD", help="only modules whose names contain WORD"
    )
    parser.add_argument("--list", action="store_true", help="print all, and try none")
    given = parser.parse_args()
    modules = [one for one in MODULES if given.only in one]
    for one in MODULES:
        importlib.import_module(f"elasticdl.{one}")
    found = [mutant for module in modules for mutant in mutants_of(module)]
    if given.list:
        print(*found, sep="\n")
        return 0
    drawn = random.Random(given.seed).sample(found, min(given.mutants, len(found)))
    print(f"{len(drawn)} of {len(found)} mutants of {len(modules)} modules", flush=True)
    campaign = Campaign(drawn)
    flags = ["-q", "-s", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
    code = pytest.main([*flags, *(str(ROOT / name) for name in TESTS)], [campaign])
    print(campaign.report())
    return int(code != 0 or campaign.share < LEAST_SHARE)


if __name__ == "__main__":
    sys.exit(main())
