"""Tests that are coroutines, each on an event loop of its own.

A value that such a test takes, from a fixture or from `parametrize`, may be an asynchronous context
manager. It is entered on the test's loop, and the test gets what that gives.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    unentered = [
        name
        for name, value in pyfuncitem.funcargs.items()
        if name not in given and isinstance(value, AbstractAsyncContextManager)
    ]
    assert not unentered, f"only what a test takes itself is entered, and not {unentered}"

    async def run() -> None:
        async with AsyncExitStack() as stack:
            await test(**{name: await _entered(stack, one) for name, one in given.items()})

    asyncio.run(run())
    return True


async def _entered(stack: AsyncExitStack, value: Any) -> Any:
    if isinstance(value, AbstractAsyncContextManager):
        return await stack.enter_async_context(value)
    return value
