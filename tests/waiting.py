"""Wait in tests for what other threads, processes and tasks do: with a limit, and with the value
that was seen last in the error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT_S = 60.0


def until(
    what: str,
    look: Callable[[], T | None],
    limit_s: float = LIMIT_S,
    *,
    every_s: float = 0.02,
    context: Callable[[], object] = str,
    over: Callable[[], bool] = bool,
) -> T:
    """The first true value of `look`.

    Raises AssertionError after `limit_s`, or as soon as `over` says that the value cannot become
    true anymore. The error names `what`, the last value, and what `context` adds.
    """
    end_s = time.monotonic() + limit_s
    while True:
        # Asked first: what is over may have become true just before.
        ended = over()
        if value := look():
            return value
        if ended:
            raise AssertionError(_failure(f"it ended before: {what}", value, context))
        if time.monotonic() > end_s:
            raise AssertionError(_failure(f"not within {limit_s:g} s: {what}", value, context))
        time.sleep(every_s)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that has nothing to wait for. Raises AssertionError if it waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise AssertionError(f"{work} waits")


async def until_async(
    what: str,
    look: Callable[[], Any],
    limit_s: float = LIMIT_S,
    *,
    every_s: float = 0.01,
    context: Callable[[], object] = str,
) -> Any:
    """As `until`, of a function or a coroutine function, while other tasks run."""
    end_s = time.monotonic() + limit_s
    while True:
        found = look()
        value = await found if isinstance(found, Awaitable) else found
        if value:
            return value
        if time.monotonic() > end_s:
            raise AssertionError(_failure(f"not within {limit_s:g} s: {what}", value, context))
        await asyncio.sleep(every_s)


def _failure(what: str, value: object, context: Callable[[], object]) -> str:
    added = context()
    return f"{what}; last seen: {value!r}" + (f"\n{added}" if added else "")


def process_state(pid: int) -> str:
    """R, S, T (stopped), Z (ended, not waited for) and so on; "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def gone(pid: int) -> bool:
    """The process has ended. A zombie that nobody has waited for counts as ended."""
    return process_state(pid) in ("", "Z")
