"""The state that a next master finds in the journal of the one before."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from elasticdl.errors import MasterSuperseded
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.job_context import Limits
from elasticdl.master.core.state import JobState
from elasticdl.master.journal import files
from elasticdl.master.journal.files import Header
from elasticdl.master.journal.image_process import ImageProcess
from elasticdl.master.journal.recovery import (
    Recovered,
    Recovery,
    claim,
    last_start,
    last_stop,
    replay,
)
from elasticdl.master.journal.rules import worth_keeping
from elasticdl.master.journal.writer import JournalFile, JournalLimits
from elasticdl.master.tenure import Tenure
from tests.core.random_history import SPEC, Script, canonical
from tests.present import present
from tests.recovered import recover
from tests.waiting import at_once, until

pytestmark = pytest.mark.core

GOLDEN = Path(__file__).parent / "golden" / "journal-format-1"
HEADER = Header("this launch", 3)
OFTEN = JournalLimits(segment_bytes=8_000, image_events=20, image_times=0.0)


class Life:
    """A master that journals a random history until it is killed."""

    def __init__(
        self,
        directory: Path,
        seed: int = 1,
        *,
        header: Header = HEADER,
        limits: JournalLimits = OFTEN,
        before: Recovered | None = None,
        tenure: Tenure | None = None,
    ) -> None:
        self.directory = directory
        self.script = Script(random.Random(seed))
        if before is not None:
            header = replace(header, after=before.end)
        self.state = before.core if before else JobState(SPEC)
        self.now_s = 0.0
        self.journal = JournalFile(
            directory,
            header,
            lambda: self.state.image(SPEC),
            run=before.run if before else None,
            tenure=tenure,
            limits=limits,
            now_s=lambda: self.now_s,
        )

    def live(self, events: int) -> None:
        for _ in range(events):
            event = self.script.next()
            commands = self.state.handle(event)
            if worth_keeping(event, commands):
                self.journal.append(event)
            at_once(self.journal.flush())
            self.script.heard(commands)

    def next(self, run_name: str = HEADER.run) -> Recovered | None:
        return recover(self.directory, run_name, SPEC)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path)
    yield life
    os.close(life.journal._file)


def equal(recovered: Recovered | None, state: JobState) -> Recovered:
    assert recovered is not None
    assert canonical(recovered.core) == canonical(state)
    return recovered


@pytest.mark.parametrize("seed", range(10))
def test_the_state_comes_back_from_the_newest_image_and_the_events_after_it(
    tmp_path: Path, seed: int
) -> None:
    life = Life(tmp_path, seed)
    for _ in range(6):
        life.live(37)
        recovered = equal(life.next(), life.state)
        assert (recovered.run, recovered.term) == (1, 3)
    assert 1 <= len(files.images(tmp_path)) <= 2
    life.journal.close()


BESIDE = replace(OFTEN, beside_bytes=1, beside_times=0.0)
"""Another process writes all images but the first."""


def newest_image(directory: Path) -> tuple[int, int]:
    newest = files.images(directory)[-1]
    return newest.segment, newest.offset


@pytest.mark.parametrize("seed", range(3))
def test_a_large_image_is_written_by_a_process_that_continues_from_no_later_event(
    tmp_path: Path, seed: int
) -> None:
    life = Life(tmp_path, seed, limits=BESIDE)
    life.live(60)
    for _ in range(3):
        before = newest_image(tmp_path)

        def written(before: tuple[int, int] = before) -> bool:
            life.live(3)
            return newest_image(tmp_path) > before

        until("a process has written an image", written)
        equal(life.next(), life.state)
    life.journal.close()
    equal(life.next(), life.state)
    assert not list(tmp_path.glob(".*")), "what a killed process has left"


def test_what_a_process_cannot_write_is_written_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    life, here = Life(tmp_path, limits=BESIDE), os.getpid()
    life.live(60)

    def only_here() -> Any:
        if os.getpid() != here:
            raise OSError("no space left")
        return life.state.image(SPEC)

    monkeypatch.setattr(life.journal, "_image", only_here)
    for _ in range(2):
        before = newest_image(tmp_path)

        def written(before: tuple[int, int] = before) -> bool:
            life.live(3)
            return newest_image(tmp_path) > before

        until("an image is written", written)
        equal(life.next(), life.state)
    assert "a process could not write an image" in caplog.text
    life.journal.close()


def test_an_image_without_a_process_leaves_no_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> int:
        raise BlockingIOError(errno.EAGAIN, "too many processes")

    monkeypatch.setattr("os.fork", refused)
    life = Life(tmp_path, limits=BESIDE)
    life.live(60)
    before = newest_image(tmp_path)
    life.live(60)
    assert newest_image(tmp_path) > before
    assert life.journal.whole and "too many processes" in caplog.text
    equal(life.next(), life.state)
    life.journal.close()


def test_a_process_whose_end_nobody_can_learn_leaves_no_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = os.fork

    def lost() -> int:
        if pid := fork():
            os.waitpid(pid, 0)
        return pid

    monkeypatch.setattr("os.fork", lost)
    life = Life(tmp_path, limits=BESIDE)
    life.live(60)

    def noticed() -> bool:
        life.live(3)
        return "could not write an image" in caplog.text

    until("the journal asks", noticed)
    assert life.journal.whole
    life.journal.close()
    equal(life.next(), life.state)


def test_a_process_that_hangs_is_killed_and_nobody_waits_for_it() -> None:
    hangs = ImageProcess(lambda: time.sleep(600), 0.0)
    assert hangs.succeeded(59.0) is None
    # Whatever it has to end first, the answer is at once.
    assert hangs.succeeded(61.0) is None
    until("it is gone", lambda: hangs.succeeded(62.0) is False)
    ImageProcess(lambda: time.sleep(600), 0.0).stop()


def test_masters_one_after_another_continue_one_run(tmp_path: Path) -> None:
    life = Life(tmp_path)
    for term in range(4, 9):
        life.live(45)
        before = equal(life.next(), life.state)
        assert before.term == term - 1
        life.journal.close()
        script = life.script
        life = Life(tmp_path, header=Header(HEADER.run, term), before=before)
        life.script = script
    life.live(45)
    equal(life.next(), life.state)
    assert {segment.run for segment in files.segments(tmp_path)} == {1}
    for image in files.images(tmp_path):
        image.path.unlink()
    equal(life.next(), life.state)
    life.journal.close()


def test_only_the_newest_term_is_marked_though_others_remove_marks_too(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [claim(life.directory, HEADER.run, term) for term in (1, 9)] == [HEADER.term + 1, 9]
    assert list(files.terms(life.directory, 1)) == [9]
    # Another master has removed the mark of term 9 since this one has read the directory.
    before = [*files.terms(life.directory, 1), 10]
    files.term_path(life.directory, 1, 9).unlink()
    monkeypatch.setattr(files, "terms", lambda *_: before)
    assert claim(life.directory, HEADER.run, 10) == 10


@pytest.mark.parametrize("why", ["other launch", "nothing", "other format"])
def test_a_master_that_finds_no_journal_to_continue_keeps_its_term(life: Life, why: str) -> None:
    segment = files.segments(life.directory)[-1].path
    if why == "other format":
        segment.write_bytes(files.line({"format": 99, "run": HEADER.run, "term": 3}))
    elif why == "nothing":
        segment.unlink()
    assert claim(life.directory, "another" if why == "other launch" else HEADER.run, 7) == 7


def test_a_line_that_was_cut_off_is_removed_before_the_next_segment(life: Life) -> None:
    life.live(30)
    newest = files.segments(life.directory)[-1].path
    with newest.open("ab") as file:
        file.write(b'0badc0de {"event":"Ti')
    equal(life.next(), life.state)
    assert newest.read_bytes().endswith(b"}\n")


@pytest.mark.parametrize("damage", ["other code", "cut off", "flipped", "no start"])
def test_without_a_usable_image_all_events_are_replayed(life: Life, damage: str) -> None:
    life.live(120)
    assert files.images(life.directory)
    for image in files.images(life.directory):
        whole = bytearray(image.path.read_bytes())
        if damage == "other code":
            plain = files.line({"format": files.FORMAT, "code": "another"})
            whole[: whole.index(b"\n") + 1] = plain
        elif damage == "cut off":
            del whole[-20:]
        elif damage == "flipped":
            whole[-9] ^= 1
        image.path.write_bytes(whole)
    if damage == "no start":
        files.start_path(life.directory, 1).unlink()
    equal(life.next(), life.state)


def test_an_image_stands_for_segments_that_are_gone(life: Life) -> None:
    life.live(250)
    needed = files.images(life.directory)[0].segment
    gone = [segment for segment in files.segments(life.directory) if segment.number < needed]
    assert gone
    for one in gone:
        one.path.unlink()
    equal(life.next(), life.state)


def test_the_image_before_is_used_if_the_newest_is_damaged(life: Life) -> None:
    life.live(250)
    older, newest = files.images(life.directory)
    newest.path.write_bytes(b"")
    for one in files.segments(life.directory):
        if one.number < older.segment:
            one.path.unlink()
    equal(life.next(), life.state)


def test_the_image_before_is_used_if_the_newest_is_of_what_does_not_count(life: Life) -> None:
    """A replaced master may have written one of events that its successor had not read."""
    life.live(250)
    older, newest = files.images(life.directory)
    whole = files.segments(life.directory)[newest.segment - 1].path.stat().st_size
    newest.path.rename(files.image_path(life.directory, 1, newest.segment, whole + 1))
    for one in files.segments(life.directory):
        if one.number < older.segment:
            one.path.unlink()
    equal(life.next(), life.state)


def test_an_image_of_all_that_was_written_is_used(life: Life) -> None:
    life.live(100)
    for _ in range(100):
        life.live(1)
        image, last = files.images(life.directory)[-1], files.segments(life.directory)[-1]
        if (image.segment, image.offset) == (last.number, last.path.stat().st_size):
            break
    else:
        raise AssertionError("no image was written")
    before = [image.path for image in files.images(life.directory)[:-1]]
    for path in [*before, *(segment.path for segment in files.segments(life.directory)[:-1])]:
        path.unlink()
    equal(life.next(), life.state)


@pytest.mark.parametrize("why", ["other launch", "nothing", "not begun", "damaged", "other format"])
def test_a_journal_that_cannot_continue_the_job_is_left_alone(tmp_path: Path, why: str) -> None:
    life = Life(tmp_path / "journal", limits=JournalLimits())
    life.live(2 if why == "not begun" else 40)
    segment = files.segments(life.directory)[-1].path
    before = segment.read_bytes()
    if why == "damaged":
        lines = before.splitlines(keepends=True)
        segment.write_bytes(b"".join((*lines[:5], lines[5][:-9] + b"\n", *lines[6:])))
    elif why == "other format":
        header = files.line({"format": 99, "run": HEADER.run, "term": 3})
        segment.write_bytes(header + before[before.index(b"\n") + 1 :])
    elif why == "nothing":
        shutil.rmtree(life.directory)
    changed = segment.read_bytes() if segment.exists() else b""
    assert life.next("another" if why == "other launch" else HEADER.run) is None
    assert not segment.exists() or segment.read_bytes() == changed
    os.close(life.journal._file)


def test_a_full_disk_leaves_a_gap_which_an_image_closes(
    life: Life, caplog: pytest.LogCaptureFixture
) -> None:
    life.live(30)
    whole = os.dup(life.journal._file)
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), life.journal._file)
    life.live(30)
    os.dup2(whole, life.journal._file)
    os.close(whole)
    life.live(30)
    assert life.next() is None, "the next master must not continue from before the gap"
    life.now_s += 11.0
    life.live(30)
    equal(life.next(), life.state)
    said = [record.getMessage() for record in caplog.records if "cannot write" in record.message]
    assert len(said) == 1 and "No space left on device" in said[0]
    assert not files.gap_path(life.directory, 1).exists()


def test_lines_for_people_that_were_not_written_are_given_back(life: Life) -> None:
    life.live(60)
    since_s = life.state.now_s
    told: list[c.Command] = []
    while not told:
        event = life.script.next()
        commands = life.state.handle(event)
        life.journal.append(event)
        at_once(life.journal.flush())
        life.script.heard(commands)
        if event.at_s > since_s:
            told += [
                command for command in commands if isinstance(command, c.Announce | c.RecordMetrics)
            ]
    recovered = life.next()
    assert recovered is not None and recovered.records_after(since_s) == told
    assert not recovered.records_after(life.state.now_s)


class InDoubt:
    """The tenure of a master that nothing but its journal tells whether it was replaced."""

    async def confirm(self, fenced: Callable[[], bool]) -> None:
        assert fenced()

    async def lost(self) -> str:
        raise AssertionError("nobody asks")


@pytest.fixture
def replaced(tmp_path: Path) -> Iterator[tuple[Life, Life]]:
    """A master that does not know that it was replaced, and the one that has replaced it."""
    old = Life(tmp_path, tenure=InDoubt())
    old.live(30)
    term = claim(tmp_path, HEADER.run, 1)
    assert term == HEADER.term + 1
    before = equal(old.next(), old.state)
    new = Life(tmp_path, 2, header=Header(HEADER.run, term), before=before, tenure=InDoubt())
    yield old, new
    os.close(old.journal._file)
    os.close(new.journal._file)


@pytest.mark.parametrize("later", [0, 30, 200])
def test_what_a_replaced_master_still_writes_has_no_effect_and_does_not_count(
    replaced: tuple[Life, Life], later: int
) -> None:
    old, new = replaced
    new.live(later)
    old.journal.append(e.StopRequested(old.state.now_s, "nobody asked"))
    with pytest.raises(MasterSuperseded, match="term 4"):
        at_once(old.journal.flush())
    equal(new.next(), new.state)
    new.live(40)
    equal(new.next(), new.state)


def test_a_replaced_master_cannot_make_an_image_or_a_segment_or_a_gap(
    replaced: tuple[Life, Life],
) -> None:
    old, new = replaced
    before = {path.name for path in old.directory.iterdir()}
    for _ in range(30):
        old.journal.append(e.Tick(old.state.now_s))
    with pytest.raises(MasterSuperseded):
        at_once(old.journal.flush())
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), old.journal._file)
    old.journal.append(e.Tick(old.state.now_s))
    with pytest.raises(MasterSuperseded):
        at_once(old.journal.flush())
    assert {path.name for path in old.directory.iterdir()} == before
    equal(new.next(), new.state)


def test_a_segment_that_a_replaced_master_had_begun_just_before_does_not_count(
    tmp_path: Path,
) -> None:
    old = Life(tmp_path, limits=JournalLimits())
    old.live(30)
    before = equal(old.next(), old.state)
    kept = canonical(before.core)
    old.journal._rotate()
    old.live(10)
    new = Life(tmp_path, 2, header=Header(HEADER.run, 4), before=before)
    assert [segment.number for segment in files.segments(tmp_path)] == [1, 2, 3]
    recovered = old.next()
    assert recovered is not None and canonical(recovered.core) == kept
    new.live(30)
    equal(old.next(), new.state)
    for life in (old, new):
        life.journal.close()


def test_a_master_in_doubt_acts_while_no_later_one_has_read_its_journal(tmp_path: Path) -> None:
    life = Life(tmp_path, tenure=InDoubt())
    life.live(60)
    equal(life.next(), life.state)
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), life.journal._file)
    life.journal.append(e.Tick(life.state.now_s))
    with pytest.raises(AssertionError):
        # Without a journal nothing tells.
        at_once(life.journal.flush())
    os.close(life.journal._file)


def test_a_journal_of_format_1_still_replays(tmp_path: Path) -> None:
    """Written by the first version of this format; see `write_golden` for how."""
    directory = tmp_path / "journal"
    shutil.copytree(GOLDEN, directory)
    recovered = recover(directory, HEADER.run, SPEC)
    assert recovered is not None
    known = json.loads((GOLDEN / "receipt.json").read_text())
    receipt = json.loads(json.dumps(asdict(recovered.core.receipt())))
    # Workers of that version did not report their pushes, nor what they spent their time on.
    assert receipt.pop("updates")["applied"] == 0
    assert receipt.pop("goodput")["share"] == 0.0
    assert receipt == known


def write_golden() -> None:
    """Write the journal that later versions must read. Run it only for a new format."""
    life = Life(GOLDEN, seed=7, limits=JournalLimits())
    life.live(160)
    life.journal.close()
    known = json.dumps(asdict(life.state.receipt()), indent=1)
    (GOLDEN / "receipt.json").write_text(known + "\n")


def test_an_unfinished_command_is_known_by_its_event(life: Life) -> None:
    """What a master decided and did not do is in the state that the next one gets."""
    life.live(4)
    starts = list(life.state.presence().attached)
    assert not starts
    recovered = equal(life.next(), life.state)
    again = recovered.core.handle(e.MasterTookOver(recovered.at_s + 1.0, 4, 1.0))
    assert {one.name for one in again if isinstance(one, c.StartProcess)} >= {
        process.name
        for process in life.state._context.processes.going.values()
        if process.life == "requested"
    }


def test_a_replaced_master_learns_of_a_run_that_was_started_over(
    replaced: tuple[Life, Life],
) -> None:
    """The later run removes the marks of the earlier one, and nobody removes its own."""
    old, _ = replaced
    anew = Life(old.directory, 3, header=Header("another launch", 5), limits=JournalLimits())
    gap = files.gap_path(old.directory, 2)
    gap.touch()
    old.journal._forget()
    assert gap.exists()
    old.journal.append(e.StopRequested(old.state.now_s, "nobody asked"))
    with pytest.raises(MasterSuperseded, match="started the job over"):
        at_once(old.journal.flush())
    anew.journal.close()


def test_the_last_stop_and_the_last_start_are_those_of_the_newest_run(tmp_path: Path) -> None:
    assert last_stop(tmp_path, HEADER.run) is None and last_start(tmp_path) is None
    first = Life(tmp_path)
    first.live(60)
    for why in ("first", "second"):
        first.journal.append(e.StopRequested(first.state.now_s, why))
    segment = len(files.segments(tmp_path))
    while len(files.segments(tmp_path)) == segment:
        first.journal.append(e.Tick(first.state.now_s))
        at_once(first.journal.flush())
    first.journal.close()
    (begun,) = (one for one in replay(tmp_path) if isinstance(one, e.JobStarted))
    assert present(last_stop(tmp_path, HEADER.run)).reason == "second"
    assert last_stop(tmp_path, "another launch") is None
    # One that has not counted its records, and was not stopped.
    anew = Life(tmp_path, 2, header=Header("another launch", 5))
    anew.live(1)
    assert last_stop(tmp_path, "another launch") is None
    assert last_stop(tmp_path, HEADER.run) is None
    assert last_start(tmp_path) == begun
    later = replace(begun, at_s=begun.at_s + 9.0)
    anew.journal.append(later)
    at_once(anew.journal.flush())
    assert last_start(tmp_path) == later
    anew.journal.close()


@pytest.fixture
def long_life(tmp_path: Path) -> Iterator[Life]:
    """One without images."""
    life = Life(tmp_path, limits=JournalLimits(image_events=10_000))
    life.live(60)
    yield life
    life.journal.close()


def test_a_replay_in_portions_ends_with_the_same_state(tmp_path: Path, long_life: Life) -> None:
    recovery = Recovery(tmp_path, HEADER.run, SPEC, Limits())
    portions = 0
    while recovery.replay(0.0):
        portions += 1
    assert recovery.found and portions > 10
    equal(recovery.recovered(), long_life.state)


@pytest.mark.usefixtures("long_life")
def test_a_replay_in_portions_stops_at_a_damaged_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (segment,) = files.segments(tmp_path)
    lines = segment.path.read_bytes().splitlines(keepends=True)
    lines[20] = lines[20].replace(b"{", b"[", 1)
    segment.path.write_bytes(b"".join(lines))
    recovery = Recovery(tmp_path, HEADER.run, SPEC, Limits())
    while recovery.replay(0.0):
        pass
    assert not recovery.found and recovery.recovered() is None
    assert "damaged" in caplog.text
