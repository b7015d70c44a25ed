"""A diagnosis as text: its entries for people, and all of it in the lines of a master's log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from elasticdl.formatting import amount, spoken
from elasticdl.history.diagnosis_entry import OTHERS, What

MOST_LOGGED = 200
MARK = "why: "


def story_lines(story: Mapping[str, Any]) -> list[str]:
    """Return the newest 200 entries and the totals as log lines, which `story_of_lines` parses."""
    entries = story["entries"][-MOST_LOGGED:]
    head = {
        "dropped": story["dropped"] + len(story["entries"]) - len(entries),
        "totals": story["totals"],
        "now_s": story["now_s"],
    }
    return [
        MARK + json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
        for entry in (head, *entries)
    ]


def story_of_lines(lines: Iterable[str]) -> dict[str, Any] | None:
    """Return the newest story in a log, or None. Lines may have any prefix before the mark."""
    story: dict[str, Any] | None = None
    for line in lines:
        _, mark, text = line.partition(MARK)
        try:
            value = json.loads(text) if mark else None
        except ValueError:
            continue
        if isinstance(value, dict) and "totals" in value:
            story = {"entries": [], **value}
        elif isinstance(value, dict) and story is not None:
            story["entries"].append(value)
    return story


def frame_lines(entry: Mapping[str, Any]) -> list[str]:
    """Return where the process was in the user's code, a line a frame, outermost first."""
    return [f"at {frame}" for frame in str(entry.get("frames", "")).splitlines()]


def entry_text(entry: Mapping[str, Any]) -> str:
    """Return an entry as one line: what happened, how long it took, and what came of it."""
    text = str(entry["text"])
    if records := int(entry.get("records") or 0):
        text += f"; {amount(records, 'record')} done"
    match entry["what"]:
        case What.WAIT:
            verb = "has waited" if entry["open"] else "waited"
            text = f"{verb} {spoken(entry['seconds'] or 0.0)} {text}"
        case What.EXIT if entry["recovered_s"] is not None:
            by = str(entry["recovered_by"])
            who = {"ring": "the ring continued", OTHERS: "other workers finished its shards"}.get(
                by, f"{by} took over"
            )
            text += f"; {who} {spoken(entry['recovered_s'])} later"
        case What.EXIT if entry["replaced_by"]:
            text += f"; {entry['replaced_by']} replaces it"
        case _:
            pass
    return text
