"""Wait until any process, child or not, exits. Linux only (pidfd)."""

from __future__ import annotations

import os
import select


def ends_within(pid: int, timeout_s: float | None = None) -> bool:
    """Whether the process has ended, or does so in time; None waits for ever. Blocks.

    Reaps nothing.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        # `select` refuses descriptors from 1,024 on, which a master of many workers has.
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else 1000 * timeout_s))
    finally:
        os.close(descriptor)
