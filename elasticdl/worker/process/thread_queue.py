"""Hand items from one thread of the worker to the next: in order, bounded, and with an end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, final

T = TypeVar("T")

LOOK_AGAIN_S = 1.0
"""Waits wake this often, so that a lost wake-up cannot block a thread for good."""


class Ended(Exception):
    """Nothing more will come through this queue."""


@final
class ThreadQueue(Generic[T]):
    """A bounded queue between two threads that either side, or a third, can end.

    `finish` lets the receiver have the remaining items; `close` drops them. Both wake all waiters.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[T] = deque()
        self._finished = False
        self._changed = threading.Condition()

    def put(self, item: T) -> None:
        """Add an item; blocks while `depth` items wait. Raises Ended after `finish` or `close`."""
        with self._changed:
            while len(self._items) >= self._depth and not self._finished:
                self._changed.wait(LOOK_AGAIN_S)
            if self._finished:
                raise Ended
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> T:
        """The next item; blocks until there is one. Raises Ended if there will be none."""
        with self._changed:
            while not self._items and not self._finished:
                self._changed.wait(LOOK_AGAIN_S)
            # `finish` lets the receiver empty the queue first; `close` has emptied it.
            if not self._items:
                raise Ended
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def drop(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove and return the waiting items that are unwanted."""
        with self._changed:
            dropped = [item for item in self._items if unwanted(item)]
            self._items = deque(item for item in self._items if not unwanted(item))
            self._changed.notify_all()
            return dropped

    def finish(self) -> None:
        """Accept no more items; the remaining ones may still be taken."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def close(self) -> None:
        """End now and drop the remaining items."""
        with self._changed:
            self._finished = True
            self._items.clear()
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._items)
