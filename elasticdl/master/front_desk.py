"""What the job's processes say to the master, in plain values: the servicer is its gRPC side.

Speaks for the core where no decision is needed: who is who, what was said before, which answer belongs to whom.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.errors import Refused
from elasticdl.master.attendance import Attendance
from elasticdl.master.core.events import (
    ConnectionLost,
    LeaseRequested,
    LeaseReturned,
    ProcessAttached,
    ProcessSilent,
    VersionAdvanced,
)
from elasticdl.master.fencing import Fences
from elasticdl.master.inbox import Inbox
from elasticdl.master.lease_desk import LeaseDesk
from elasticdl.master.order_board import OrderBoard
from elasticdl.master.reports import events_of
from elasticdl.master.ring_desk import RingDesk
from elasticdl.master.server_roster import Server, ServerRoster
from elasticdl.master.throughput import Throughput
from elasticdl.rpc.conversation import LeaseAnswer, Order, Report, Wait
from elasticdl.shard import Applied, Lease, RingItem, Task

SILENCE_S = 10.0


@final
class FrontDesk:
    """Use it from one event loop. Methods that name a process count as having heard of it."""

    def __init__(
        self, inbox: Inbox, roster: ServerRoster, fences: Fences, task: Task, expected: Callable[[ProcessName], bool]
    ) -> None:
        """`task`: whose records make the throughput. `expected`: whether a process of a name may attach."""
        self._inbox = inbox
        self._expected = expected
        self._roster = roster
        self._fences = fences
        self._version = 0
        self._ticked_s = inbox.clock.now_s()
        self.attendance = Attendance()
        self.orders = OrderBoard(roster.number)
        self.leases = LeaseDesk(self._ask, self._give_back)
        self.throughput = Throughput(task)
        self.ring: RingDesk | None = None
        """Set before the first process is there, if the job is on a ring."""
        self._items: dict[ProcessName, tuple[int, bool]] = {}
        """Which item of the ring each worker wants, and whether it stands at a mark before it."""
        self.orders.broke = self._hung_up

    # -- what processes say -------------------------------------------------------------------------------------------

    async def attach(self, event: ProcessAttached, instance: str) -> None:
        """A process presents itself; returns when the job knows. Once more from the same process is fine.

        A server does so twice: without addresses, to learn what it has to restore, and with them when it can serve.
        Raises Refused for a second process of a name, and for one that nobody ordered.
        """
        name = event.name
        if name in self.attendance or self.attendance.has_left(name):
            refusal = self.attendance.refusal(name, instance)
            if refusal:
                raise Refused(refusal)
        elif not self._expected(name):
            raise Refused(f"{name} is not a process that this job expects")
        presence = self.attendance.claim(name, instance)
        if presence.announced or (name.role is Role.PS and not event.control_address):
            return
        presence.announced = True
        if name.role is Role.PS:
            presence.version = event.restored_version or 0
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            server = self._roster.attach(name, event.control_address)
            self._inbox.spawn(f"fences for {name}", self._introduce(server, event, told))
            # The call may be given up meanwhile; the introduction goes on.
            await asyncio.shield(told)
        else:
            await self._inbox.post(event)

    async def poll(
        self, worker: ProcessName, sequence: int, wait_s: float, *, ring_number: int = 0, at_mark: bool = False
    ) -> LeaseAnswer:
        """Wait up to `wait_s` for a lease, or for an item of the ring."""
        self.attendance.heard(worker)
        self._items[worker] = (ring_number, at_mark)
        return await self.leases.poll(worker, sequence, wait_s)

    async def report(self, name: ProcessName, report: Report, sequence: int) -> None:
        """Take a report in; returns when it is on disk. A repeat counts nothing."""
        presence = self.attendance.heard(name)
        if presence is None:
            raise Refused(self.attendance.refusal(name, ""))
        presence.told(report.gauges)
        if sequence <= presence.reports:
            return
        presence.reports = sequence
        if name.role is Role.PS:
            presence.version = report.version
            self._server_reported()
            return
        at_s = self._inbox.at_s()
        for progress in report.progress:
            self.throughput.reported(name, progress, at_s)
        self._ring_reported(name, report)
        handled = [self._inbox.post(event) for event in events_of(name, report, at_s)]
        if handled:
            # Handled in order: the last is the last.
            await handled[-1]

    def stream(self, name: ProcessName) -> AsyncIterator[Order]:
        """What the master wants of a process, from now on."""
        self.attendance.heard(name)
        return self.orders.stream(name)

    # -- what the driver knows ----------------------------------------------------------------------------------------

    def leave(self, name: ProcessName, why: str) -> None:
        """A process ended or was given up: it is refused from now on. `why` completes "worker-3 …"."""
        self.attendance.leave(name, why)
        self.leases.leave(name)
        self.orders.leave(name)
        self.throughput.leave(name)
        self._items.pop(name, None)
        if self.ring is not None:
            self.ring.leave(name)
        if name.role is Role.PS:
            self._inbox.spawn(f"hanging up on {name}", self._roster.leave(name))

    def tick(self) -> None:
        """Time passed: see who has fallen silent."""
        now_s = self._inbox.clock.now_s()
        elapsed_s, self._ticked_s = now_s - self._ticked_s, now_s
        for name, silent_s in self.attendance.pass_time(elapsed_s):
            if silent_s >= SILENCE_S:
                self.leave(name, f"was not heard of for {silent_s:.0f} s")
                self._inbox.post(ProcessSilent(self._inbox.at_s(), name, silent_s))

    def numbers(self) -> dict[str, object]:
        """For people, beside the core's status: `gauges` by process, `records_per_s` in total."""
        at_s = self._inbox.at_s()
        gauges = {str(name): dict(presence.gauges) for name, presence in self.attendance}
        for worker, rate in self.throughput.by_worker(at_s).items():
            gauges.setdefault(str(worker), {})["records_per_s"] = round(rate, 1)
        return {"gauges": gauges, "records_per_s": round(self.throughput.total(at_s), 1)}

    async def _introduce(self, server: Server, event: ProcessAttached, told: asyncio.Future[None]) -> None:
        """Nobody hears of a server before it refuses everybody who is fenced: fences are not in its checkpoint."""
        try:
            await self._fences.catch_up(server)
            await self._inbox.post(event)
        finally:
            told.set_result(None)

    def _server_reported(self) -> None:
        """The job's version is that of the least advanced server; while one is away nothing is known of it."""
        versions = [one.version for name, one in self.attendance if name.role is Role.PS and one.announced]
        if len(versions) == self._roster.number and min(versions) != self._version:
            self._version = min(versions)
            self._inbox.post(VersionAdvanced(self._inbox.at_s(), self._version))

    def _ask(self, worker: ProcessName) -> None:
        number, at_mark = self._items.get(worker, (0, False))
        self._inbox.post(LeaseRequested(self._inbox.at_s(), worker, number, at_mark))

    def give_item(self, worker: ProcessName, item: RingItem) -> None:
        """The core's answer to a member of the ring."""
        if self._items.get(worker, (0, False))[0] in (0, item.number):
            self.throughput.given(item)
            self.leases.answer(worker, item)
        else:
            # It was asked for before the worker changed its mind.
            self.leases.answer(worker, Wait("another item is wanted now"))
            self.leases.work_appeared()

    def _ring_reported(self, name: ProcessName, report: Report) -> None:
        if self.ring is not None:
            for cut in report.ring_cuts:
                self.ring.cut(name, cut.snapshot)
            for saved in report.ring_saves:
                self.ring.saved(saved)

    def _hung_up(self, name: ProcessName) -> None:
        """The order stream of a process broke. Killed processes are heard of in this way before any other."""
        if self.ring is not None and name in self.attendance:
            self._inbox.post(ConnectionLost(self._inbox.at_s(), name))

    def _give_back(self, worker: ProcessName, lease: Lease) -> None:
        """A lease of a shard that reached nobody."""
        assert lease.shard is not None, f"{lease} has nothing to give back"
        applied = Applied(lease.shard.id, lease.attempt, lease.offset)
        self._inbox.post(LeaseReturned(self._inbox.at_s(), worker, applied, taken=False))
