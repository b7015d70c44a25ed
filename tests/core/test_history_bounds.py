"""The record of a job: bounded in memory and on disk, whatever the job does, and honest about what
it left out.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.history.compaction import HISTORY, ParsedLine, Policy, compacted, left_out
from elasticdl.history.event_log import KEPT, EventLog, _notable, read_events
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.history.lines import JsonLines, read_lines
from elasticdl.history.series import LABELLED_POINTS, MOST_LABELS, MOST_POINTS, Series, SeriesStore
from elasticdl.history.snapshot import record_in, record_of
from elasticdl.job_status import unknown_status

pytestmark = pytest.mark.core

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(("process", "shard", "wait")),
            "cause": st.sampled_from(("", "", "", "preempted", "infrastructure")),
            "text": st.text(max_size=60),
        }
    ),
    max_size=300,
)


def lines_of(rows: list[dict[str, str]]) -> list[ParsedLine]:
    found = []
    for seq, row in enumerate(rows):
        whole = {"seq": seq, "at": 1000.0 + seq, "at_s": float(seq), **row}
        found.append(ParsedLine(json.dumps(whole).encode(), whole))
    return found


@settings(max_examples=150, deadline=None)
@given(ROWS, st.integers(4_000, 40_000), st.booleans())
def test_a_file_that_was_compacted_is_smaller_in_order_keeps_its_ends_and_counts_the_rest(
    rows: list[dict[str, str]], limit_bytes: int, sparse: bool
) -> None:
    lines = lines_of(rows)
    kept = compacted(lines, Policy(limit_bytes, _notable, sparse))
    told = [line for line in kept if line.row["kind"] != HISTORY]
    seqs = [line.row["seq"] for line in told]
    assert seqs == sorted(set(seqs))
    assert left_out(kept).lines == len(lines) - len(told)
    if lines:
        assert seqs[0] == 0 and seqs[-1] == len(lines) - 1
    assert sum(line.size_bytes for line in told) <= 0.75 * limit_bytes + 2 * max(
        (line.size_bytes for line in lines), default=0
    )
    size = sum(line.size_bytes for line in lines if _notable(line.row))
    if size <= limit_bytes / 4 and not sparse:
        assert {line.row["seq"] for line in lines if _notable(line.row)} <= set(seqs)


@settings(max_examples=30, deadline=None)
@given(st.lists(ROWS, min_size=2, max_size=5))
def test_what_was_left_out_is_counted_over_many_compactions(
    batches: list[list[dict[str, str]]],
) -> None:
    kept: list[Any] = []
    policy, total = Policy(5_000, _notable), 0
    for rows in batches:
        fresh = lines_of([{}] * total + rows)[total:]
        total += len(rows)
        kept = compacted([*kept, *fresh], policy)
    assert left_out(kept).lines + sum(line.row["kind"] != HISTORY for line in kept) == total
    assert sum(line.row["kind"] == HISTORY for line in kept) <= 1


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 50), st.floats(allow_nan=True, allow_infinity=True, width=32) | st.none()
        ),
        max_size=400,
    ),
    st.integers(2, 40),
)
def test_a_curve_never_has_more_points_than_it_may_and_keeps_its_mean(
    steps: list[Any], most: int
) -> None:
    seen: list[Any] = []
    series, at_s = Series("loss", "", "", most), 0.0
    for wait_s, value in steps:
        at_s += wait_s
        series.add(at_s, len(seen), value)
        seen.append(value)
        assert len(series.points) <= most
    found = series.as_dict()
    assert found["at_s"] == sorted(found["at_s"])
    assert all(value is None or math.isfinite(value) for value in found["values"])
    finite = [value for value in seen if value is not None and math.isfinite(value)]
    assert sum(point.count for point in series.points) == len(finite)
    assert math.isclose(
        sum(point.total for point in series.points), math.fsum(finite), rel_tol=1e-5, abs_tol=1e30
    )
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_evaluations_within_one_second_are_points_of_their_own() -> None:
    book = SeriesStore()
    for at_s, accuracy in ((10.1, 0.8955), (10.6, 0.9565)):
        book.add(("metric", "accuracy", ""), at_s, int(at_s * 100), accuracy)
    (one,) = book.as_list()
    assert (one["at_s"], one["values"]) == ([10.1, 10.6], [0.8955, 0.9565])


@pytest.mark.parametrize(
    "series", [("metric", "accuracy", ""), ("loss", "", ""), ("pull_s", "worker-0", "s")]
)
def test_the_newest_value_of_a_curve_is_the_one_that_was_measured_last_however_few_points_are_left(
    series: tuple[str, str, str],
) -> None:
    book, again = SeriesStore(), SeriesStore()
    for index in range(10_001):
        book.add(series, index / 4, index, float(index))
        if index % 1_000 == 0:
            (one,) = book.as_list()
            assert (one["at_s"][-1], one["records"][-1], one["values"][-1]) == (
                index / 4,
                index,
                float(index),
            )
    again.load(book.as_list())
    assert again.as_list() == book.as_list() and len(book.as_list()[0]["values"]) <= MOST_POINTS


def test_a_day_of_samples_each_second_keeps_its_shape() -> None:
    series = Series("records_per_s", "", "records/s")
    for second in range(86_400):
        series.add(float(second), second * 10, math.sin(second / 86_400 * 2 * math.pi))
    assert MOST_POINTS / 2 <= len(series.points) <= MOST_POINTS
    for point in series.points:
        assert point.value == pytest.approx(math.sin(point.at_s / 86_400 * 2 * math.pi), abs=0.02)


def test_labels_are_bounded_and_the_quiet_ones_make_room() -> None:
    book = SeriesStore()
    for second in range(50):
        for worker in range(MOST_LABELS):
            book.add(("staleness", f"worker-{worker}", "updates"), float(second), 0, 1.0)
    book.add(("staleness", "worker-64", "updates"), 50.0, 0, 1.0)
    shown = {curve["label"] for curve in book.as_list()}
    assert len(shown) == MOST_LABELS and "worker-64" not in shown
    for worker in range(1, MOST_LABELS):
        book.add(("staleness", f"worker-{worker}", "updates"), 90.0, 0, 1.0)
    book.add(("staleness", "worker-65", "updates"), 90.0, 0, 1.0)
    labels = [one["label"] for one in book.as_list()]
    assert "worker-0" not in labels and "worker-65" in labels and len(labels) == MOST_LABELS


def test_curves_that_were_saved_continue_where_they_were() -> None:
    book, again = SeriesStore(), SeriesStore()
    for second in range(5_000):
        book.add(("workers", "", ""), float(second), second, float(second % 7))
        book.add(
            ("pull_s", "worker-0", "s"), float(second), second, None if second % 3 else math.inf
        )
    saved = json.loads(json.dumps(book.as_list(), allow_nan=False))
    again.load([*saved, {"name": "no series"}])
    assert again.as_list() == saved
    again.add(("pull_s", "worker-0", "s"), 6_000.0, 6_000, 1.0)
    assert [
        len(one["at_s"]) <= most
        for one, most in zip(again.as_list(), (MOST_POINTS, LABELLED_POINTS), strict=True)
    ] == [True, True]


def append(chronicle: EventLog, at_s: float, text: str = "x" * 40, **told: Any) -> None:
    chronicle.append({"at": 1_000.0 + at_s, "at_s": at_s}, {"kind": "shard", "text": text, **told})


def test_a_record_of_days_stays_below_its_size_and_says_what_it_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    chronicle = EventLog(path, 1_000.0, Policy(40_000, _notable))
    largest = 0
    for index in range(2_000):
        append(chronicle, float(index), cause="preempted" if index % 100 == 50 else "")
        if (shortening := chronicle._lines._compaction) is not None:
            shortening.join()
        largest = max(largest, path.stat().st_size)
    chronicle.close()
    found, dropped = read_events(path)
    told = [one for one in found if one.kind != HISTORY]
    assert largest < 40_500
    assert dropped + len(told) == 2_000
    assert told[0].seq == 0 and told[-1].seq == 1_999
    assert sum(one.cause == "preempted" for one in told) == 20
    marker = next(one for one in found if one.kind == HISTORY)
    assert (
        f"{dropped:,} older lines left out" in marker.text and marker.details["dropped"] == dropped
    )
    assert [one.seq for one in chronicle.after(1_997)] == [1_998, 1_999]
    assert chronicle.after(-1, limit=1)[0].seq == 1_000 and chronicle.dropped == 1_000


def test_what_is_appended_while_a_file_is_made_shorter_is_there_afterwards_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "events.jsonl"
    chronicle = EventLog(path, 1_000.0, Policy(20_000, _notable))
    for index in range(3_000):
        append(chronicle, float(index))
    chronicle.close()
    found, dropped = read_events(path)
    seqs = [one.seq for one in found if one.kind != HISTORY]
    assert dropped + len(seqs) == 3_000 and seqs[-1] == 2_999 and len(set(seqs)) == len(seqs)
    assert not list(tmp_path.glob(".*")), "nothing half-made is left"
    append(chronicle, 3_000.0)
    chronicle.close()
    assert read_events(path)[0][-1].seq == 3_000


def test_a_record_that_cannot_be_made_shorter_continues_growing_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setattr(
        "elasticdl.history.lines.read_lines",
        lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")),
    )
    lines = JsonLines(path, Policy(1_000, _notable))
    for index in range(100):
        lines.append({"index": index})
        if lines._compaction is not None:
            lines._compaction.join()
    lines.close()
    assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == list(range(100))
    assert 1 <= len(caplog.records) <= 10 and "Input/output error" in caplog.text


def test_the_next_master_continues_numbers_and_time(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first = EventLog(path, 1_000.0)
    append(first, 0.0)
    append(first, 10.0)
    first.close()
    second = EventLog(path, 1_070.0)
    assert (second.next_seq, second.began_s, second.started_at) == (2, 70.0, 1_000.0)
    second.append(
        {"at": 1_070.0, "at_s": 70.0}, {"kind": "job", "text": "done", "details": {"step": "ended"}}
    )
    second.close()
    third = EventLog(path, 90_000.0)
    assert (third.next_seq, third.began_s, third.started_at) == (3, 89_000.0, 1_000.0), (
        "a gap is not folded away"
    )
    assert third.ended_before and not second.ended_before


def test_lines_that_are_damaged_or_of_an_older_version_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    good = json.dumps({"at": 5.0, "at_s": 1.0, "kind": "job", "text": "a"})
    path.write_bytes(
        b"\n".join(
            [good.encode(), b"{", b"\xff", b"7", b'{"kind": "job"}', good.encode(), b'{"at": 1']
        )
    )
    found, dropped = read_events(path)
    assert [(one.seq, one.text, dropped) for one in found] == [(0, "a", 0), (1, "a", 0)]
    assert read_events(tmp_path / "none") == ([], 0)


def test_a_disk_that_refuses_lines_costs_lines_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = JsonLines(tmp_path / "away" / "metrics.jsonl")
    lines.append({"a": 1})
    lines.append({"a": 2})
    assert len(caplog.records) == 1
    (tmp_path / "away").mkdir()
    lines.append({"a": 3})
    lines.close()
    assert [line.row for line in read_lines(tmp_path / "away" / "metrics.jsonl")] == [{"a": 3}]


def test_a_disk_that_is_full_under_an_open_file_costs_lines_and_closing_says_nothing_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = JsonLines(Path("/dev/full"))
    for number in range(3):
        lines.append({"number": number})
    lines.close()
    assert [
        record.getMessage()
        for record in caplog.records
        if "cannot write /dev/full" in record.getMessage()
    ] != []
    assert len(caplog.records) == 1


def test_a_line_that_was_cut_short_costs_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"number": 1}\n{"number": 2, "te')
    lines = JsonLines(path)
    lines.append({"number": 3})
    lines.append({"number": 4})
    lines.close()
    assert [line.row["number"] for line in read_lines(path)] == [1, 3, 4]


@pytest.mark.parametrize(
    "line",
    [
        "[" * 200_000,
        '{"seq": 1e999, "at": 1, "at_s": 1, "kind": "job"}',
        '{"seq": 100000000000000000000, "at": 1, "at_s": 1, "kind": "job"}',
        '{"at": %s, "at_s": 1, "kind": "job"}' % ("9" * 400),
        '{"at": NaN, "at_s": 1, "kind": "job"}',
        (
            '{"at": 1, "at_s": 1, "kind": "ring", "details": {"step": "published", "generation":'
            " 1e999}}"
        ),
        '{"at": 1, "at_s": 1, "kind": "history", "details": ["x"]}',
    ],
)
def test_a_line_of_nonsense_keeps_nobody_from_the_record(tmp_path: Path, line: str) -> None:
    path = tmp_path / "events.jsonl"
    whole = '{"at": %d, "at_s": %d, "kind": "job", "text": "whole"}'
    path.write_text("\n".join((whole % (1, 1), line, whole % (2, 2))) + "\n")
    assert [event.at for event in read_events(path)[0] if event.text == "whole"] == [1.0, 2.0]
    chronicle = EventLog(path, 3.0)
    chronicle.append({"at": 3.0, "at_s": 3.0}, {"kind": "job", "text": "whole"})
    chronicle.close()
    assert [event.at for event in read_events(path)[0] if event.text == "whole"] == [1.0, 2.0, 3.0]


def test_half_a_character_in_what_is_announced_is_whole_in_the_record_and_in_all_that_is_made_of_it(
    tmp_path: Path,
) -> None:
    half = "worker-0 said \ud83d and \udcff"
    chronicle = EventLog(tmp_path / "events.jsonl", 1_000.0)
    told = {
        "kind": "process",
        "text": half,
        "process": "worker-\ud800",
        "cause": "\udfff",
        "level": "warning",
    }
    chronicle.append(
        {"at": 1_000.0, "at_s": 0.0},
        {**told, "details": {"step": "ended", "reason": half, "\ud800": 1}},
    )
    chronicle.close()
    for record in (record_of(chronicle, unknown_status("")), record_in(tmp_path)):
        for value in ([event.as_dict() for event in record.events], record.timeline, record.story):
            json.dumps(value, ensure_ascii=False).encode()
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(
            '{"at": 1, "at_s": 1, "kind": "process", "text": "from before: \\ud800", "level":'
            ' "warning"}\n'
        )
    json.dumps(record_in(tmp_path).story, ensure_ascii=False).encode()


def test_the_time_of_a_job_continues_while_it_is_stopped(tmp_path: Path) -> None:
    first = EventLog(tmp_path / "events.jsonl", 1_000.0)
    first.append(
        {"at": 1_000.0, "at_s": 0.0},
        {"kind": "job", "text": "the job begins", "details": meaning(EventStep.BEGUN)},
    )
    first.append(
        {"at": 1_060.0, "at_s": 60.0},
        {"kind": "job", "text": "the job ended", "details": meaning(EventStep.ENDED)},
    )
    first.close()
    again = EventLog(tmp_path / "events.jsonl", 4_660.0)
    assert (again.began_s, again.started_at, again.last_s, again.ended_before) == (
        3_660.0,
        1_000.0,
        60.0,
        True,
    )
    details = meaning(EventStep.BEGUN, away_s=again.began_s - again.last_s)
    again.append(
        {"at": 4_660.0, "at_s": 3_660.0},
        {"kind": "job", "text": "taken on again, 60 min after it ended", "details": details},
    )
    again.close()
    found = again.story.as_dict()
    assert found["totals"]["stopped_s"] == 3_600.0 and found["totals"]["waited_s"] == {}, (
        "nobody waited for it"
    )
    assert found["entries"][-1]["text"] == "taken on again, 60 min after it ended"
    assert [mark["at_s"] for mark in again.timeline.as_dict()["marks"]] == [0.0, 60.0, 3_660.0]


def test_a_master_that_continues_reads_old_events_in_portions(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first = EventLog(path, 1_000.0)
    for index in range(2 * KEPT + 500):
        step = ("ordered", "ready", "working", "ended")[index % 4]
        fields = {"kind": "process", "process": f"worker-{index // 4}", "text": step}
        cause = {"cause": "killed"} if step == "ended" else {}
        stamp = {"at": 1_000.0 + index, "at_s": float(index)}
        first.append(stamp, {**fields, **cause, "details": {"step": step}})
    first.close()
    whole, portions = EventLog(path, 9_000.0), EventLog(path, 9_000.0)
    assert (portions.next_seq, portions.last_s) == (2_500, 2_499.0)
    assert [event.seq for event in portions] == list(range(1_500, 2_500))
    assert portions.catch_up(700)
    for log in (whole, portions):
        append(log, 10_000.0)
        log.close()
    # A reader of all gets the new event after all old ones.
    assert not portions.catch_up(10_000)
    now_s = 11_000.0
    assert portions.story.as_dict(now_s) == whole.story.as_dict(now_s)
    assert portions.timeline.as_dict(now_s) == whole.timeline.as_dict(now_s)
    exits = whole.story.as_dict(now_s)["totals"]["exits"]
    assert exits == {"killed": 625}
