"""Read files of TensorBoard."""

from __future__ import annotations

from pathlib import Path


def points(folder: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value), by TensorFlow's own reader."""
    from tensorflow.python.summary.summary_iterator import summary_iterator

    events = [
        event for path in sorted(folder.glob("events*")) for event in summary_iterator(str(path))
    ]
    return [
        (event.step, value.tag, value.simple_value)
        for event in events
        for value in event.summary.value
    ]
