"""Thousands of processes that come back to a new master: they attach again before any reports."""

from __future__ import annotations

import asyncio

import pytest

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.master.gateway import returning
from elasticdl.master.gateway.returning import ReturningProcesses

pytestmark = pytest.mark.core

WORKERS = [ProcessName(Role.WORKER, index) for index in range(200)]
LIMIT_S = 60.0


async def test_reports_wait_until_all_processes_of_a_large_job_are_back() -> None:
    expected = ReturningProcesses()
    await expected.all_are_back()
    expected.expect(WORKERS)
    reports = [asyncio.ensure_future(expected.all_are_back()) for _ in range(3)]
    for worker in WORKERS[:-1]:
        expected.came(worker)
        expected.came(worker)
        await asyncio.sleep(0)
    assert not any(report.done() for report in reports)
    reports[0].cancel()
    await asyncio.sleep(0)
    expected.came(WORKERS[-1])
    await asyncio.wait_for(asyncio.gather(*reports[1:]), LIMIT_S)
    await expected.all_are_back()


async def test_nobody_waits_for_the_few_processes_of_a_small_job() -> None:
    expected = ReturningProcesses()
    expected.expect(WORKERS[:50])
    await expected.all_are_back()


@pytest.mark.parametrize("come", [0, 100])
async def test_reports_do_not_wait_for_processes_that_do_not_come(
    come: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returning, "_QUIET_S", 0.01)
    expected = ReturningProcesses()
    expected.expect(WORKERS)
    for worker in WORKERS[:come]:
        expected.came(worker)
    await asyncio.wait_for(expected.all_are_back(), LIMIT_S)
    for worker in WORKERS:
        expected.came(worker)


@pytest.mark.parametrize(("come", "checks"), [(0, 2), (1, 5)])
async def test_nobody_waits_for_longer_than_five_checks(
    come: int, checks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if some come before each check; if none comes, the first check does not count."""
    monkeypatch.setattr(returning, "_QUIET_S", 0.001)
    check, coming, seen = ReturningProcesses._look, iter(WORKERS), list[int]()

    def some_come(expected: ReturningProcesses, missed: int, looks: int) -> None:
        seen.append(looks)
        for _ in range(come):
            expected.came(next(coming))
        check(expected, missed, looks)

    monkeypatch.setattr(ReturningProcesses, "_look", some_come)
    expected = ReturningProcesses()
    expected.expect(WORKERS)
    await asyncio.wait_for(expected.all_are_back(), LIMIT_S)
    assert len(seen) == checks
    expected.came(WORKERS[-1])
