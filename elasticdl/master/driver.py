"""The master's only loop: take events, let the core handle them, journal them, carry out commands.

It waits for the journal, and nothing else. Others run meanwhile, and see the state as decided.

Handlers of calls, the cluster watch and the clock only post events. Everything runs on one asyncio
loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Protocol, final

from elasticdl.cluster.base import ProcessExited, ProcessObserved
from elasticdl.master.core.commands import Command, FinishJob
from elasticdl.master.core.events import Event, ProcessEnded, ProcessSeen, Tick
from elasticdl.master.event_queue import EventQueue, QueuedEvent
from elasticdl.master.executor.executor import Executor
from elasticdl.master.gateway.process_gateway import ProcessGateway
from elasticdl.master.journal.rules import may_free_work, worth_keeping

TICK_S = 1.0


class Core(Protocol):
    """The decisions. `JobState` is the one implementation; tests script another."""

    def handle(self, event: Event) -> Sequence[Command]:
        """Return the commands that follow from an event."""


class Journal(Protocol):
    """Events, kept for a next master, in order."""

    def append(self, event: Event) -> None:
        """Add an event; it is safe after the next `flush`."""

    async def flush(self) -> None:
        """Return when all appended events are safe, and this master may act upon them.

        Raises MasterSuperseded.
        """


@final
class Driver:
    """Runs one job until `FinishJob`."""

    def __init__(
        self,
        core: Core,
        journal: Journal,
        queue: EventQueue,
        gateway: ProcessGateway,
        executor: Executor,
        tick_s: float = TICK_S,
    ) -> None:
        self._core = core
        self._journal = journal
        self._queue = queue
        self._gateway = gateway
        self._executor = executor
        self._tick_s = tick_s

    async def run(self, observed: AsyncIterator[ProcessObserved | ProcessExited]) -> FinishJob:
        """Handle events until the job is over; `observed` yields what the cluster shows.

        Raises the errors of our tasks: they are bugs, never faults of the job.
        """
        self._queue.spawn("watch on the cluster", self._watch(observed))
        self._queue.spawn("clock", self._keep_time())
        try:
            while self._executor.finish is None:
                await self._handle(await self._queue.take())
            return self._executor.finish
        finally:
            await self._queue.close()

    async def _handle(self, entries: Sequence[QueuedEvent]) -> None:
        """Decide, journal, act: in this order, so that no effect precedes its cause on disk."""
        decided = []
        for entry in entries:
            commands = self._core.handle(entry.event)
            if worth_keeping(entry.event, commands):
                self._journal.append(entry.event)
            decided.append(commands)
        # One flush for the batch. Only then do commands act: a replay can explain every effect.
        await self._journal.flush()
        for entry, commands in zip(entries, decided, strict=True):
            for command in commands:
                self._executor.carry_out(command)
            if not entry.handled.done():
                entry.handled.set_result(None)
        if any(may_free_work(entry.event) for entry in entries):
            self._gateway.leases.work_appeared()
        self._gateway.decided()

    async def _watch(self, observed: AsyncIterator[ProcessObserved | ProcessExited]) -> None:
        async for event in observed:
            at_s = self._queue.at_s()
            match event:
                case ProcessObserved():
                    self._queue.post(
                        ProcessSeen(
                            at_s,
                            event.name,
                            event.running,
                            event.where,
                            event.waiting_for,
                            event.place,
                            event.ladder_place,
                        )
                    )
                case ProcessExited():
                    status = replace(
                        event.exit_status,
                        memory_peak_bytes=self._gateway.sessions.peak_bytes(event.name),
                    )
                    self._gateway.leave(event.name, "has ended")
                    self._queue.post(ProcessEnded(at_s, event.name, status))

    async def _keep_time(self) -> None:
        for turn in itertools.count(1):
            before_s = self._queue.at_s()
            await asyncio.sleep(self._tick_s)
            self._gateway.tick()
            # Let tasks that are waiting run first.
            await asyncio.sleep(0)
            now_s = self._queue.at_s()
            self._queue.post(Tick(now_s, max(0.0, now_s - before_s - self._tick_s), turn))
