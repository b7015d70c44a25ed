"""The generation of the ring that this worker is to be in, as the master last said it, and what the worker says in return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, final

from elasticdl.rpc.conversation import RingDrop, RingForm, RingSave, RingWord
from elasticdl.worker.ending import Draining, Ending
from elasticdl.worker.handoff import LOOK_AGAIN_S, Ended


class Speaker(Protocol):
    """Who takes the word to the master: the outbox."""

    def say(self, word: RingWord) -> None:
        """It is told with the next report, at once."""


@final
class Forms:
    """Thread-safe: the orders' thread puts forms in, the loop's thread takes them. `listen`ers hear of each newer one."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending
        self._changed = threading.Condition()
        self._newest: RingForm | None = None
        self._listeners: list[Callable[[], None]] = []
        self._copies: Callable[[RingSave | RingDrop], None] = lambda _: None
        ending.listen(self._wake)

    @property
    def generation(self) -> int:
        """The newest one, 0 before the first."""
        return self._newest.generation if self._newest is not None else 0

    def follow(self, order: RingForm | RingSave | RingDrop) -> None:
        """An order of the master's about the ring. Copies are somebody else's, once `copies_by` said whose."""
        if isinstance(order, RingForm):
            self.put(order)
        else:
            self._copies(order)

    def copies_by(self, copies: Callable[[RingSave | RingDrop], None]) -> None:
        """Orders about copies of the weights go there."""
        self._copies = copies

    def put(self, form: RingForm) -> None:
        """The master published this generation. Old ones that come late or again are ignored."""
        with self._changed:
            if form.generation <= self.generation:
                return
            self._newest = form
            self._changed.notify_all()
        for listener in self._listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call this, from the thread that puts, after each newer form."""
        self._listeners.append(listener)

    def after(self, generation: int, limit_s: float) -> RingForm | None:
        """One newer than `generation`; blocks until there is one, for at most `limit_s`. Raises Ended, but not for a drain."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.generation > generation or self._ended(), min(limit_s, LOOK_AGAIN_S)):
                return None
            if self._ended():
                raise Ended
            return self._newest

    def _ended(self) -> bool:
        reason = self._ending.reason
        return reason is not None and not isinstance(reason, Draining)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


@final
class Word:
    """What this worker last said of itself. Belongs to the loop's thread, but for `leave`."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._lock = threading.Lock()
        self._word = RingWord()

    def ready(self) -> None:
        """Warm: what is left to do is to enter and to take the others' state."""
        self._say(ready=True)

    def entered(self, generation: int) -> None:
        """In it, with the elected state."""
        self._say(entered=generation, problem="")

    def broken(self, generation: int, problem: str) -> None:
        """It broke, or could not be entered."""
        self._say(broken=generation, problem=problem)

    def leave(self) -> None:
        """This worker drains: it wants a generation without itself. From any thread."""
        self._say(leaving=True)

    def _say(self, **facts: object) -> None:
        with self._lock:
            self._word = replace(self._word, **facts)  # type: ignore[arg-type]
            self._speaker.say(self._word)
