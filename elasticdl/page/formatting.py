"""Format numbers and causes for people.

`static/words.js` produces the same words, since first paint and live page must not differ.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from elasticdl.formatting import NOTHING as NOTHING
from elasticdl.formatting import duration as duration
from elasticdl.formatting import number as number
from elasticdl.formatting import percent as percent
from elasticdl.formatting import size


def count(value: float | None) -> str:
    """1234567 → `1,234,567`."""
    return NOTHING if value is None else f"{value:,.0f}"


def clock(seconds: float | None) -> str:
    """Time since the job began, for a column: `0:07`, `1:02:03`, `3 d 02:03`."""
    return (
        duration(seconds)
        if seconds is None or seconds >= 59.5
        else f"0:{max(0, math.floor(seconds + 0.5)):02}"
    )


def memory(size_bytes: float | None) -> str:
    """`512 MiB`, `1.50 GiB`; empty for a process that has not reported it."""
    return size(size_bytes) if size_bytes else NOTHING


@dataclass(frozen=True, slots=True)
class Tone:
    """A CSS class, a mark that works without colour, and words."""

    name: str
    mark: str
    word: str


CAUSES = {
    "finished": Tone("good", "✓", "finished"),
    "drained": Tone("calm", "○", "ended as asked"),
    "fenced": Tone("calm", "○", "shut out"),
    "preempted": Tone("moved", "△", "preempted"),
    "evicted": Tone("moved", "△", "evicted"),
    "node_drained": Tone("moved", "△", "node drained"),
    "node_lost": Tone("lost", "✕", "node lost"),
    "deleted": Tone("lost", "✕", "deleted"),
    "infrastructure": Tone("lost", "✕", "infrastructure"),
    "stranded": Tone("lost", "✕", "stranded"),
    "silent": Tone("lost", "✕", "silent"),
    "straggler": Tone("lost", "✕", "straggler"),
    "image_unavailable": Tone("error", "!", "image unavailable"),
    "start_error": Tone("error", "!", "could not start"),
    "user_error": Tone("error", "!", "user error"),
    "out_of_memory": Tone("memory", "▲", "out of memory"),
}
STATES = {
    "ready": Tone("live", "●", "ready"),
    "lost": Tone("lost", "✕", "lost"),
    "stopping": Tone("calm", "◐", "stopping"),
    "refused": Tone("moved", "△", "refused"),
    "pending": Tone("wait", "◌", "waiting"),
    "requested": Tone("wait", "◌", "requested"),
    "starting": Tone("wait", "◌", "starting"),
}


def tone_of(process: dict[str, Any]) -> Tone:
    """Return the tone of a process or a bar: its state, or the cause of its end."""
    state, cause = str(process.get("state") or ""), str(process.get("cause") or "")
    if state == "ended" or cause:
        return CAUSES.get(cause) or Tone("calm", "○", cause.replace("_", " ") or "ended")
    return STATES.get(state) or Tone("wait", "◌", state or "unknown")


def told(text: str, tone: Tone) -> str:
    """Return the first line of a message without the words that its tone already says."""
    first = text.partition("\n")[0]
    if first.lower().startswith(tone.word):
        return first[len(tone.word) :]
    return f" {first}" if first else ""


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")


def readable(log: str) -> str:
    """Remove terminal controls: colours, titles, and overwritten parts of progress bars."""
    plain = _ESCAPES.sub("", log).replace("\x08", "").replace("\x00", "")
    return (
        "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in plain.split("\n"))
        if "\r" in plain
        else plain
    )


def by_name(name: str) -> tuple[str, tuple[int, ...]]:
    """Sort key that puts `worker-9` before `worker-10`."""
    return re.sub(r"[-.\d]+$", "", name), tuple(int(part) for part in re.findall(r"\d+", name))
