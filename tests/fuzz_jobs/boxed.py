"""Some jobs among all other tests: of seeds that are always the same, and of new ones by turns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz_jobs.flags import Strategy
from tests.fuzz_jobs.fuzzing import Plan, fuzz

SECONDS = 8.0
"""No job of a test begins later."""


def hold(strategy: Strategy, folder: Path) -> None:
    """Fuzz for a moment; every job has to hold. Prints its seeds."""
    summary = fuzz(
        Plan([strategy], _seeds(), SECONDS, parallel=1, kill_share=0.25, folder=folder), print
    )
    print(summary)
    assert summary.verdicts, "no job was run"
    assert not summary.failed, "\n\n".join(verdict.report() for verdict in summary.failed)


def _seeds() -> Iterator[int]:
    new = int(time.time())
    for number in range(1 << 20):
        yield number // 2 if number % 2 == 0 else new + number // 2
