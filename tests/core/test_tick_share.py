"""Which of thousands of processes a tick looks at."""

from __future__ import annotations

from typing import Any

import pytest

from bench.decisions import QUIET_S, Decisions
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.master.core import commands, events, tick_share
from elasticdl.master.core.job_context import Limits
from elasticdl.master.core.processes.table import Life, Process
from elasticdl.master.core.state import JobState
from elasticdl.master.core.tick_share import is_turn, share_of_tick, ticks_for_all
from elasticdl.master.journal.rules import worth_keeping

pytestmark = pytest.mark.core


def processes(number: int) -> list[Process]:
    names = (ProcessName(Role.WORKER, index) for index in range(number))
    return [Process(name, Life.READY, 0.0, 0.0) for name in names]


def test_a_tick_looks_at_all_of_a_thousand_processes_and_at_thousands_by_turns() -> None:
    few, many = processes(1_000), processes(9_500)
    assert all(share_of_tick(few, turn) == few and is_turn(1_000, turn) for turn in range(3))
    for first in (1, 18):
        turns = range(first, first + ticks_for_all(9_500))
        shares = [share_of_tick(many, turn) for turn in turns]
        assert max(map(len, shares)) <= 1_000
        names = sorted(one.name for share in shares for one in share)
        assert names == [one.name for one in many]
        assert [is_turn(9_500, turn) for turn in turns].count(True) == 1
    assert share_of_tick([], 3) == []


def test_a_process_keeps_its_turn_while_others_come_and_go() -> None:
    # 4,000 and 4,001 processes have different numbers of turns, and all positions shift.
    many = processes(4_001)
    assert ticks_for_all(4_000) < ticks_for_all(4_001)
    seen = set()
    for turn in range(1, 1 + ticks_for_all(4_001)):
        there = many[1:] if turn % 2 else many[-1:] + many[:-1]
        seen |= {one.name for one in share_of_tick(there, turn)}
    assert seen >= {one.name for one in many[1:]}


class Journaled(Decisions):
    """Keeps the events that a journal keeps."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.kept: list[events.Event] = []

    def _handle(self, event: events.Event) -> list[Any]:
        given = super()._handle(event)
        if worth_keeping(event, given):
            self.kept.append(event)
        return given


@pytest.mark.parametrize("every_s", [1.0, 1.07, 2.0])
def test_each_worker_has_its_turn_whatever_the_time_between_ticks_and_a_replay_agrees(
    every_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick_share, "_AT_ONCE", 20)
    job = Journaled(70)
    job.work()
    turns = ticks_for_all(len(job.state.going))
    assert turns == 4
    # Not journaled, since nobody is late yet.
    assert not any(job.tick(every_s) for _ in range(turns - 1))
    asked = [
        one.process
        for number in range(turns)
        for one in job.tick(every_s if number else QUIET_S)
        if isinstance(one, commands.AskState)
    ]
    assert {name for name in asked if name.role is Role.WORKER} == {
        name for name in job.state.going if name.role is Role.WORKER
    }
    again = JobState(job.spec, Limits())
    for event in job.kept:
        again.handle(event)
    assert again.image(job.spec) == job.state.image(job.spec)
