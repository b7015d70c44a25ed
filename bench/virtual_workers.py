"""What `--virtual-workers` costs a ring: samples/s and CPU time of ResNet20 beside the same ring
without.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from bench.ring import images, ours

CASES = ((2, 0), (2, 2), (2, 4), (4, 0), (4, 4))
"""Members and virtual workers (0: none)."""


def measure(rounds: int = 3) -> dict[str, dict[str, float]]:
    """Medians of interleaved rounds; takes about ten minutes."""
    seen: dict[tuple[int, int], list[tuple[float, float]]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        data = images(Path(folder))
        for _ in range(rounds):
            for members, virtual in CASES:
                seen[members, virtual].append(ours(data, members, virtual_workers=virtual))
    figures = {}
    for (members, virtual), found in seen.items():
        rate = statistics.median(rate for rate, _ in found)
        cpu_ms = statistics.median(cpu for _, cpu in found)
        name = f"{members} members, {virtual} virtual workers"
        figures[name] = {"samples_per_s": round(rate, 1), "cpu_ms_a_sample": round(cpu_ms, 3)}
        print(f"{name:30} {rate:8.1f} samples/s  {cpu_ms:.2f} ms CPU a sample", flush=True)
    return figures
