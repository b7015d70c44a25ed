"""The stacks of all threads of this process, for people: bounded, the busiest first."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

MOST_CHARS = 16_000
MOST_FRAMES = 12


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
        f" {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)[-MOST_FRAMES:])}"
        for ident, frame in frames
    ]
    text = "\n".join(parts)
    return text if len(text) <= most_chars else f"{text[:most_chars]} …"


def user_frames(folder: str, first: int | None = None) -> tuple[str, ...]:
    """The innermost frames in files below `folder`, outermost first: `FILE:LINE, in FUNCTION`.

    Of thread `first`, or else of a thread in which TensorFlow calls Python code for it; () if no
    such thread is in a file of that folder.
    """
    frames = sys._current_frames()
    of_first = _below(folder, frames.get(first) if first is not None else None)
    return of_first or next(filter(None, _called_back(folder, frames)), ())


def _called_back(folder: str, frames: Mapping[int, FrameType]) -> list[tuple[str, ...]]:
    """Frames of threads that Python did not start: these are in the user's code for another."""
    started = {
        thread.ident
        for thread in threading.enumerate()
        # Python makes such a dummy for a foreign thread that asks for its name.
        if not isinstance(thread, threading._DummyThread)
    }
    return [_below(folder, frame) for ident, frame in frames.items() if ident not in started]


def _below(folder: str, frame: FrameType | None) -> tuple[str, ...]:
    frames: list[str] = []
    while frame is not None and len(frames) < MOST_FRAMES:
        code = frame.f_code
        if Path(code.co_filename).is_relative_to(folder):
            frames.append(f"{code.co_filename}:{frame.f_lineno}, in {code.co_name}")
        frame = frame.f_back
    return tuple(reversed(frames))


def _place(frame: FrameType, name: str) -> str:
    """`MainThread is at /work/zoo/iris.py:14, in feed`."""
    return f"{name} is at {frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
