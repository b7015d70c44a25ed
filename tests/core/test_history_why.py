"""Why: what the core announces, told again with causes and durations.

The core is the real one, its world is by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.cluster.base import ExitStatus
from elasticdl.history.diagnosis import EXPECTED, MOST_ENTRIES, Story
from elasticdl.history.diagnosis_text import entry_text
from elasticdl.history.event_log import EventLog, read_events
from elasticdl.history.job_event import EventStep, JobEvent, meaning
from elasticdl.history.snapshot import record_in
from elasticdl.history.timeline import MOST_ENDED_BARS, Timeline
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.processes.causes import ASKED
from elasticdl.shard import Applied
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core

QUOTA = "quota team exhausted: cpu 8 of 8 used, 2 more asked for"
OUT_OF_MEMORY = ExitStatus(exit_code=137, reason="OOMKilled", memory_peak_bytes=1 << 30)
ON_KUBERNETES = {"image_name": "zoo:1", "worker_resource_limit": "memory=1Gi"}


class Recorded(Bench):
    """A bench whose announcements go into a record, as the master's do."""

    def __init__(self, directory: Path, flags: dict[str, Any]) -> None:
        super().__init__(**flags)
        self.directory = directory
        self.chronicle = EventLog(directory / "events.jsonl", 1_000.0)

    def put(self, event: e.Event) -> list[c.Command]:
        commands = super().put(event)
        for command in self.of(c.Announce, commands):
            self.chronicle.append({"at": 1_000.0 + self.t, "at_s": self.t}, asdict(command))
        return commands

    def entries(self, what: str) -> list[dict[str, Any]]:
        entries = self.chronicle.story.as_dict(self.t)["entries"]
        return [entry for entry in entries if entry["what"] == what]

    def words(self, what: str) -> list[str]:
        return [entry_text(entry) for entry in self.entries(what)]

    def bar(self, process: str) -> dict[str, Any]:
        bars = self.chronicle.timeline.as_dict(self.t)["bars"]
        return next(bar for bar in bars if bar["process"] == process)


def test_the_ends_that_a_diagnosis_expects_are_those_that_the_master_asks_for() -> None:
    assert set(EXPECTED) == ASKED


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Callable[..., Recorded]]:
    """Makes a job with these flags, of which `up` workers have attached."""
    with ExitStack() as stack:

        def make(up: int | None = None, **flags: Any) -> Recorded:
            job = Recorded(tmp_path, flags)
            stack.callback(job.chronicle.close)
            if up is not None:
                job.up(up)
            return job

        yield make


def test_a_killed_worker_is_named_with_its_signal_and_with_who_took_over(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(2, num_workers=2)
    job.t = 10.0
    job.die(job.worker(1), ExitStatus(signal=9))
    assert job.words("exit") == ["worker-1 killed by signal 9 (SIGKILL); worker-2 replaces it"]
    assert job.bar("worker-1") | {"text": ""} == {
        "process": "worker-1",
        "role": "worker",
        "ordered_s": 0.0,
        "ready_s": 0.0,
        "ended_s": 10.0,
        "state": "ended",
        "cause": "infrastructure",
        "text": "",
        "where": "",
        "replaces": "",
    }
    job.t = 13.0
    job.attach(job.worker(2))
    lease = job.lease(2)
    job.t = 15.5
    job.progress(2, lease, 8)
    assert job.words("exit") == [
        "worker-1 killed by signal 9 (SIGKILL); worker-2 took over 5.5 s later"
    ]
    assert job.bar("worker-2")["replaces"] == "worker-1" and job.bar("worker-2")["ready_s"] == 13.0
    assert job.chronicle.story.as_dict()["totals"] == {
        "exits": {"infrastructure": 1},
        "waited_s": {},
        "recoveries": {"count": 1, "mean_s": 5.5, "worst_s": 5.5},
        "stopped_s": 0.0,
    }


def test_a_worker_that_runs_out_of_memory_twice_at_one_shard_is_told_so(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(1, num_workers=1, oom_memory_limit="1Gi", **ON_KUBERNETES)
    for index in range(2):
        lease = job.lease(index)
        job.t += 5.0
        job.die(job.worker(index), OUT_OF_MEMORY)
        job.fenced(index, None)
        job.attach(job.worker(index + 1))
    shard = present(lease.shard).id
    assert [words.partition(";")[0] for words in job.words("exit")] == [
        f"worker-0 out of memory at 1.0 of 1.0 GiB, on shard {shard}",
        f"worker-1 out of memory at 1.0 of 1.0 GiB, twice on shard {shard}",
    ]
    assert job.chronicle.story.as_dict()["totals"]["exits"] == {"out_of_memory": 2}


def test_a_wait_for_a_place_has_its_reason_and_its_duration(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(2, num_workers="1:4")
    for index in (2, 3):
        job.put(e.CreateFailed(0, job.worker(index), QUOTA, retry=True))
    for _ in range(41):
        job.tick(1)
    assert job.words("wait") == [f"has waited 41 s for processes to be scheduled: {QUOTA}"]
    for index in (2, 3):
        job.put(e.ProcessSeen(0, job.worker(index), running=True))
    job.tick()
    assert job.words("wait") == [f"waited 41 s for processes to be scheduled: {QUOTA}"]
    assert job.chronicle.story.as_dict()["totals"]["waited_s"] == {"place": 41.0}


def test_every_process_has_its_place_is_said_only_when_that_is_so(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(2, num_workers="1:3")
    job.put(e.CreateFailed(0, job.worker(2), QUOTA, retry=True))
    job.tick(1)
    job.put(e.ProcessSeen(0, job.worker(2), running=False))
    for _ in range(3):
        job.tick(1)
        assert not job.said("all processes are scheduled") and job.entries("wait")[0]["open"]
    job.put(e.ProcessSeen(0, job.worker(2), running=True))
    job.tick(1)
    assert job.said("all processes are scheduled") and not job.entries("wait")[0]["open"]


def test_who_still_waits_when_the_job_ends_has_got_no_place(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(1, num_workers="1:2")
    job.put(e.CreateFailed(0, job.worker(1), QUOTA, retry=True))
    job.tick(1)
    job.train_all()
    job.tick(1)
    assert job.said("no longer waiting for processes to be scheduled") and not job.said(
        "all processes are scheduled"
    )


@pytest.mark.parametrize("how", ["done", "failed", "stopped"])
def test_no_wait_outlasts_the_job(recorded: Callable[..., Recorded], how: str) -> None:
    """Its last processes end before anybody looks again."""
    job = recorded(1, num_workers="1:2")
    job.put(e.CreateFailed(0, job.worker(1), QUOTA, retry=True))
    for _ in range(12):
        job.tick(1)
    job.die(job.ps(0), ExitStatus(signal=9))
    for _ in range(6):
        job.tick(1)
    assert [entry["open"] for entry in job.entries("wait")] == [True, True]
    job.t += 0.5
    if how == "failed":
        job.put(e.CreateFailed(0, job.ps(0, 1), "not allowed", retry=False))
    elif how == "stopped":
        job.put(e.StopRequested(0, "enough"))
    else:
        job.attach(job.ps(0, 1), restored=0)
        job.train_all()
    while not job.finished:
        for process in list(job.state._context.processes.going):
            job.die(process, ExitStatus(exit_code=0, asked=True))
    assert [entry["open"] for entry in job.entries("wait")] == [False, False]
    place, servers = job.words("wait")
    assert place.startswith(
        f"waited 18 s for processes to be scheduled: {QUOTA}"
    ) and servers.startswith("waited 5.0 s for parameter servers")
    assert job.given[-1] is job.finished, "nothing is told after the end"


def test_a_record_whose_waits_nobody_ended_has_them_end_with_the_job() -> None:
    story = Story()
    for seq, (at_s, kind, details) in enumerate(
        [
            (12.0, "wait", meaning(EventStep.BEGUN, wait="place", since_s=10.0, reason=QUOTA)),
            (50.0, "job", meaning(EventStep.ENDED, exit_code=0)),
            (80.0, "job", meaning(EventStep.BEGUN, away_s=30.0)),
        ]
    ):
        story.add(JobEvent(seq, at_s, at_s, kind, "text", details=details))
    found = story.as_dict(80.0)
    assert (
        entry_text(found["entries"][0]) == f"waited 40 s for processes to be scheduled: {QUOTA}"
        and found["entries"][0]["level"] == "info"
    )
    assert found["totals"]["waited_s"] == {"place": 40.0}


def test_what_a_lost_worker_left_is_made_up_for_by_the_others_where_nobody_came_in_time(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(2, num_workers=2)
    lease = job.lease(1)
    job.t = 10.0
    job.progress(1, lease, 8)
    job.die(job.worker(1), ExitStatus(signal=9))
    told_of = Applied(present(lease.shard).id, lease.attempt, 16)
    job.fenced(1, told_of)
    assert "16 records done; worker-2 replaces it" in job.words("exit")[0], (
        "what it had not reported was settled"
    )
    job.t = 14.0
    job.train_all()
    assert job.words("exit")[0].endswith(
        "16 records done; other workers finished its shards 4.0 s later"
    )
    assert job.chronicle.story.as_dict()["totals"]["recoveries"] == {
        "count": 1,
        "mean_s": 4.0,
        "worst_s": 4.0,
    }


def test_a_wait_that_changes_its_reason_tells_how_long_each_stood(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(2, num_workers="1:4")
    for index in (2, 3):
        job.put(e.CreateFailed(0, job.worker(index), QUOTA, retry=True))
    for _ in range(20):
        job.tick(1)
    for index in (2, 3):
        job.put(
            e.ProcessSeen(
                0,
                job.worker(index),
                running=False,
                waiting_for="no node has room: 0/3 nodes are available",
            )
        )
    for _ in range(12):
        job.tick(1)
    for index in (2, 3):
        job.put(e.ProcessSeen(0, job.worker(index), running=True))
    job.tick()
    (wait,) = job.words("wait")
    assert (
        wait == f"waited 32 s for processes to be scheduled: {QUOTA} (20 s), no node has room:"
        " 0/3 nodes are available (12 s)"
    )


def test_servers_that_are_away_are_a_wait_with_the_time_that_it_took(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(1, num_workers=1)
    job.tick(1)
    job.die(job.ps(0), ExitStatus(signal=9))
    job.put(e.ProcessSeen(0, job.ps(0, 1), running=True))
    for _ in range(7):
        job.tick(1)
    assert job.words("wait") == ["has waited 6.0 s for parameter servers: ps-0.1 is starting"]
    job.attach(job.ps(0, 1), restored=0)
    for _ in range(4):
        job.tick(1)
    (wait,) = job.entries("wait")
    assert wait["seconds"] == 6.0 and not wait["open"]
    assert job.words("exit")[0] == "ps-0 killed by signal 9 (SIGKILL); ps-0.1 took over 7.0 s later"


def test_a_slow_start_says_where_the_time_went(recorded: Callable[..., Recorded]) -> None:
    job = recorded(num_workers=1)
    job.start()
    job.attach(job.ps(0))
    job.t = 26.0
    job.put(e.ProcessSeen(0, job.worker(0), running=True, where="node-a"))
    job.t = 34.0
    job.attach(job.worker(0))
    assert job.words("start") == [
        "worker-0 was ready 34 s after it was ordered: 26 s until it ran, 8.0 s until it attached"
    ]
    assert job.bar("worker-0")["where"] == "node-a"
    lease = job.lease(0)
    job.t = 50.0
    job.progress(0, lease, 8)
    assert (
        job.words("start")[1]
        == "worker-0 made its first progress 16 s after it was ready: 16 s for its first steps,"
        " including compilation"
    )


def test_a_worker_is_ready_when_it_can_work_and_a_slow_start_names_its_parts(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(num_workers=1)
    job.start()
    job.attach(job.ps(0))
    job.t = 1.0
    job.put(e.ProcessSeen(0, job.worker(0), running=True))
    job.t = 3.0
    job.put(e.ProcessAttached(0, job.worker(0), "c", "b", starting=True))

    def shown() -> tuple[str, str, int]:
        (row,) = [process for process in job.state.status().processes if process.role == "worker"]
        return row.state, row.message, job.state.status().scale.observed

    assert (
        shown() == ("starting", "importing TensorFlow", 0)
        and job.bar("worker-0")["ready_s"] is None
    )
    assert any(
        "worker-0 is starting: importing TensorFlow" in wait for wait in job.state.status().waiting
    )
    for at_s, part in ((12.0, "build"), (24.5, "weights"), (25.0, "")):
        job.t = at_s
        job.put(e.StartWentOn(0, job.worker(0), part))
    assert shown() == ("ready", "", 1) and job.bar("worker-0")["ready_s"] == 25.0
    assert job.words("start") == [
        "worker-0 was ready 25 s after it was ordered: 1.0 s until it ran, 2.0 s until it attached,"
        " 9.0 s importing TensorFlow, 12 s building the model, 0.5 s exchanging weights"
        " with the parameter servers"
    ]
    job.t = 30.0
    lease = job.lease(0)
    job.t = 41.0
    job.progress(0, lease, 8)
    assert job.words("start")[1].endswith(
        ": 5.0 s until it had work, 11 s for its first steps, including compilation"
    )


def test_a_member_of_a_ring_is_ready_when_it_says_that_it_is_warm(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(num_workers=1, distribution_strategy="AllreduceStrategy")
    job.start()
    job.put(e.ProcessAttached(0, job.worker(0), "c", "b", starting=True))
    for at_s, part in ((5.0, "build"), (9.0, "compile")):
        job.t = at_s
        job.put(e.StartWentOn(0, job.worker(0), part))
    assert job.state.status().scale.observed == 0
    job.t = 20.0
    job.put(e.RingReported(0, job.worker(0), True, 0, 0, False, ""))
    assert job.state.status().scale.observed == 1
    assert "11 s compiling its step" in job.words("start")[0]


def test_a_silent_worker_that_was_out_of_memory_is_reported_as_that_later(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(1, num_workers=1, **ON_KUBERNETES)
    job.t = 20.0
    job.put(e.ProcessSilent(0, job.worker(0), 10.0))
    assert job.entries("exit")[0]["cause"] == "silent"
    job.t = 25.0
    job.put(e.ProcessEnded(0, job.worker(0), OUT_OF_MEMORY))
    assert (
        job.bar("worker-0")["cause"] == "out_of_memory" and job.bar("worker-0")["ended_s"] == 20.0
    )
    assert (
        "out of memory" in job.words("exit")[0]
        and job.entries("exit")[0]["cause"] == "out_of_memory"
    )


def test_who_is_scaled_down_is_nobody_that_another_comes_for(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(3, num_workers=3)
    job.put(e.ScaleRequested(0, 1, 1))
    for index in (1, 2):
        job.die(job.worker(index), ExitStatus(exit_code=66, asked=True))
    job.put(e.ScaleRequested(0, 2, 2))
    assert job.bar("worker-3")["replaces"] == ""
    assert {entry["level"] for entry in job.entries("exit")} == {"info"}
    assert job.words("note") == [
        "workers scaled from 3:3 to 1:1 on request",
        "workers scaled from 1:1 to 2:2 on request",
    ]


def test_a_worker_that_is_scaled_down_and_hangs_is_named_as_one_that_ended_by_force(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(2, num_workers=2)
    job.put(e.ScaleRequested(0, 1, 1))
    job.die(job.worker(1), ExitStatus(exit_code=68, asked=True, log_tail="still running"))
    (entry,) = job.entries("exit")
    assert (entry["level"], entry["cause"]) == ("warning", "hung")
    assert entry["text"].startswith("worker-1 ended by force: still running")


def test_the_file_tells_the_same_story_as_the_memory_of_the_master(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(2, num_workers=2)
    job.t = 10.0
    job.die(job.worker(1), ExitStatus(signal=9))
    job.chronicle.close()
    found = record_in(job.directory, now_s=10.0)
    assert found.story == job.chronicle.story.as_dict(10.0)
    assert found.timeline == job.chronicle.timeline.as_dict(10.0)
    assert [event.seq for event in found.events] == list(range(len(found.events)))
    assert tuple(found.events) == tuple(job.chronicle)


def ordered_worker(seq: int, at_s: float) -> JobEvent:
    """The order to start worker-0."""
    details = meaning(EventStep.ORDERED)
    text = "starting worker-0"
    return JobEvent(seq, 1_000.0 + at_s, at_s, "process", text, "worker-0", details=details)


def test_a_master_in_the_place_of_another_ends_the_bars_that_nobody_saw_end(tmp_path: Path) -> None:
    timeline, story = Timeline(), Story()
    lines = [
        ordered_worker(0, 0.0),
        JobEvent(
            1,
            1_040.0,
            40.0,
            "job",
            "job resumed after",
            details=meaning(EventStep.BEGUN, away_s=30.0),
        ),
        ordered_worker(2, 40.0),
    ]
    for line in lines:
        timeline.add(line)
        story.add(line)
    assert [(bar["ended_s"], bar["ordered_s"]) for bar in timeline.as_dict(50.0)["bars"]] == [
        (40.0, 0.0),
        (None, 40.0),
    ]
    assert [entry_text(entry) for entry in story.as_dict()["entries"][:2]] == [
        "the master was killed or lost with 1 process: worker-0",
        "waited 30 s for a master: the previous one was gone",
    ]


def test_processes_that_another_master_takes_over_have_not_ended() -> None:
    timeline, story = Timeline(), Story()
    details = meaning(EventStep.BEGUN, away_s=2.6, kept=1)
    for one in (
        ordered_worker(0, 0.0),
        JobEvent(1, 1_040.0, 40.0, "job", "another master continues the job", details=details),
    ):
        timeline.add(one)
        story.add(one)
    assert [bar["ended_s"] for bar in timeline.as_dict(50.0)["bars"]] == [None]
    told = story.as_dict()
    assert told["totals"]["exits"] == {}
    assert "another master continues the job" in told["entries"][-1]["text"]
    assert not [entry for entry in told["entries"] if entry["level"] == "error"]


def test_a_ring_continues_before_another_comes_and_that_is_what_is_reported() -> None:
    story = Story()
    for seq, (at_s, kind, process, cause, details) in enumerate(
        [
            (
                10.0,
                "process",
                "worker-1",
                "infrastructure",
                meaning(EventStep.ENDED, reason="killed by signal 9 (SIGKILL)"),
            ),
            (10.0, "process", "worker-3", "", meaning(EventStep.ORDERED, replaces="worker-1")),
            (
                10.1,
                "ring",
                "",
                "",
                meaning(
                    EventStep.PUBLISHED,
                    generation=2,
                    members="worker-0 worker-2",
                    reason="worker-1 is gone",
                ),
            ),
            (10.3, "ring", "", "", meaning(EventStep.COMPLETE, generation=2, seconds=0.2)),
            (25.0, "process", "worker-3", "", meaning(EventStep.WORKING, after_s=1.0)),
        ]
    ):
        story.add(JobEvent(seq, at_s, at_s, kind, "text", process, cause, details=details))
    assert [entry_text(entry) for entry in story.as_dict()["entries"]] == [
        "worker-1 killed by signal 9 (SIGKILL); the ring continued 0.3 s later",
        "generation 2 of the ring, 2 members: worker-1 is gone",
    ]
    assert story.as_dict()["totals"]["recoveries"] == {"count": 1, "mean_s": 0.3, "worst_s": 0.3}


STEPS = st.sampled_from([str(step) for step in EventStep] + ["", "nonsense"])
EVENTS = st.builds(
    lambda at_s, kind, process, cause, level, step, values: JobEvent(
        0, 1_000.0 + at_s, at_s, kind, "text", process, cause, level, {"step": step, **values}
    ),
    st.floats(0, 1e6),
    st.sampled_from(
        (
            "process",
            "wait",
            "job",
            "ring",
            "checkpoint",
            "evaluation",
            "scale",
            "shard",
            "history",
            "task",
        )
    ),
    st.sampled_from(("", "worker-0", "worker-1", "worker-2", "ps-0", "ps-0.1", "nonsense")),
    st.sampled_from(("", "finished", "infrastructure", "preempted")),
    st.sampled_from(("info", "warning", "error", "detail")),
    STEPS,
    st.dictionaries(
        st.sampled_from(
            (
                "replaces",
                "wait",
                "since_s",
                "waited_s",
                "shard",
                "generation",
                "members",
                "seconds",
                "after_s",
                "reason",
            )
        ),
        st.integers(0, 50)
        | st.floats(0, 1e6)
        | st.sampled_from(("worker-0", "worker-1", "place", "x")),
        max_size=5,
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=60))
def test_whatever_a_file_holds_there_is_a_timeline_and_a_story_of_it(
    events: list[JobEvent],
) -> None:
    timeline, story = Timeline(), Story()
    for one in events:
        timeline.add(one)
        story.add(one)
    bars, found = timeline.as_dict(1e6), story.as_dict(1e6)
    json.dumps([bars, found], allow_nan=False)
    assert (
        sum(1 for event in events if event.kind == "process" and event.step == EventStep.ORDERED)
        == len(bars["bars"]) + bars["bars_dropped"]
    )
    going = [bar["process"] for bar in bars["bars"] if bar["ended_s"] is None]
    assert len(going) == len(set(going))
    assert all(entry_text(entry) for entry in found["entries"] if entry["text"])


def test_of_a_job_of_a_hundred_thousand_processes_the_newest_stay() -> None:
    timeline, story = Timeline(), Story()
    for index in range(20_000):
        name, at_s = f"worker-{index}", float(index)
        timeline.add(
            JobEvent(2 * index, at_s, at_s, "process", "", name, details=meaning(EventStep.ORDERED))
        )
        end = JobEvent(
            2 * index + 1,
            at_s,
            at_s + 0.5,
            "process",
            "",
            name,
            "preempted",
            details=meaning(EventStep.ENDED, reason="x"),
        )
        timeline.add(end)
        story.add(end)
    bars, found = timeline.as_dict(), story.as_dict()
    assert len(bars["bars"]) == MOST_ENDED_BARS and bars["bars_dropped"] == 20_000 - MOST_ENDED_BARS
    assert bars["bars"][-1]["process"] == "worker-19999"
    assert len(found["entries"]) == MOST_ENTRIES and found["totals"]["exits"] == {
        "preempted": 20_000
    }


def test_a_job_whose_master_was_killed_ends_with_the_last_that_is_written_of_it(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(1, num_workers=1)
    job.t = 20.0
    job.die(job.ps(0), ExitStatus(signal=9))
    job.chronicle.close()
    found = record_in(job.directory, killed="its master was killed")
    bars = {(bar["process"], bar["ended_s"], bar["state"]) for bar in found.timeline["bars"]}
    assert bars == {(name, 20.0, "ended") for name in ("ps-0", "ps-0.1", "worker-0")}
    assert found.story["entries"][-1]["text"] == found.events[-1].text == "its master was killed"
    assert record_in(job.directory).events[-1].text != "its master was killed", (
        "nothing is written by who only looks"
    )
    later = record_in(job.directory, killed="its master was killed", heard_s=95.0)
    assert (later.events[-1].at_s, later.events[-1].at) == (95.0, found.events[-1].at + 75.0)
    assert {bar["ended_s"] for bar in later.timeline["bars"]} == {20.0, 95.0}


def test_an_old_record_without_steps_still_has_its_words(tmp_path: Path) -> None:
    row = {
        "at": 1.0,
        "at_s": 1.0,
        "kind": "process",
        "text": "worker-0 ended: killed",
        "process": "worker-0",
        "level": "warning",
    }
    (tmp_path / "events.jsonl").write_text(json.dumps(row) + "\n")
    assert read_events(tmp_path / "events.jsonl")[0][0].step == ""
    assert [entry["text"] for entry in record_in(tmp_path).story["entries"]] == [
        "worker-0 ended: killed"
    ]


def test_why_says_why_a_callback_ended_the_training(recorded: Callable[..., Recorded]) -> None:
    job = recorded(1, num_workers=1)
    job.put(e.WorkerStopRequested(0, job.worker(0), "16 steps are done"))
    assert job.words("note") == ["ending training early: 16 steps are done"]


@pytest.mark.parametrize(
    ("trained", "words"), [(True, "working took 12 s"), (False, "no progress in 12 s")]
)
def test_a_phase_in_which_nothing_was_done_is_not_said_to_have_been_worked_in(
    recorded: Callable[..., Recorded], trained: bool, words: str
) -> None:
    job = recorded(1, num_workers=1)
    if trained:
        job.progress(0, job.lease(), 8)
    job.t += 12.0
    job.put(e.StopRequested(0, "enough"))
    assert words in job.words("phase")[-1]


def test_a_master_that_was_killed_and_what_went_with_it_stay_in_why_when_the_job_continues(
    recorded: Callable[..., Recorded],
) -> None:
    job = recorded(2, num_workers=2)
    job.t = 20.0
    job.die(job.worker(1), ExitStatus(signal=9))
    job.chronicle.close()
    killed = record_in(job.directory, killed="its master was killed").story
    assert killed["totals"]["exits"] == {"infrastructure": 4}, (
        "worker-1 by itself, three with their master"
    )
    again = EventLog(job.directory / "events.jsonl", 1_050.0)
    again.append(
        {"at": 1_050.0, "at_s": 50.0},
        {"kind": "job", "text": "again", "details": meaning(EventStep.BEGUN, away_s=30.0)},
    )
    again.close()
    story = again.story.as_dict()
    assert story["totals"]["exits"] == {"infrastructure": 4}
    (gone,) = [entry for entry in story["entries"] if entry["level"] == "error"]
    assert (
        gone["text"] == "the master was killed or lost with 3 processes: ps-0, worker-0, worker-2"
    )
    assert (gone["at_s"], gone["at"]) == (20.0, 1_020.0)


def test_a_job_that_continues_after_its_end_lost_nobody(recorded: Callable[..., Recorded]) -> None:
    job = recorded(1, num_workers=1)
    ended = {"kind": "job", "text": "ended", "details": meaning(EventStep.ENDED)}
    job.chronicle.append({"at": 1_020.0, "at_s": 20.0}, ended)
    job.chronicle.append(
        {"at": 1_050.0, "at_s": 50.0},
        {"kind": "job", "text": "x", "details": meaning(EventStep.BEGUN, away_s=30.0)},
    )
    story = job.chronicle.story.as_dict()
    assert story["totals"]["exits"] == {} and not [
        entry for entry in story["entries"] if entry["level"] == "error"
    ]
