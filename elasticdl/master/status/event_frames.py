"""Numbered frames of events, shared by all browsers; the newest stay for reconnects.

Nothing waits for a slow browser. It finds its next frame gone and starts again. So the memory is
bounded whatever browsers do: by the kept frames and one write per connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from elasticdl.master.status.responses import encoded

MOST_FRAMES = 120
MOST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Frame:
    """Encoded events that belong together; the last of them carries the frame's number."""

    number: int
    data: bytes


def event_bytes(name: str, payload: object, id: str = "") -> bytes:
    """Encode one server-sent event. JSON has no line breaks of its own."""
    mark = f"id: {id}\n" if id else ""
    return f"{mark}event: {name}\ndata: ".encode() + encoded(payload) + b"\n\n"


@final
class EventFrames:
    """The newest frames. Use it from one event loop.

    `term` is the master's: frame numbers of another term are meaningless here.
    """

    def __init__(self, term: int) -> None:
        self._term = term
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._bell = asyncio.Event()
        self.newest = 0
        self.closed = False

    def id(self, number: int) -> str:
        """Return a frame's id for browsers."""
        return f"{self._term}.{number}"

    def place(self, id: str) -> int | None:
        """Return the number of a frame to continue after; None if it is foreign or gone."""
        term, _, text = id.partition(".")
        if term != str(self._term) or not text.isdecimal() or not text.isascii() or len(text) > 15:
            return None
        number = int(text)
        return number if self._oldest() - 1 <= number <= self.newest else None

    def publish(self, events: Iterable[tuple[str, Any]]) -> None:
        """Make one frame of (event, payload) pairs and wake all readers. No pairs make no frame."""
        changes = list(events)
        if not changes:
            return
        self.newest += 1
        parts = [event_bytes(name, payload) for name, payload in changes[:-1]]
        name, payload = changes[-1]
        frame = Frame(
            self.newest, b"".join([*parts, event_bytes(name, payload, self.id(self.newest))])
        )
        self._frames.append(frame)
        self._bytes += len(frame.data)
        while len(self._frames) > 1 and (
            len(self._frames) > MOST_FRAMES or self._bytes > MOST_BYTES
        ):
            self._bytes -= len(self._frames.popleft().data)
        self._ring()

    def after(self, number: int) -> list[Frame] | None:
        """Return the frames after one, in order; None if some of them are gone."""
        if number < self._oldest() - 1:
            return None
        return [frame for frame in self._frames if frame.number > number]

    def close(self) -> None:
        """End the stream."""
        self.closed = True
        self._ring()

    async def changed(self) -> None:
        """Wait for the next frame, or for the end."""
        if not self.closed:
            await self._bell.wait()

    def _oldest(self) -> int:
        return self._frames[0].number if self._frames else self.newest + 1

    def _ring(self) -> None:
        self._bell.set()
        self._bell = asyncio.Event()
