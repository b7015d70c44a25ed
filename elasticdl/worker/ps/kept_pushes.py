"""How much memory a worker keeps pushes in, for servers that lose them.

See docs/adr/0037-kept-pushes.md.
"""

from __future__ import annotations

from elasticdl.job import JobSpec

_ON_A_CLUSTER = 256 << 20
_ON_ONE_MACHINE = 64 << 20
"""There a server's memory outlives it, so it is rarely lost, and all processes share one memory."""
_SHARE = 8
"""Pushes take at most one part in so many of a worker's memory limit, or those of all workers on
one machine of the memory that is free.
"""


def kept_bytes(spec: JobSpec, free_bytes: int | None) -> int:
    """The bytes of acknowledged pushes that a worker of this job keeps, for all servers together.

    0 if it keeps none. `free_bytes`: of this machine's memory; None: not known.
    """
    if not spec.keeps_pushes:
        return 0
    if not spec.on_kubernetes:
        if free_bytes is None:
            return _ON_ONE_MACHINE
        return min(_ON_ONE_MACHINE, free_bytes // _SHARE // spec.cluster.num_workers.high)
    limit = spec.kubernetes.memory_limit_bytes("worker")
    return _ON_A_CLUSTER if limit is None else min(_ON_A_CLUSTER, limit // _SHARE)
