"""Tests that wait say what they waited for and what they saw last."""

from __future__ import annotations

import asyncio
import os
import subprocess

import pytest

from tests.waiting import gone, until, until_async

pytestmark = pytest.mark.core


def test_the_first_true_value_is_returned() -> None:
    values = iter([0, 0, 7, 8])
    assert until("a number", lambda: next(values), every_s=0) == 7

    async def later() -> int:
        return next(values)

    assert asyncio.run(until_async("the next number", later)) == 8


def test_the_error_has_the_last_value_and_the_context() -> None:
    with pytest.raises(AssertionError, match=r"not within 0 s: a list; last seen: \[\]\nlogs"):
        until("a list", list, 0, context=lambda: "logs")
    with pytest.raises(AssertionError, match=r"not within 0 s: a list; last seen: None$"):
        asyncio.run(until_async("a list", lambda: None, 0))


def test_what_cannot_come_anymore_is_not_waited_for() -> None:
    with pytest.raises(AssertionError, match="it ended before: a list"):
        until("a list", list, over=lambda: True)
    assert until("it is there though over", lambda: True, over=lambda: True)


def test_a_zombie_is_gone_and_a_running_process_is_not() -> None:
    assert not gone(os.getpid())
    child = subprocess.Popen(["true"])
    until("it has ended", lambda: gone(child.pid))
    child.wait()
    assert gone(child.pid)
