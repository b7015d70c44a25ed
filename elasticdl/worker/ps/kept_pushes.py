"""How much memory a worker keeps pushes in, for servers that lose them.

See docs/adr/0037-kept-pushes.md.
"""

from __future__ import annotations

from elasticdl.job import JobSpec

_MOST_BYTES = 256 << 20
_SHARE = 8
"""Of a worker's memory limit, pushes take one part in so many at most."""


def kept_bytes(spec: JobSpec) -> int:
    """The bytes of acknowledged pushes that a worker of this job keeps, for all servers together.

    0 with synchronous steps: servers lose whole steps, which several workers have parts of.
    """
    if spec.trains_in_steps or not spec.keeps_checkpoints:
        return 0
    limit = spec.kubernetes.memory_limit_bytes("worker") if spec.on_kubernetes else None
    return _MOST_BYTES if limit is None else min(_MOST_BYTES, limit // _SHARE)
