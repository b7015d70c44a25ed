"""How long a fuzzer goes on: a moment among the tests, `make fuzz` says more."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

VARIABLE = "ELASTICDL_FUZZ_S"
_FEW_S = 1.5


def fuzz_s() -> float:
    """Seconds for one fuzzer."""
    return float(os.environ.get(VARIABLE, _FEW_S))


def rounds(fuzzer: str) -> Iterator[random.Random]:
    """A generator for each round, until the time is over. A failure's output has its seed."""
    seed = time.time_ns()
    end = time.monotonic() + fuzz_s()
    while time.monotonic() < end:
        print(f"{fuzzer} of seed {seed}")
        yield random.Random(seed)
        seed += 1
