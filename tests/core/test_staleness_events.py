"""What a job says about the limit of staleness that its workers chose."""

from __future__ import annotations

import math

import pytest

from elasticdl.history.diagnosis import Story
from elasticdl.history.job_event import JobEvent
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.gateway.sessions import Session
from elasticdl.master.journal.rules import may_free_work, worth_keeping
from tests.core.conftest import Bench, worker

pytestmark = pytest.mark.core


def test_each_limit_is_announced_once_with_its_reason() -> None:
    job = Bench.running(2, num_workers=2)
    choices = ((0, 0, 0.031), (1, 0, 0.04), (1, 1, 0.5), (0, 1, 0.6), (0, 0, 0.0))
    for index, limit, share in choices:
        event = e.StalenessChosen(job.t, worker(index), limit, share)
        assert worth_keeping(event, job.put(event)) and not may_free_work(event)
    texts = [line.text for line in job.of(c.Announce) if line.kind == "staleness"]
    assert texts == [
        "worker-0 waits for its own pushes: pull and push take 3 % of a step",
        "worker-1 overlaps its own pushes: pull and push take 50 % of a step",
    ]


@pytest.mark.parametrize(("workers", "missed"), [(2, "about 1 update of"), (3, "about 2 updates")])
def test_a_loss_that_rises_says_what_a_gradient_misses(workers: int, missed: str) -> None:
    job = Bench.running(workers, num_workers=workers, num_epochs=20, sync=False)
    for loss in (1.0,) * 20 + (0.1,) * 20 + (5.0,) * 20:
        job.finish(0, job.lease(), loss=loss)
    (text,) = [line.text for line in job.of(c.Announce) if "the training loss rose" in line.text]
    assert missed in text


def test_the_story_of_a_job_has_it() -> None:
    story = Story()
    story.add(JobEvent(0, 1.0, 1.0, "staleness", "worker-0 waits", "worker-0"))
    assert [entry["text"] for entry in story.as_dict()["entries"]] == ["worker-0 waits"]


def test_a_session_tells_only_a_limit_that_is_new() -> None:
    session = Session("here")
    told = []
    for gauges in (
        {},
        {"staleness_limit": 0.0},
        {"staleness_limit": 0.0, "exchange_share": 0.1},
        {"staleness_limit": 0.0, "exchange_share": 0.2},
        {"staleness_limit": 1.0, "exchange_share": 0.4},
        {"staleness_limit": math.nan, "exchange_share": 0.4},
        {"staleness_limit": 99.0, "exchange_share": 0.4},
        {"staleness_limit": 0.0, "exchange_share": math.inf},
    ):
        session.reported(gauges)
        told.append(session.staleness_choice())
    assert told == [None, None, (0, 0.1), None, (1, 0.4), None, None, None]
