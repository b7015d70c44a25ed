"""The stacks of all threads of this process, for people: bounded, the busiest first."""

from __future__ import annotations

import sys
import threading
import traceback
from types import FrameType

MOST_CHARS = 16_000
_MOST_FRAMES = 12


def stacks(first: int | None = None, *, most_chars: int = MOST_CHARS) -> str:
    """The innermost frames of each thread, by name; those of thread `first` (an ident) come first.

    The first line says where that thread is, by default the main thread.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    first = threading.main_thread().ident if first is None else first
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != first)
    parts = [_place(frames[0][1], str(names.get(frames[0][0], frames[0][0])))] if frames else []
    parts += [
        "thread"
        f" {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)[-_MOST_FRAMES:])}"
        for ident, frame in frames
    ]
    text = "\n".join(parts)
    return text if len(text) <= most_chars else f"{text[:most_chars]} …"


def _place(frame: FrameType, name: str) -> str:
    """`MainThread is at /work/zoo/iris.py:14, in feed`."""
    return f"{name} is at {frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
