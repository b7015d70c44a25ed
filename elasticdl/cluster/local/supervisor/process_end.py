"""Wait for the end of a process on an event loop. Linux only (pidfd).

Apart from `process_wait.py`, which the template process imports: it needs no asyncio.
"""

from __future__ import annotations

import asyncio
import os


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
