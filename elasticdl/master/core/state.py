"""The job's state machine: `handle(event) -> commands`.

It is single-threaded and pure, so a journal of events is enough to restore a job. Events from late,
unknown or given-up senders never raise: they are answered, or dropped and counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import final

from elasticdl.cluster.base import ProcessName, ProcessObserved
from elasticdl.job import JobSpec
from elasticdl.job_status import JobStatus, Receipt
from elasticdl.master.core import events, status_builder
from elasticdl.master.core.command_buffer import ImpossibleTransition
from elasticdl.master.core.commands import Command
from elasticdl.master.core.data.shard_list import ShardPage, ShardQuery, shard_page
from elasticdl.master.core.event_dispatch import EventDispatch
from elasticdl.master.core.image import Plain, constants_of, image_of, restore
from elasticdl.master.core.job_context import Limits, Phase
from elasticdl.master.core.presence import Presence, presence_of
from elasticdl.master.core.ps.outlook import outlook_of
from elasticdl.master.core.ps.roll_back import RollBack
from elasticdl.master.core.ps.server_map import ServerMap
from elasticdl.master.core.ps.steps import Outlook
from elasticdl.master.core.wiring import Parts

_STORY = 20


@final
class JobState:
    """One job. A Tick that yields no command changes nothing that later decisions depend on."""

    def __init__(self, spec: JobSpec, limits: Limits = Limits()) -> None:  # noqa: B008 - a frozen value
        parts = self._parts = Parts(spec, limits)
        self._context, self._coordination = parts.context, parts.coordination
        self._evaluation, self._checkpointing = parts.evaluation, parts.checkpointing
        self._dispatch = EventDispatch(parts)
        self._story: deque[events.Event] = deque(maxlen=_STORY)

    @classmethod
    def from_image(
        cls, spec: JobSpec, limits: Limits, started: events.JobStarted, image: Plain
    ) -> JobState:
        """Return the state that an image describes. Raises ValueError for one of other code."""
        state = cls(spec, limits)
        restore(state, image, constants_of(spec, started))
        state._context.limits = limits
        return state

    def image(self, spec: JobSpec) -> Plain:
        """This state as JSON values, without `spec` and JobStarted; None before the job begins."""
        if self._dispatch.started is None:
            return None
        return image_of(self, constants_of(spec, self._dispatch.started))

    # for readers

    @property
    def begun(self) -> bool:
        """The preflight passed: there is, or was, work to do."""
        return self._dispatch.started is not None

    @property
    def started(self) -> events.JobStarted | None:
        """How the job began."""
        return self._dispatch.started

    @property
    def spec(self) -> JobSpec:
        """The job, with what the preflight decided."""
        return self._context.spec

    @property
    def now_s(self) -> float:
        """The time of the newest event."""
        return self._context.now_s

    def presence(self) -> Presence:
        """Which processes are there, for a master that takes over."""
        return presence_of(self._context, self._coordination, self._checkpointing)

    @property
    def over(self) -> bool:
        """Whether the job has finished: no later event changes anything."""
        return self._context.phase is Phase.ENDED

    def status(self) -> JobStatus:
        status = status_builder.status(
            self._context,
            self._coordination,
            self._parts.pending,
            self._evaluation,
            self._checkpointing,
        )
        waiting = (*self._parts.stalls.waits(), *self._parts.resizing.waits(), *status.waiting)
        stall = self._parts.stalls.status()
        return replace(status, waiting=waiting, stall=stall, moved_s=self._parts.stalls.moved_s)

    @property
    def records_done(self) -> int:
        """Records of all epochs that are trained or bad."""
        return status_builder.records_done(self._context, self._evaluation)

    def receipt(self) -> Receipt:
        """Records by epoch and in total: expected, trained, repeated, bad, lost."""
        ledger = status_builder.main_ledger(self._context, self._evaluation)
        return status_builder.receipt(self._context, ledger)

    def step_outlook(self) -> Outlook:
        """Where further gradients of a synchronous step may come from."""
        return outlook_of(self._context, self._parts.leasing)

    def resident(self, place: ProcessName) -> ProcessName | None:
        """Which server the platform has started, or is about to start, in the place of `place`."""
        return self._parts.lifecycle.resident(place)

    def may_attach(self, name: ProcessName) -> bool:
        """Whether a process of that name is expected or already present, and not given up."""
        return self._parts.lifecycle.may_attach(name)

    def is_news(self, shown: ProcessObserved) -> bool:
        """Whether what the cluster shows of a process is not known yet.

        If it is known, `ProcessSeen` of it would change nothing.
        """
        return self._parts.lifecycle.is_news(shown)

    def knows(self, name: ProcessName) -> bool:
        """Whether a process of that name exists or existed."""
        return name in self._context.processes.all

    def node(self, name: ProcessName) -> str:
        """Where that process runs; '' if the cluster has not said it."""
        process = self._context.processes.all.get(name)
        return "" if process is None else process.where

    @property
    def going(self) -> tuple[ProcessName, ...]:
        """Processes that have not ended."""
        return tuple(self._context.processes.going)

    def why_not_replace(self, name: ProcessName) -> str | None:
        """Why a person cannot replace this process; None if they can."""
        return self._parts.scaling.why_not_replace(name)

    def why_not_scale(self, low: int, high: int) -> str | None:
        """Why a person cannot change the number of workers to low:high; None if they can."""
        return self._parts.scaling.why_not_scale(low, high)

    def what_steps_stay(self, workers: int) -> str | None:
        """What the job chose for fewer workers and keeps, in words; None if it suits as many."""
        return self._parts.scaling.what_steps_stay(workers)

    def why_not_scale_servers(self) -> str | None:
        """Why the number of parameter servers cannot be changed; None if it can."""
        return self._parts.resizing.why_not()

    @property
    def server_map(self) -> ServerMap:
        """The servers that share the parameters."""
        return self._context.server_map

    def place_of(self, server: int) -> tuple[ServerMap, bool]:
        """The map of a server, and whether it stands by until it is told what to restore."""
        return self._parts.resizing.place_of(server)

    @property
    def roll_back(self) -> RollBack | None:
        """The return of all servers to a checkpoint; None if none is under way."""
        return self._context.roll_back

    def why_not_checkpoint(self) -> str | None:
        """Why a person cannot request a checkpoint; None if they can."""
        return self._checkpointing.why_not()

    @property
    def newest_cut_s(self) -> float:
        """When the newest cut was made of which a checkpoint is complete; below 0 there is none."""
        return self._checkpointing.newest_cut_s

    def shards(self, wish: ShardQuery) -> ShardPage:
        """A page of the shards, for people."""
        ledgers = status_builder.ledgers(self._context, self._evaluation)
        return shard_page(ledgers, wish, self._context.now_s)

    def ledger_json(self) -> str:
        """The training ledger with all progress reported so far, as `JobStarted.ledger` takes it.

        '' if there is none.
        """
        return self._dispatch.ledger_json()

    # events

    def handle(self, event: events.Event) -> list[Command]:
        """Handle one event; the driver executes the returned commands in order.

        Raises ImpossibleTransition with the last events if the state contradicts itself, which is a
        bug.
        """
        self._context.now_s = event.at_s
        # Before dispatch: a failed transition must show the event that caused it.
        self._story.append(event)
        try:
            self._dispatch.handle(event)
        except ImpossibleTransition as error:
            raise ImpossibleTransition(
                f"{error}\nthe last events:\n" + "\n".join(map(repr, self._story))
            ) from error
        return self._context.orders.take()
