"""Choose which lines of an overlong history file to keep. Pure.

The first, the newest and the notable lines (ends and causes) stay. Of the rest, none or every
second line stays. A compacted file contains one line that counts what was left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from elasticdl.formatting import amount

Row: TypeAlias = Mapping[str, Any]
HISTORY = "history"
"""The kind of the line that counts omitted lines."""
_FIRST, _NOTABLE, _NEWEST = 1 / 16, 1 / 4, 1 / 4
"""Shares of the limit. They sum to less than 3/4, so that compaction is rare."""


@final
@dataclass(frozen=True, slots=True)
class Policy:
    """How to keep a file below `limit_bytes`.

    `notable`: whether a row stays longer than others. `sparse`: keep every second of the other rows
    instead of none; meant for curves.
    """

    limit_bytes: int
    notable: Callable[[Row], bool]
    sparse: bool = False


@final
@dataclass(frozen=True, slots=True)
class ParsedLine:
    """A line without its newline, and its parsed value."""

    text: bytes
    row: Row

    @property
    def size_bytes(self) -> int:
        return len(self.text) + 1


@final
@dataclass(frozen=True, slots=True)
class Left:
    """Number of omitted lines, in total and by cause or kind."""

    lines: int = 0
    by_word: Mapping[str, int] = field(default_factory=dict)


def parsed(text: bytes) -> list[ParsedLine]:
    """Return the complete lines; omit damaged lines and those that are not objects."""
    parsed_lines = []
    for line in text.split(b"\n"):
        try:
            row = json.loads(line) if line else None
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            parsed_lines.append(ParsedLine(line, row))
    return parsed_lines


def left_out(lines: Sequence[ParsedLine]) -> Left:
    """Return what the file says about its omitted lines."""
    counts: Counter[str] = Counter()
    for line in lines:
        if line.row.get("kind") == HISTORY:
            details = line.row.get("details")
            counts.update(
                {k: v for k, v in details.items() if isinstance(v, int)}
                if isinstance(details, dict)
                else {}
            )
    total = counts.pop("dropped", 0)
    return Left(total, dict(counts))


def compacted(lines: Sequence[ParsedLine], policy: Policy) -> list[ParsedLine]:
    """Return at most three quarters of the limit, in order.

    The first and the newest line always stay.
    """
    before = left_out(lines)
    lines = [line for line in lines if line.row.get("kind") != HISTORY]
    first = _fitting(lines, policy.limit_bytes * _FIRST)
    newest = _fitting(lines[first:][::-1], policy.limit_bytes * _NEWEST)
    middle = lines[first : len(lines) - newest]
    kept = _of_middle(middle, policy)
    chosen = set(map(id, kept))
    gone = [line for line in middle if id(line) not in chosen]
    result = [*lines[:first], *kept, *lines[len(lines) - newest :]]
    if before.lines or gone:
        place = _gap(result, max(0, first - 1))
        result.insert(place + 1, _compaction_line(before, gone, result[place].row, policy))
    return result


def _gap(lines: Sequence[ParsedLine], begin: int) -> int:
    """Return the index, from `begin` on, of the last line before the first gap in `seq`."""
    for index in range(begin, len(lines) - 1):
        here, after = lines[index].row.get("seq"), lines[index + 1].row.get("seq")
        if not isinstance(here, int) or after != here + 1:
            return index
    return begin


def _fitting(lines: Sequence[ParsedLine], size_bytes: float) -> int:
    """Return how many leading lines fit; at least one, if there are any."""
    total = 0
    for count, line in enumerate(lines):
        total += line.size_bytes
        if total > size_bytes:
            return max(1, count)
    return len(lines)


def _of_middle(middle: Sequence[ParsedLine], policy: Policy) -> list[ParsedLine]:
    marked = [(line, policy.notable(line.row)) for line in middle]
    kept = [
        line
        for index, (line, notable) in enumerate(marked)
        if notable or (policy.sparse and index % 2)
    ]
    limit_bytes = policy.limit_bytes * _NOTABLE
    while sum(line.size_bytes for line in kept) > limit_bytes:
        # Drop every second line of the older half, notable or not.
        half = (len(kept) + 1) // 2
        kept = [*kept[1:half:2], *kept[half:]] if half > 1 else kept[1:]
    return kept


def _compaction_line(
    before: Left, gone: Sequence[ParsedLine], last: Row, policy: Policy
) -> ParsedLine:
    """Return the line that counts omissions.

    It takes the `seq` of an omitted line, the one after `last`.
    """
    counts = Counter(dict(before.by_word))
    counts.update(str(line.row.get("cause") or line.row.get("kind") or "line") for line in gone)
    total = before.lines + len(gone)
    listed = ", ".join(f"{count:,} {word}" for word, count in counts.most_common(12))
    text = (
        f"{amount(total, 'older line')} left out to keep this file below"
        f" {policy.limit_bytes / 2**20:g} MiB: {listed}"
    )
    stamp = {key: last[key] for key in ("seq", "at", "at_s", "version", "records") if key in last}
    if isinstance(stamp.get("seq"), int):
        stamp["seq"] += 1
    row = {
        **stamp,
        "kind": HISTORY,
        "text": text,
        "values": {},
        "details": {"dropped": total, **dict(counts.most_common(24))},
    }
    return ParsedLine(json.dumps(row).encode(), row)
