"""Format counts, shares, times and sizes the same way in the command line, the page and the record.

`static/format.js` does the same.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from typing import Any

NOTHING = "–"
"""Shown for an unknown number."""


START_PARTS = {
    "import": "importing TensorFlow",
    "build": "building the model",
    "weights": "exchanging weights with the parameter servers",
    "initial": "giving the parameter servers initial values",
    "compile": "compiling its step",
}
"""The parts of a worker's start, between its registration and its readiness, in this order."""
FIRST_PART = "import"
GIVING_PART = "initial"
"""This worker gives initial values to servers without values."""

IMPORTING = "importing the model module"
BUILDING = "building the model"
"""Parts of the model check that run only user code."""
STACKS_VARIABLE = "ELASTICDL_CHECK_STACKS_S"
"""Seconds between two stacks that the check of a model reports."""


def amount(number: int, noun: str, plural: str = "") -> str:
    """`1 shard`, `1,437 records`, `0 bytes`; `plural` if it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def exit_words(code: int) -> str:
    """`exit code 1`, or `signal SIGKILL` for the negative code of a killed process."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def characters(text: str) -> str:
    """Replace lone surrogates, which no encoding accepts: the result can be written anywhere."""
    if text.isascii():
        return text  # Nearly all: a master that takes over reads thousands of events.
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def finite(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Replace what JSON cannot hold: NaN and infinity by null, and lone surrogates."""
    match value:
        case float():
            return value if value - value == 0.0 else None
        case str():
            return characters(str(value))
        case Mapping():
            return {characters(str(key)): finite(item) for key, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case _:
            return value


def done_word(action: str) -> str:
    """The verb for a job's records; a receipt counts all of them as `trained`."""
    return {"evaluate": "evaluated", "predict": "predicted"}.get(action, "trained")


def number(value: float | None) -> str:
    """Three significant digits: `1,235`, `12.3`, `0.0123`, `1.23e-6`, `1.23e15`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size < 1e12 and (size >= 100 or value == int(value)):
        return f"{value:,.0f}"
    if size < 1e-4 or size >= 1e12:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{2 - math.floor(math.log10(size))}f}"


def percent(done: int, expected: int) -> str:
    """`55 %`: whole percents, 100 only when nothing is left, and 0 if nothing is expected."""
    return f"{min(100, 100 * done // expected) if expected > 0 else 0} %"


def duration(seconds: float | None) -> str:
    """`7 s`, `3:07`, `2:03:07`, `2 d 03:07`: like a clock, for columns."""
    if seconds is None:
        return NOTHING
    whole = max(0, math.floor(seconds + 0.5))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24:02}:{minutes:02}"
    if hours:
        return f"{hours}:{minutes:02}:{left:02}"
    return f"{minutes}:{left:02}" if minutes else f"{left} s"


def spoken(seconds: float) -> str:
    """`0.4 s`, `41 s`, `12 min`, `3.4 h`, `2.5 d`: rounded, for sentences."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    if seconds < 7_170:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"


def size(size_bytes: float | None) -> str:
    """`0 B`, `312 KiB`, `1.50 GiB`."""
    if size_bytes is None:
        return NOTHING
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{number(size_bytes / scale)} {unit}"
    return f"{size_bytes:.0f} B"


def exchange_words(share: float) -> str:
    """What pull and push take, given as a share of the time that a step computes."""
    if share <= 1.0:
        return f"pull and push take {share * 100:.0f} % of a step"
    return f"pull and push take {share:.1f} times as long as a step"
