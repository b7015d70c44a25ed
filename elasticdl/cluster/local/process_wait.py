"""Wait until any process, child or not, exits: in a thread or on a loop. Linux only (pidfd)."""

from __future__ import annotations

import asyncio
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


async def end_of(pid: int) -> None:
    """Return when a process, child or not, has ended. Reaps nothing.

    Unbounded on purpose: how long a process may live is up to whoever started it.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def ends() -> None:
        loop.remove_reader(descriptor)
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(descriptor, ends)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
