"""`python -m elasticdl.master.main`: the master of one job, on this machine or in a pod."""

from __future__ import annotations

import sys

from elasticdl.cluster.local.parent_death import die_with_parent
from elasticdl.paused_collection import collect_rarely, paused_collection


def main() -> int:
    """Run the process; return its exit code."""
    die_with_parent()
    with paused_collection():
        from elasticdl.master.lifecycle import run
    collect_rarely()
    return run()


if __name__ == "__main__":
    sys.exit(main())
