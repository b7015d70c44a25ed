"""What stands for `threading` and `time` in the worker's modules while they are simulated."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

from tests.simulation.scheduler import Scheduler, Task

_PACKAGE = "elasticdl.worker."

_current: Scheduler | None = None


def use(scheduler: Scheduler | None) -> None:
    """Threads, locks and times belong to this one from now on."""
    global _current
    _current = scheduler


def _scheduler() -> Scheduler:
    assert _current is not None, "no job is being simulated"
    return _current


@final
class Lock:
    """`threading.Lock`. `gives_way`: whether its takers let others run, now and then."""

    def __init__(self, *, gives_way: bool = True) -> None:
        self._scheduler = _scheduler()
        self._gives_way = gives_way
        self._held = False
        self._waiting: deque[Task] = deque()

    def acquire(self) -> bool:
        scheduler = self._scheduler
        if self._gives_way and scheduler.gives_way:
            scheduler.give_way()
        while self._held:
            assert scheduler.current is not None
            self._waiting.append(scheduler.current)
            scheduler.park()
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        if self._waiting:
            self._scheduler.wake(self._waiting.popleft())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@final
class Condition:
    """`threading.Condition` on a lock of its own that its holder may take again."""

    def __init__(self) -> None:
        self._scheduler = _scheduler()
        self._owner: object = None
        self._depth = 0
        self._entering: deque[Task] = deque()
        self._sleeping: list[Task] = []

    def __enter__(self) -> bool:
        scheduler = self._scheduler
        me = scheduler.current
        if self._owner is me and self._depth:
            self._depth += 1
            return True
        if scheduler.gives_way:
            scheduler.give_way()
        self._take(me, 1)
        return True

    def __exit__(self, *_: object) -> None:
        if self._owner is not self._scheduler.current:
            return  # killed while it waited: it has the lock no more
        self._depth -= 1
        if not self._depth:
            self._leave()

    def _take(self, me: Task | None, depth: int) -> None:
        while self._depth:
            assert me is not None, "a lock is held, and the hub cannot wait"
            self._entering.append(me)
            self._scheduler.park()
        self._owner, self._depth = me, depth

    def _leave(self) -> None:
        self._owner, self._depth = None, 0
        if self._entering:
            self._scheduler.wake(self._entering.popleft())

    def wait(self, timeout: float | None = None) -> bool:
        me, depth = self._scheduler.current, self._depth
        assert me is not None and self._owner is me
        self._sleeping.append(me)
        self._leave()
        woken = self._scheduler.park(timeout)
        if me in self._sleeping:
            self._sleeping.remove(me)
        self._take(me, depth)
        return woken

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        end_s = None if timeout is None else self._scheduler.now_s + timeout
        while not predicate():
            left_s = None if end_s is None else end_s - self._scheduler.now_s
            if left_s is not None and left_s <= 0:
                return predicate()
            self.wait(left_s)
        return True

    def notify(self, n: int = 1) -> None:
        for task in self._sleeping[:n]:
            self._scheduler.wake(task)
        del self._sleeping[:n]

    def notify_all(self) -> None:
        self.notify(len(self._sleeping))


@final
class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._scheduler = _scheduler()
        self._set = False
        self._sleeping: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for task in self._sleeping:
            self._scheduler.wake(task)
        self._sleeping.clear()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler
        end_s = None if timeout is None else scheduler.now_s + timeout
        while not self._set:
            left_s = None if end_s is None else end_s - scheduler.now_s
            if left_s is not None and left_s <= 0:
                return False
            me = scheduler.current
            assert me is not None
            self._sleeping.append(me)
            scheduler.park(left_s)
            if me in self._sleeping:
                self._sleeping.remove(me)
        return True


@final
class Thread:
    """`threading.Thread` of the process whose thread starts it."""

    def __init__(
        self,
        *,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        name: str = "",
        daemon: bool | None = None,
    ) -> None:
        self._scheduler = _scheduler()
        self._target = target
        self._args = args
        self.name = name
        self.daemon = daemon
        self._task: Task | None = None

    @property
    def ident(self) -> int | None:
        return None if self._task is None else id(self._task)

    def start(self) -> None:
        current = self._scheduler.current
        assert current is not None and self._task is None
        self._task = current.process.spawn(lambda: self._target(*self._args), self.name)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        end_s = None if timeout is None else self._scheduler.now_s + timeout
        while self.is_alive():
            left_s = None if end_s is None else end_s - self._scheduler.now_s
            if left_s is not None and left_s <= 0:
                return
            me = self._scheduler.current
            assert me is not None and self._task is not None
            self._task.joiners.append(me)
            self._scheduler.park(left_s)


@final
class Threading:
    """The module `threading`."""

    Lock = Lock
    RLock = Condition
    Condition = Condition
    Event = Event
    Thread = Thread

    @staticmethod
    def get_ident() -> int:
        return id(_scheduler().current)

    @staticmethod
    def enumerate() -> list[Any]:
        return []


@final
class Time:
    """The module `time`."""

    @staticmethod
    def monotonic() -> float:
        return _scheduler().now_s

    @staticmethod
    def time() -> float:
        return 1_700_000_000.0 + _scheduler().now_s

    perf_counter = monotonic

    @staticmethod
    def sleep(seconds: float) -> None:
        _scheduler().sleep(seconds)


@final
class Clock:
    """`elasticdl.clock.Clock` of simulated time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def now_s(self) -> float:
        return self._scheduler.now_s

    def wall_s(self) -> float:
        return 1_700_000_000.0 + self._scheduler.now_s


@contextmanager
def in_place_of_real_ones(**others: Any) -> Iterator[None]:
    """All loaded modules of the worker see simulated threads and times; `others`: more of their
    attributes, by name.
    """
    stand_ins = {"threading": Threading, "time": Time, **others}
    before = []
    for name, module in list(sys.modules.items()):
        for attribute, stand_in in stand_ins.items():
            if name.startswith(_PACKAGE) and hasattr(module, attribute):
                before.append((module, attribute, getattr(module, attribute)))
                setattr(module, attribute, stand_in)
    try:
        yield
    finally:
        for module, attribute, value in before:
            setattr(module, attribute, value)
