"""The journal brings a job back: what is replayed is what was handled, and damage is told from a
crash.
"""

from __future__ import annotations

import errno
import math
import os
import random
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.errors import Corrupted
from elasticdl.master.core import events as e
from elasticdl.master.core.codec import event_of, event_plain
from elasticdl.master.core.events import Tick
from elasticdl.master.core.state import JobState
from elasticdl.master.journal.files import Header
from elasticdl.master.journal.recovery import replay
from elasticdl.master.journal.rules import worth_keeping
from elasticdl.master.journal.writer import JournalFile, JournalLimits
from tests.core.random_history import SPEC, Script, canonical
from tests.waiting import at_once, until

pytestmark = pytest.mark.core

HEADER = Header("run", 1)

KINDS = [
    kind
    for kind in vars(e).values()
    if isinstance(kind, type) and issubclass(kind, e.Event) and kind is not e.Event
]
names = st.builds(ProcessName, st.sampled_from(Role), st.integers(0, 4), st.integers(0, 3))
# Deferred: every process of a run imports this file, and one of them draws events.
any_event = st.deferred(lambda: st.one_of(*(st.from_type(kind) for kind in KINDS)))


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
    journal = JournalFile(directory, HEADER, limits=JournalLimits(**options))
    for event in events:
        journal.append(event)
        at_once(journal.flush())
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


def test_a_flipped_bit_anywhere_before_the_last_newline_is_reported_with_its_line(
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


def test_a_segment_that_is_missing_or_cut_off_in_the_middle_is_reported(tmp_path: Path) -> None:
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
    journal = JournalFile(tmp_path, HEADER)
    journal.append(e.Tick(1.0))
    at_once(journal.flush())
    (file,) = [
        int(fd.name)
        for fd in Path("/proc/self/fd").iterdir()
        if fd.is_symlink() and os.readlink(fd).startswith(str(tmp_path))
    ]
    kept = os.dup(file)
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), file)
    journal.append(e.Tick(2.0))
    at_once(journal.flush())
    os.dup2(kept, file)
    os.close(kept)
    for second in (3.0, 4.0):
        journal.append(e.Tick(second))
        at_once(journal.flush())
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
    journal = JournalFile(tmp_path, HEADER, now_s=lambda: clock[0])
    synced.clear()
    journal.append(e.Tick(1.0))
    assert list(replay(tmp_path)) == []
    at_once(journal.flush())
    assert list(replay(tmp_path)) == [e.Tick(1.0)]
    assert synced == []
    clock[0] = 0.3
    at_once(journal.flush())
    until("a sync in the other thread", lambda: len(synced) == 1)
    at_once(journal.flush())
    assert len(synced) == 1
    journal.append(e.StopRequested(1.0, "enough"))
    at_once(journal.flush())
    assert len(synced) == 2
    journal.close()


@pytest.mark.parametrize("seed", range(25))
def test_the_state_after_replay_is_the_state_after_handling(seed: int, tmp_path: Path) -> None:
    script, state = Script(random.Random(seed)), JobState(SPEC)
    journal = JournalFile(tmp_path, HEADER, limits=JournalLimits(segment_bytes=10_000))
    for _ in range(250):
        event = script.next()
        commands = state.handle(event)
        if worth_keeping(event, commands):
            journal.append(event)
        script.heard(commands)
    journal.close()
    again = JobState(SPEC)
    for event in replay(tmp_path):
        again.handle(event)
    assert canonical(again) == canonical(state)


def test_a_disk_that_fails_while_nobody_waits_ends_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, tried = [0.0], list[int]()

    def fail(file: int) -> None:
        tried.append(file)
        raise OSError(errno.EIO, "Input/output error")

    journal = JournalFile(tmp_path, HEADER, now_s=lambda: clock[0])
    journal.append(e.Tick(1.0))
    clock[0] = 0.3
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", fail)
        at_once(journal.flush())
        until("a sync in the other thread", lambda: bool(tried))
        assert journal.whole
        # The next sync waits for that one.
        journal.append(e.StopRequested(2.0, "enough"))
        at_once(journal.flush())
    assert len(tried) == 1 and not journal.whole
    assert "Input/output error" in caplog.text
    journal.close()
