"""Messages of the job's processes as plain values; the servicer has those of the wire.

It answers alone where no decision is needed: identities, repeated messages, and which answer
belongs to which request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.dropped import DropCause
from elasticdl.errors import Refused, TransientError
from elasticdl.master.core.events import (
    ActivityReported,
    ConnectionLost,
    CpuShareReported,
    LeaseRequested,
    LeaseReturned,
    MessagesDropped,
    ProcessAttached,
    ProcessReturned,
    ProcessSilent,
    ServerStandsBy,
    StalenessChosen,
    TimeReported,
    VersionAdvanced,
)
from elasticdl.master.core.presence import Presence
from elasticdl.master.core.ps.server_delays import ServerDelays
from elasticdl.master.core.ps.server_map import ServerMap
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.fencing import Fences
from elasticdl.master.executor.ring_coordinator import RingCoordinator
from elasticdl.master.gateway.heartbeats import HEARTBEAT_S, heartbeat_s
from elasticdl.master.gateway.lease_polls import LeasePolls
from elasticdl.master.gateway.order_streams import OrderStreams
from elasticdl.master.gateway.ps_registry import PsRegistry, Server
from elasticdl.master.gateway.reports import events_of, state_reported
from elasticdl.master.gateway.returning import ReturningProcesses
from elasticdl.master.gateway.sessions import Sessions
from elasticdl.master.gateway.step_turns import StepTurns
from elasticdl.master.throughput import Throughput
from elasticdl.rpc.conversation import Activity, LeaseAnswer, Order, Report, Wait
from elasticdl.shard import Applied, Lease, ReceivedLease, Task, WorkItem

_TIMES_S = 10.0
"""Seconds between two accounts of the workers' time in the journal."""

_SAME_S = 2.0
"""Tolerance in seconds for the start of an activity, since reports arrive with a delay."""


@dataclass(frozen=True, slots=True)
class Returning:
    """What a process tells a master that took over.

    `received`: the newest leases, `revocation`: the newest number of a revocation, `unsettled`:
    pushes of synchronous steps whose outcome it does not know. `control_address`: where it serves a
    master; '' if it does not.
    """

    received: tuple[ReceivedLease, ...] = ()
    revocation: int = 0
    unsettled: tuple[int, ...] = ()
    control_address: str = ""


class ExpectedProcesses(Protocol):
    """What the core knows of processes that have yet to attach."""

    def may_attach(self, name: ProcessName) -> bool:
        """Whether a process of that name is expected or already present, and not given up."""

    def resident(self, place: ProcessName) -> ProcessName | None:
        """Which server the platform has started, or is about to start, in the place of `place`."""

    def place_of(self, server: int) -> tuple[ServerMap, bool]:
        """The map of a server, and whether it stands by until it is told what to restore."""


@final
class ProcessGateway:
    """Use it from one event loop. A method that names a process resets its silence."""

    def __init__(
        self,
        queue: EventQueue,
        registry: PsRegistry,
        fences: Fences,
        task: Task,
        expected: ExpectedProcesses,
        ring: Callable[[OrderStreams], RingCoordinator] | None = None,
    ) -> None:
        """`task` is the kind of task whose records count for the throughput.

        `ring` makes the coordinator of a job that trains on a ring.
        """
        self._queue = queue
        self._expected = expected
        self._registry = registry
        self._fences = fences
        self._version = 0
        self._ticked_s = self._times_due_s = queue.clock.now_s()
        self.sessions = Sessions()
        self.orders = OrderStreams(registry.number, self._hung_up, first=registry.indices.start)
        self.leases = LeasePolls(self._ask, self._give_back)
        self.throughput = Throughput(task)
        self.ring = ring(self.orders) if ring is not None else None
        self.turns: StepTurns | None = None
        self._items: dict[ProcessName, tuple[int, bool]] = {}
        """Which item of the ring each worker wants, and whether it waits at a barrier before it."""
        self._busy: dict[ProcessName, tuple[str, float]] = {}
        """The long activity of each process, and its start."""
        self._delays = ServerDelays()
        self.returning = ReturningProcesses()

    def train_in_steps(self, turns: Callable[[OrderStreams], StepTurns]) -> None:
        """Give turns of synchronous steps. Call it before the first process attaches."""
        self.turns = turns(self.orders)

    def restore(self, presence: Presence) -> None:
        """Continue with the processes of an earlier master. Call it before any of them attaches.

        Servers are reached at once. Workers are, once they attach again.
        """
        self._version = presence.version
        for name in presence.gone:
            self.sessions.leave(name, "has ended")
        self._registry.expect_all()
        for process in presence.attached:
            self.sessions.restore(process, presence.version)
            if process.name.role is Role.PS:
                self._registry.attach(process.name, process.control_address)
        for name, session in self.sessions:
            # They know the period that the earlier master gave them.
            session.heartbeat_s = self.period_s(name)
        self.returning.expect(process.name for process in presence.attached)
        self._fences.restore(map(str, presence.fenced))
        if self.ring is not None:
            self.ring.restore(presence.members, presence.saving)
        if self.turns is not None:
            self.turns.recover(presence.step)

    def period_s(self, name: ProcessName) -> float:
        """Return how often a process is to report."""
        if name.role is Role.PS or self.ring is not None:
            # Versions of servers and members of a ring are waited for.
            return HEARTBEAT_S
        return heartbeat_s(len(self.sessions))

    def set_period_s(self, name: ProcessName) -> float:
        """Return the period to tell a process; from now on its silence is measured against it."""
        period_s = self.period_s(name)
        if (session := self.sessions.heard(name)) is not None:
            session.heartbeat_s = period_s
        return period_s

    # messages of processes

    async def attach_again(self, name: ProcessName, instance: str, returning: Returning) -> bool:
        """Attach a process of an earlier master; return when the core knows of it.

        False if it had not attached there: it is to attach as a new process. Raises Refused for
        another process of its name, and for one that was given up.
        """
        if name not in self.sessions and not self.sessions.has_left(name):
            return False
        if refusal := self.sessions.refusal(name, instance):
            raise Refused(refusal)
        self.sessions.claim(name, instance).control_address = returning.control_address
        self.sessions.heard(name)
        self.leases.restore(name, returning.revocation)
        if self.turns is not None and name.role is Role.WORKER:
            self.turns.restore(name, returning.revocation, returning.unsettled)
        await self._queue.post(ProcessReturned(self._queue.at_s(), name, returning.received))
        self.returning.came(name)
        return True

    def who(self, place: ProcessName) -> ProcessName:
        """Return who the server is that the platform has just started in the place of `place`.

        Raises TransientError while the end of the one before it is not known.
        """
        name = self._expected.resident(place)
        if name is not None and name in self.sessions:
            # Its place has not fallen silent: the platform is late with the news of its end.
            self.sessions.heard(name)
        elif name is not None and not self.sessions.has_left(name):
            return name
        elif place not in self.sessions and not self.sessions.has_left(place):
            return place
        raise TransientError(f"the successor of {place} is not known yet")

    async def attach(
        self,
        event: ProcessAttached,
        instance: str,
        memory: int = 0,
        *,
        loaded: str = "",
        not_loaded: str = "",
    ) -> None:
        """Attach a process; return when the core knows of it.

        The same process may repeat the call. A server attaches twice: without addresses, to learn
        what to restore, and with them when it can serve, and with the number of its kept memory.
        One that stands by also attaches after each checkpoint that it has `loaded`, or that was
        gone before (`not_loaded`).
        Raises Refused for a second process of a name, and for an unexpected process.
        """
        name = event.name
        if name in self.sessions or self.sessions.has_left(name):
            refusal = self.sessions.refusal(name, instance)
            if refusal:
                raise Refused(refusal)
        elif not self._expected.may_attach(name):
            raise Refused(f"this job does not expect {name}")
        presence = self.sessions.claim(name, instance)
        # An earlier master may have noted its attachment, and not answered.
        self.returning.came(name)
        presence.control_address = event.control_address or presence.control_address
        if name.role is Role.PS and not event.control_address:
            _, stands_by = self._expected.place_of(name.index)
            if stands_by:
                await self._queue.post(ServerStandsBy(event.at_s, name, loaded, not_loaded))
        if presence.announced or (name.role is Role.PS and not event.control_address):
            return
        presence.announced, presence.starting = True, event.starting
        if name.role is Role.PS:
            presence.version = event.restored_version or 0
            introduced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            server = self._registry.attach(name, event.control_address, memory)
            self._queue.spawn(f"fences for {name}", self._introduce(server, event, introduced))
            # A cancelled call must not stop the introduction.
            await asyncio.shield(introduced)
        else:
            await self._queue.post(event)

    async def poll(
        self,
        worker: ProcessName,
        sequence: int,
        wait_s: float,
        *,
        ring_number: int = 0,
        at_mark: bool = False,
    ) -> LeaseAnswer:
        """Wait up to `wait_s` for a lease, or for an item of the ring; see `LeasePolls.poll`.

        Raises Refused for a worker that is not attached.
        """
        if self.sessions.heard(worker) is None:
            # It may have left while its call waited.
            raise Refused(self.sessions.absence(worker))
        self._items[worker] = (ring_number, at_mark)
        return await self.leases.poll(worker, sequence, wait_s)

    async def report(self, name: ProcessName, report: Report, sequence: int) -> None:
        """Handle a report; return when it is on disk. Repeats count nothing.

        Raises Refused for a process that is not attached, or that may not report such a thing.
        """
        if (kept := self._take_report(name, report, sequence)) is not None:
            await kept

    async def report_and_poll(
        self, name: ProcessName, report: Report, sequence: int, lease_sequence: int
    ) -> LeaseAnswer:
        """Handle a report and then a request for a lease, which does not wait for work.

        Both share one batch of events, and one write to the journal. Raises as `report`.
        """
        kept = self._take_report(name, report, sequence)
        answer = await self.poll(name, lease_sequence, 0.0)
        if kept is not None:
            # An answer to an earlier request may have come before.
            await kept
        return answer

    def _take_report(
        self, name: ProcessName, report: Report, sequence: int
    ) -> asyncio.Future[None] | None:
        """Post the events of a report. Events are handled in order: returns the last one."""
        presence = self.sessions.heard(name)
        if presence is None:
            raise Refused(self.sessions.absence(name))
        self._check_ring_report(name, report)
        for cause, count in presence.reported(report.gauges).items():
            self._dropped(name, cause, count)
        if choice := presence.staleness_choice():
            self._queue.post(StalenessChosen(self._queue.at_s(), name, *choice))
        if (share := presence.cpu_share_changed()) is not None:
            self._queue.post(CpuShareReported(self._queue.at_s(), name, share))
        if name.role is Role.WORKER:
            first = self._registry.indices.start
            self._delays.reported(name, report.gauges, self._queue.at_s(), first)
        if sequence <= presence.reports:
            # When this one is on disk, so is the original report.
            return self._dropped(name, DropCause.REPEATED_REPORT)
        # Before any event is posted: a repeat that arrives during the disk write must not count
        # again.
        presence.reports = sequence
        presence.starting = presence.starting and "" not in report.starting
        if name.role is Role.PS:
            presence.version = report.version
            self._server_reported()
            if report.state is not None:
                return self._queue.post(state_reported(name, report.state, self._queue.at_s()))
            return None
        at_s = self._queue.at_s()
        for progress in report.progress:
            self.throughput.reported(name, progress, at_s)
        self._busy_reported(name, report.activity, at_s)
        self._ring_reported(name, report)
        handled = [self._queue.post(event) for event in events_of(name, report, at_s)]
        return handled[-1] if handled else None

    def stream(self, name: ProcessName) -> AsyncGenerator[Order]:
        """Yield the orders for a process, from now on."""
        self.sessions.streams(name, opened=True)
        return self.orders.stream(name)

    # calls of the driver

    def publish(self, addresses: tuple[str, ...], first: int) -> None:
        """Send the servers' addresses to workers: the parameters are on these servers."""
        self._registry.indices = range(first, first + len(addresses))
        self.orders.publish(addresses, first)

    def leave(self, name: ProcessName, why: str) -> None:
        """Refuse an ended or given-up process from now on.

        `why` completes "worker-3 …".
        """
        # Before the core hears of its end: all of its time is accounted for then.
        self._tell_times(name)
        # From here on its calls are refused, so nothing below can be filled again.
        self.sessions.leave(name, why)
        self.leases.leave(name)
        self.orders.leave(name)
        self.throughput.leave(name)
        self._items.pop(name, None)
        self._busy.pop(name, None)
        self._delays.forget(name)
        self.returning.came(name)
        if self.ring is not None:
            self.ring.leave(name)
        if self.turns is not None and name.role is Role.WORKER:
            self.turns.leave(name)
        if name.role is Role.PS:
            self._queue.spawn(f"disconnect from {name}", self._disconnect(name))

    def decided(self) -> None:
        """The core has handled events: what a step waits for may have changed."""
        if self.turns is not None:
            self.turns.decide()

    def tick(self) -> None:
        """Advance the time, and find silent processes."""
        self.leases.tick()
        if self.turns is not None:
            self.turns.tick()
        if (delayed := self._delays.tick(self._queue.at_s())) is not None:
            self._queue.post(delayed)
        now_s = self._queue.clock.now_s()
        elapsed_s, self._ticked_s = now_s - self._ticked_s, now_s
        if now_s >= self._times_due_s:
            self._times_due_s = now_s + _TIMES_S
            self._tell_times()
        self.sessions.pass_time(elapsed_s)
        for name, silent_s in self.sessions.silent():
            connected = not self.sessions.hung_up(name)
            self.leave(name, f"sent no message for {silent_s:.0f} s")
            self._queue.post(ProcessSilent(self._queue.at_s(), name, silent_s, connected))

    def _tell_times(self, name: ProcessName | None = None) -> None:
        """Tell the core what workers spent their time on, or one worker that leaves."""
        if spent_s := self.sessions.take_spent_s(name):
            self._queue.post(TimeReported(self._queue.at_s(), spent_s))

    def records_per_s(self) -> float:
        """Records per second of all workers."""
        return round(self.throughput.total(self._queue.at_s()), 1)

    def gauges(self, names: Iterable[ProcessName]) -> dict[str, dict[str, float]]:
        """Return the measurements of these processes, by process and name of the gauge."""
        gauges, at_s = {}, self._queue.at_s()
        for name in names:
            measured = dict(self.sessions.gauges(name))
            if (rate := self.throughput.of_worker(name, at_s)) is not None:
                measured["records_per_s"] = round(rate, 1)
            if measured:
                gauges[str(name)] = measured
        return gauges

    async def _disconnect(self, name: ProcessName) -> None:
        await self._registry.leave(name)
        if self.turns is not None:
            await self.turns.server_left(name.index)

    async def _introduce(
        self, server: Server, event: ProcessAttached, introduced: asyncio.Future[None]
    ) -> None:
        """Send all fences to a server before anyone learns its address.

        Fences are not in the server's checkpoint, so it would accept fenced workers.
        """
        if self.turns is not None and not server.kept:
            self.turns.server_changed()
        try:
            await self._fences.catch_up(server)
            await self._queue.post(event)
        finally:
            # Also after a failure: the server's Attach call waits for it.
            introduced.set_result(None)

    def _server_reported(self) -> None:
        """Report the version of the least advanced server, unless a server is absent."""
        versions = [
            session.version
            for name, session in self.sessions.servers()
            if session.announced and name.index in self._registry.indices
        ]
        if len(versions) == self._registry.number and min(versions) != self._version:
            self._version = min(versions)
            self._queue.post(VersionAdvanced(self._queue.at_s(), self._version))

    def _ask(self, worker: ProcessName) -> None:
        number, at_mark = self._items.get(worker, (0, False))
        self._queue.post(LeaseRequested(self._queue.at_s(), worker, number, at_mark))

    def give_item(self, worker: ProcessName, item: WorkItem) -> None:
        """Deliver the core's answer to a member of the ring."""
        if self._items.get(worker, (0, False))[0] in (0, item.number):
            self.throughput.given(item)
            self.leases.answer(worker, item)
        else:
            # The worker had asked for this item before its request changed.
            self.leases.answer(worker, Wait("the worker now requests another item"))
            self.leases.work_appeared()

    def _busy_reported(self, name: ProcessName, activity: Activity | None, at_s: float) -> None:
        """Tell the core when a long activity begins and when it ends."""
        before, now = (
            self._busy.get(name),
            (activity.what, at_s - activity.age_s) if activity else None,
        )
        if now is None and before is not None:
            del self._busy[name]
            self._queue.post(ActivityReported(at_s, name, ""))
        elif now is not None and (
            before is None or now[0] != before[0] or abs(now[1] - before[1]) > _SAME_S
        ):
            self._busy[name] = now
            self._queue.post(ActivityReported(at_s, name, now[0], at_s - now[1]))

    def _check_ring_report(self, name: ProcessName, report: Report) -> None:
        """Raise Refused for a report about a ring that there is not, or from another's place."""
        about_ring = report.ring is not None or report.ring_cuts or report.ring_saves
        if about_ring and (self.ring is None or name.role is not Role.WORKER):
            raise Refused(f"{name} reports about a ring that it cannot be in")
        if report.ring_cuts and self.ring is not None and not self.ring.may_copy(name):
            raise Refused(f"{name} reports a copy of the weights, which is for rank 0 to make")

    def _ring_reported(self, name: ProcessName, report: Report) -> None:
        if self.ring is not None:
            for cut in report.ring_cuts:
                self.ring.cut(name, cut.snapshot)
            for saved in report.ring_saves:
                if not self.ring.saved(name, saved):
                    self._dropped(name, DropCause.LATE_SNAPSHOT)

    def _dropped(self, name: ProcessName, cause: DropCause, count: int = 1) -> asyncio.Future[None]:
        """Post dropped messages, to count them and keep them in the journal."""
        return self._queue.post(MessagesDropped(self._queue.at_s(), name, cause, count))

    def _hung_up(self, name: ProcessName) -> None:
        """Handle a broken order stream.

        A broken stream is the first sign of a killed process.
        """
        self.sessions.streams(name, opened=False)
        if self.ring is not None and name in self.sessions:
            self._queue.post(ConnectionLost(self._queue.at_s(), name))

    def _give_back(self, worker: ProcessName, lease: Lease) -> None:
        """Return an undelivered lease of a shard to the core."""
        assert lease.shard is not None, f"{lease} has no shard to return"
        applied = Applied(lease.shard.id, lease.attempt, lease.offset)
        self._queue.post(LeaseReturned(self._queue.at_s(), worker, applied, taken=False))
