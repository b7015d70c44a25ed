"""The journal brings a job back: what is replayed is what was handled, and damage is told from a
crash.
"""

from __future__ import annotations

import math
import os
import random
from collections import deque
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.cluster.base import ExitStatus, ProcessName, Role
from elasticdl.errors import Corrupted
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.codec import event_of, event_plain
from elasticdl.master.core.events import Tick
from elasticdl.master.core.state import JobState
from elasticdl.master.journal import JournalFile, replay
from elasticdl.master.journal_rules import worth_keeping
from elasticdl.shard import Applied, ShardId, SnapshotId, Source, Task
from tests.present import present

pytestmark = pytest.mark.core

KINDS = [
    kind
    for kind in vars(e).values()
    if isinstance(kind, type) and issubclass(kind, e.Event) and kind is not e.Event
]
names = st.builds(ProcessName, st.sampled_from(Role), st.integers(0, 4), st.integers(0, 3))
any_event = st.one_of(*(st.from_type(kind) for kind in KINDS))


def same(a: Any, b: Any) -> bool:
    """Equality in which nan equals nan."""
    if is_dataclass(a):
        return type(a) is type(b) and all(
            same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a)
        )
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b


def canonical(value: Any, seen: dict[int, int] | None = None) -> Any:
    """All that a state consists of, as plain values; `now_s`, the story of recent events and
    measured waits are for people only.
    """
    seen = {} if seen is None else seen
    if value is None or isinstance(value, (str, int, float, bool, Enum, JobSpec)):
        return value
    if id(value) in seen:
        return f"object {seen[id(value)]}"
    if isinstance(value, ProcessName):
        return str(value)
    if callable(value):
        return "function"
    seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return {str(key): canonical(item, seen) for key, item in value.items()}
    if isinstance(value, set):
        value = sorted(value)
    if isinstance(value, (list, tuple, deque)):
        return [canonical(item, seen) for item in value]
    state = (
        {field.name: getattr(value, field.name) for field in fields(value)}
        if is_dataclass(value)
        else vars(value)
    )
    return {
        name: canonical(item, seen)
        for name, item in state.items()
        if name not in ("now_s", "_story", "_waits", "_period")
    }


@settings(max_examples=150, deadline=None)
@given(any_event)
def test_every_event_comes_back_from_json_as_it_was(event: Any) -> None:
    assert same(event_of(event_plain(event)), event)


@pytest.mark.parametrize(
    "plain",
    [
        {"event": "Tick", "at_s": "now"},
        {"event": "Tick", "at_s": True},
        {"event": "Tick", "at_s": 1.0, "more": 2},
        {"event": "object", "at_s": 1.0},
        {"at_s": 1.0},
        {"event": "LeaseRequested", "at_s": 1.0, "worker": {"role": "king", "index": 0}},
    ],
)
def test_what_is_no_event_is_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|king"):
        event_of(plain)


def test_an_event_that_lacks_a_field_is_refused() -> None:
    with pytest.raises(ValueError, match="at_s"):
        event_of({"event": "Tick"})


def write(directory: Path, events: list[Tick], **options: Any) -> None:
    journal = JournalFile(directory, **options)
    for event in events:
        journal.append(event)
        journal.flush()
    journal.close()


def ticks(count: int) -> list[Tick]:
    return [e.Tick(float(i)) for i in range(count)]


def test_a_journal_gives_back_its_events_over_several_segments(tmp_path: Path) -> None:
    write(tmp_path, ticks(50), segment_bytes=200)
    assert len(list(tmp_path.iterdir())) > 5
    assert list(replay(tmp_path)) == ticks(50)


def test_a_journal_of_days_keeps_its_newest_part_only(tmp_path: Path) -> None:
    write(tmp_path, ticks(20), segment_bytes=200)
    write(tmp_path, ticks(400), segment_bytes=200, kept_bytes=2_000)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert all(name.startswith("run-0002-") for name in names), "earlier runs go first"
    assert 1_600 <= sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2_000 + 300
    with pytest.raises(Corrupted, match="segments"):
        list(replay(tmp_path))


def test_no_journal_gives_no_events(tmp_path: Path) -> None:
    assert list(replay(tmp_path / "none")) == []


def test_another_run_begins_a_journal_of_its_own_and_leaves_the_old_one(tmp_path: Path) -> None:
    write(tmp_path, ticks(3))
    write(tmp_path, ticks(5))
    assert list(replay(tmp_path)) == ticks(5)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, ticks(4))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end])
        assert list(replay(tmp_path)) == ticks(3)


def test_a_flipped_bit_anywhere_before_the_last_newline_is_told_with_its_line(
    tmp_path: Path,
) -> None:
    write(tmp_path, ticks(4))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for position in range(0, len(whole) - 1, 3):
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(Corrupted, match=r"jsonl:\d"):
            list(replay(tmp_path))


def test_a_segment_that_is_missing_or_cut_off_in_the_middle_is_told(tmp_path: Path) -> None:
    write(tmp_path, ticks(20), segment_bytes=200)
    second = sorted(tmp_path.iterdir())[1]
    whole = second.read_bytes()
    second.write_bytes(whole[:-3])
    with pytest.raises(Corrupted, match="truncated"):
        list(replay(tmp_path))
    second.unlink()
    with pytest.raises(Corrupted, match="segments"):
        list(replay(tmp_path))


def test_a_disk_that_takes_no_more_ends_the_journal_and_not_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was written before is whole; a journal with a gap would be worth nothing, so it does not
    go on later.
    """
    journal = JournalFile(tmp_path)
    journal.append(e.Tick(1.0))
    journal.flush()
    (file,) = [
        int(fd.name)
        for fd in Path("/proc/self/fd").iterdir()
        if fd.is_symlink() and os.readlink(fd).startswith(str(tmp_path))
    ]
    kept = os.dup(file)
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), file)
    journal.append(e.Tick(2.0))
    journal.flush()
    os.dup2(kept, file)
    os.close(kept)
    for second in (3.0, 4.0):
        journal.append(e.Tick(second))
        journal.flush()
    journal.close()
    assert list(replay(tmp_path)) == [e.Tick(1.0)]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "No space left on device" in said and "the job continues" in said


def test_flush_gives_events_to_the_kernel_and_waits_for_the_disk_only_when_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    clock = [0.0]
    monkeypatch.setattr("os.fsync", synced.append)
    journal = JournalFile(tmp_path, sync_every_s=0.25, now_s=lambda: clock[0])
    synced.clear()
    journal.append(e.Tick(1.0))
    assert list(replay(tmp_path)) == []
    journal.flush()
    assert list(replay(tmp_path)) == [e.Tick(1.0)]
    assert synced == []
    clock[0] = 0.3
    journal.flush()
    assert len(synced) == 1
    journal.flush()
    assert len(synced) == 1
    journal.append(e.JobStarted(1.0))
    journal.flush()
    assert len(synced) == 2
    journal.close()


SPEC = JobSpec.from_flags(
    Action.TRAIN,
    {
        "model_zoo": "z",
        "model_def": "m",
        "training_data": "t",
        "validation_data": "v",
        "minibatch_size": 4,
        "num_workers": "1:3",
        "num_ps_pods": 2,
        "evaluation_steps": 3,
        "checkpoint_steps": 4,
        "num_epochs": 2,
        "max_failed_shards": 50,
        "max_relaunches": 50,
    },
)


class Script:
    """Draws events that are likely to matter: it follows the commands, and now and then makes
    something up.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.t = rng, 0.0
        self.likely: list[e.Event] = []
        self.granted: list[c.GrantLease] = []

    def heard(self, commands: list[Any]) -> None:
        for command in commands:
            match command:
                case c.StartProcess(name):
                    self.likely += [
                        e.ProcessAttached(0, name, "c", str(name), 0),
                        e.ProcessSeen(0, name, True, "n"),
                    ]
                    self.likely += [e.LeaseRequested(0, name)] * 5
                case c.GrantLease():
                    self.granted.append(command)
                case c.FenceWorker(name):
                    told = [
                        Applied(grant.lease.shard.id, grant.lease.attempt, 4)
                        for grant in self.granted
                        if grant.lease.shard
                    ]
                    self.likely.append(
                        e.WorkerFenced(0, name, (self.rng.choice([None, *told]),) * 2)
                    )
                case c.TakeSnapshot(snapshot):
                    self.likely.append(e.SnapshotCut(0, snapshot, 3, {}))
                case c.SaveSnapshot(snapshot):
                    self.likely.append(e.SnapshotSaved(0, snapshot, 3, f"p{snapshot}", 5))

    def next(self) -> e.Event:
        rng, self.t = self.rng, self.t + self.rng.choice([0.0, 0.1, 1.0, 20.0])
        name = ProcessName(rng.choice([Role.WORKER, Role.WORKER, Role.PS]), rng.randint(0, 4))
        roll = rng.random()
        if roll < 0.4 and self.likely:
            return self.at(self.likely.pop(rng.randrange(len(self.likely))))
        if roll < 0.7 and self.granted:
            return self.of_lease(rng.choice(self.granted[-4:]))
        return self.at(
            rng.choice(
                [
                    e.Tick(0),
                    e.Tick(0),
                    e.LeaseRequested(0, name),
                    e.ProcessSilent(0, name, 10.0),
                    e.ProcessEnded(0, name, ExitStatus(signal=9)),
                    e.ProcessEnded(0, name, ExitStatus(exit_code=64, log_tail="ValueError: x")),
                    e.CreateFailed(0, name, "quota", True),
                    e.VersionAdvanced(0, rng.randint(0, 30)),
                    e.SnapshotFailed(0, SnapshotId(rng.randint(0, 9)), "disk full"),
                    e.ScaleRequested(0, 1, rng.randint(1, 4)),
                    e.ReplaceRequested(0, name),
                    e.CheckpointRequested(0),
                    e.TaskFailed(0, name, Task.TRAINING, ShardId(rng.randint(0, 9)), 0, "boom"),
                    *(
                        [e.StopRequested(0, "enough"), e.WorkerStopRequested(0, name, "max steps")]
                        if self.t > 400
                        else []
                    ),
                ]
            )
        )

    def of_lease(self, grant: c.GrantLease) -> e.Event:
        lease, worker = grant.lease, grant.worker
        if lease.task is Task.SUMMARY:
            return e.SummaryReported(self.t, worker, present(lease.round), {"auc": 0.5})
        if lease.shard is None:
            return e.ExportFinished(self.t, worker, "x")
        applied = Applied(lease.shard.id, lease.attempt, self.rng.randint(0, lease.shard.records))
        if self.rng.random() < 0.1:
            return e.LeaseReturned(self.t, worker, applied, self.rng.random() < 0.5)
        done = self.rng.random() < 0.5
        offset = lease.shard.records if done else applied.offset
        metrics: dict[str, Any] = (
            {"auc": ((1.0, 2.0),)} if done and lease.task is Task.EVALUATION else {}
        )
        return e.ProgressReported(
            self.t,
            worker,
            lease.task,
            Applied(lease.shard.id, lease.attempt, offset),
            1,
            0.5,
            done=done,
            metrics=metrics,
        )

    def at(self, event: e.Event) -> e.Event:
        return type(event)(
            self.t,
            **{
                field.name: getattr(event, field.name)
                for field in fields(event)
                if field.name != "at_s"
            },
        )


@pytest.mark.parametrize("seed", range(25))
def test_the_state_after_replay_is_the_state_after_handling(seed: int, tmp_path: Path) -> None:
    script, state = Script(random.Random(seed)), JobState(SPEC)
    journal = JournalFile(tmp_path, segment_bytes=10_000)
    first = deque[e.Event](
        (
            e.MasterStarted(0.0),
            e.Tick(0.0),
            e.PreflightProgressed(0.0, "counting records: 1 of 2 files"),
            e.JobStarted(0.0, (Source("a", 30), Source("b", 17)), (Source("v", 9),)),
        )
    )
    event = first.popleft()
    for _ in range(250):
        commands = state.handle(event)
        if worth_keeping(event, commands):
            journal.append(event)
        script.heard(commands)
        event = first.popleft() if first else script.next()
    journal.close()
    again = JobState(SPEC)
    for event in replay(tmp_path):
        again.handle(event)
    assert canonical(again) == canonical(state)
