"""What it costs a worker to keep its pushes: two clients, of which one keeps them, take turns.

No checkpoint is taken, so the room is full after a while, and each push drops an older one.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Any

from bench.server import DENSE, SIZES, Client, in_turns, server_process
from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec

KEPT_BYTES = 256 << 20
AIM = 0.95
"""Of the throughput without."""
AT_LEAST_S = 10.0


def measure() -> dict[str, Any]:
    """Return the median times of pushes by Adam, without and with a log of them."""
    results: dict[str, Any] = {}
    for size in (*SIZES, 0):
        with ExitStack() as stack:
            calls = {}
            for name, kept_bytes in (("without", 0), ("kept", KEPT_BYTES)):
                address, _ = stack.enter_context(server_process())
                optimizer = OptimizerSpec(kind=OptimizerKind.ADAM)
                client = Client(address, optimizer, 1 if size else DENSE, kept_bytes=kept_bytes)
                stack.callback(client.pool.close)
                calls[name] = client.push(size) if size else client.dense_push()
            found = in_turns(calls, AT_LEAST_S)
            median_ms = {name: statistics.median(one) * 1e3 for name, one in found.items()}
        name = f"{size} rows" if size else f"{DENSE} dense weights"
        results[name] = {**median_ms, "times_as_fast": median_ms["without"] / median_ms["kept"]}
        print(
            f"{name:24} {median_ms['without']:8.3f} ms, kept {median_ms['kept']:8.3f} ms:"
            f" {results[name]['times_as_fast']:.2f} x as fast (aim {AIM})"
        )
    return results
