"""What processes say to the master over a simulated network: calls that take time, get lost, and
are made again.

`Client` has the methods, the numbering and the retries of `rpc.master_client.MasterClient`; on the
master's side the real
`ProcessGateway` answers. There is no wire: values arrive as they were sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.errors import ElasticDLError, MasterReplaced, Refused, TransientError
from elasticdl.master.core.events import ProcessAttached
from elasticdl.master.core.ps.steps import Contribution
from elasticdl.master.gateway.process_gateway import Returning
from elasticdl.master.gateway.step_turns import StepTurns
from elasticdl.rpc.conversation import (
    Attached,
    LeaseAnswer,
    Order,
    Report,
    Revoke,
    Servers,
    Settled,
)
from elasticdl.rpc.master_client import ATTACH_AGAIN_S
from elasticdl.shard import Applied, Lease, ReceivedLease
from tests.simulation.scheduler import Process, Scheduler, Task
from tests.simulation.threads import Lock

if TYPE_CHECKING:
    from tests.simulation.master import Master

AWAY_S = 120.0
_LONG_POLL_SLACK_S = 10.0
_ATTEMPT_S = 15.0


@dataclass(frozen=True, slots=True)
class Weather:
    """How the network is. Probabilities are of one message or, for streams, of one order."""

    latency_s: float = 0.001
    spread: float = 3.0
    """Latencies are up to that many times more."""
    loses: float = 0.0
    breaks_streams: float = 0.0


@final
class Network:
    """Between all processes and the master."""

    def __init__(self, scheduler: Scheduler, weather: Weather) -> None:
        self.scheduler = scheduler
        self.weather = weather
        self.random = scheduler.random

    def latency_s(self) -> float:
        return self.weather.latency_s * (1.0 + self.weather.spread * self.random.random())

    def loses(self) -> bool:
        return bool(self.weather.loses) and self.random.random() < self.weather.loses


@dataclass(slots=True, eq=False)
class _Call:
    """One attempt. The caller sleeps until there is an outcome or its time is over."""

    caller: Task
    outcome: Any = None
    error: BaseException | None = None
    over: bool = False
    handler: asyncio.Task[Any] | None = None


@final
class _Stream:
    """Orders on their way to one process, in their order."""

    def __init__(self) -> None:
        self.orders: deque[Order] = deque()
        self.broken: BaseException | None = None
        self.listener: Task | None = None
        self.arrives_s = 0.0
        self.term = 0
        self.pump: asyncio.Task[None] | None = None


@final
class Client:
    """The master, as one process sees it.

    Its methods are called by simulated threads of that process.
    """

    def __init__(
        self, process: Process, name: ProcessName, network: Network, master: Callable[[], Master]
    ) -> None:
        """`master` returns the newest one: all have the same address."""
        self._process = process
        self._name = name
        self._network = network
        self._scheduler = process.scheduler
        self._newest_master = master
        self._calls: dict[_Call, None] = {}
        """As an ordered set: a seed replays exactly."""
        self._term = 0
        self._attaching = Lock()
        self._received: list[ReceivedLease] = []
        self._revocation = 0
        self._unsettled: set[int] = set()
        self._attached_with: tuple[str, str, int | None, bool, int, bool] | None = None
        self._report_lock = Lock()
        self._lease_lock = Lock()
        self._reports = 0
        self._leases = 0
        self._stream: _Stream | None = None
        process.at_death.append(self.cut_off)

    @property
    def _master(self) -> Master:
        return self._newest_master()

    def attach(
        self,
        control: str = "",
        bulk: str = "",
        restored_version: int | None = None,
        *,
        starting: bool = False,
        loaded: str = "",
        memory: int = 0,
        kept: bool = False,
    ) -> Attached:
        """See MasterClient."""
        given = control, bulk, restored_version, starting, memory, kept
        attached: Attached = self._call(partial(self._attach, *given, loaded=loaded), _ATTEMPT_S)
        self._term = attached.term
        self._attached_with = given
        return attached

    async def _attach(
        self,
        control: str,
        bulk: str,
        restored_version: int | None,
        starting: bool,
        memory: int = 0,
        kept: bool = False,
        *,
        told: Returning | None = None,
        loaded: str = "",
    ) -> Attached:
        """As `master.gateway.servicer.MasterService.Attach`; `told`: again."""
        master, instance = self._master, str(self._name)
        known = told is not None and await master.gateway.attach_again(self._name, instance, told)
        if not known:
            event = ProcessAttached(
                master.inbox.at_s(),
                self._name,
                control,
                bulk,
                restored_version,
                starting=starting,
                instance=instance,
                kept=kept,
            )
            await master.gateway.attach(event, instance, memory, loaded=loaded)
        servers = master.gateway.orders.servers
        place, stands_by = master.state.place_of(self._name.index)
        back = master.state.roll_back if self._name.role is Role.PS else None
        return Attached(
            master.term,
            2.0,
            master.spec,
            servers.addresses,
            back.path if back else master.archive.restore_from,
            first_server=servers.first,
            place=self._name.index - place.first,
            places=place.number,
            stands_by=stands_by,
            rolls_back=back is not None,
        )

    def _attach_again(self, term: int) -> None:
        """As `rpc.master_client.MasterClient._attach_again`."""
        with self._attaching:
            if self._term != term or self._attached_with is None:
                return
            told = Returning(
                tuple(self._received), self._revocation, tuple(sorted(self._unsettled))
            )
            again = partial(self._attach, *self._attached_with, told=told)
            call = self._attempt(again, ATTACH_AGAIN_S)
            if call.error is None:
                self._term = call.outcome.term

    def request_lease(self, wait_s: float) -> LeaseAnswer:
        """See MasterClient."""
        return self._next(wait_s, 0, at_mark=False)

    def request_item(self, number: int, wait_s: float, *, at_mark: bool = False) -> LeaseAnswer:
        """See MasterClient."""
        return self._next(wait_s, number, at_mark=at_mark)

    def _next(self, wait_s: float, number: int, *, at_mark: bool) -> LeaseAnswer:
        with self._lease_lock:
            sequence = self._leases + 1
            while True:
                term = 0

                async def handle() -> LeaseAnswer:
                    nonlocal term
                    term = self._check()
                    return await self._master.gateway.poll(
                        self._name, sequence, wait_s, ring_number=number, at_mark=at_mark
                    )

                answer: LeaseAnswer = self._call(handle, wait_s + _LONG_POLL_SLACK_S)
                if self._note_answer(answer, term):
                    self._leases += 1
                    return answer

    def take_turn(self, number: int, epoch: int, revocation: int, wait_s: float) -> tuple[int, str]:
        """See MasterClient."""

        async def handle() -> tuple[int, str]:
            self._check()
            return await self._turns.take(self._name, number, epoch, revocation, wait_s)

        step, why = self._call(handle, wait_s + _LONG_POLL_SLACK_S)
        return step, why

    def end_turn(
        self, number: int, sequence: int, examples: float, applied: Applied, *, last: bool
    ) -> bool:
        """See MasterClient."""

        if sequence:
            self._unsettled.add(sequence)

        async def handle() -> bool:
            self._check()
            made = Contribution(self._name, sequence, examples) if sequence else None
            lease = self._name, applied.shard, applied.attempt
            return await self._turns.end(self._name, number, made, lease, last=last)

        accepted = bool(self._call(handle, _ATTEMPT_S))
        if not accepted:
            self._unsettled.discard(sequence)
        return accepted

    @property
    def _turns(self) -> StepTurns:
        turns = self._master.gateway.turns
        assert turns is not None
        return turns

    def report(self, report: Report) -> None:
        """See MasterClient."""
        with self._report_lock:
            sequence = self._reports + 1

            async def handle() -> None:
                self._check()
                await self._master.gateway.report(self._name, report, sequence)
                self._master.reported(self._name, report)

            self._call(handle, _ATTEMPT_S)
            self._reports += 1

    def report_and_request(self, report: Report) -> tuple[None, LeaseAnswer | None]:
        """See MasterClient."""
        with self._lease_lock, self._report_lock:
            sequence, lease, term = self._reports + 1, self._leases + 1, 0

            async def handle() -> LeaseAnswer:
                nonlocal term
                term = self._check()
                gateway = self._master.gateway
                answer = await gateway.report_and_poll(self._name, report, sequence, lease)
                self._master.reported(self._name, report)
                return answer

            answer: LeaseAnswer = self._call(handle, _ATTEMPT_S)
            self._reports += 1
            if not self._note_answer(answer, term):
                return None, None
            self._leases += 1
            return None, answer

    def _note_answer(self, answer: LeaseAnswer, term: int) -> bool:
        """As `rpc.master_client.MasterClient._take`."""
        with self._attaching:
            if self._term != term:
                return False
            if isinstance(answer, Lease):
                self._received.append(ReceivedLease.of(answer))
                self._revocation = max(self._revocation, answer.revocation)
            return True

    def orders(self) -> Iterator[Order]:
        """See MasterClient."""
        attempt, away_since_s = 0, self._scheduler.now_s
        while True:
            stream = self._stream = _Stream()
            stream.listener = self._scheduler.current
            self._scheduler.after(self._network.latency_s(), partial(self._open, stream))
            while True:
                while not stream.orders and stream.broken is None:
                    self._scheduler.park()
                if not stream.orders:
                    break
                attempt = 0
                order = stream.orders.popleft()
                if isinstance(order, Revoke):
                    self._revocation = max(self._revocation, order.revocation)
                if isinstance(order, Settled):
                    self._unsettled = {one for one in self._unsettled if one > order.through}
                yield order
                away_since_s = self._scheduler.now_s
            if isinstance(stream.broken, MasterReplaced):
                self._attach_again(stream.term)
            if not isinstance(stream.broken, TransientError):
                assert stream.broken is not None
                raise stream.broken
            if attempt and self._scheduler.now_s - away_since_s > AWAY_S:
                raise stream.broken
            attempt += 1
            self._scheduler.sleep(self._delay_s(attempt))

    def cut_off(self) -> None:
        """The process is gone: its connections end."""
        for call in list(self._calls):
            call.over = True
            if call.handler is not None:
                call.handler.cancel()
        self._calls.clear()
        if self._stream is not None and self._stream.pump is not None:
            self._stream.pump.cancel()

    def master_died(self) -> None:
        """The connections to the master break: what it was answering is lost."""
        broke = TransientError("the connection to the master broke")
        for call in list(self._calls):
            if call.handler is not None:
                call.handler = None
                self._scheduler.after(
                    self._network.latency_s(), partial(self._reply, call, None, broke)
                )
        if self._stream is not None and self._stream.pump is not None:
            self._stream.pump = None
            self._arrive(self._stream, broke)

    # Streams

    def _open(self, stream: _Stream) -> None:
        if self._process.dead or self._stream is not stream:
            return
        stream.term = self._term
        if self._master.dead:
            self._arrive(stream, TransientError("no master listens"))
            return
        stream.pump = self._master.loop.create_task(
            self._pump(stream), name=f"orders of {self._name}"
        )

    async def _pump(self, stream: _Stream) -> None:
        """The handler of the call."""
        try:
            self._check()
        except ElasticDLError as refused:
            self._arrive(stream, refused)
            return
        orders = self._master.gateway.stream(self._name)
        try:
            async for order in orders:
                if (
                    not isinstance(order, Servers)
                    and self._network.random.random() < self._network.weather.breaks_streams
                ):
                    break
                self._arrive(stream, order)
        finally:
            await orders.aclose()
            self._arrive(stream, TransientError("the stream of orders broke"))

    def _arrive(self, stream: _Stream, what: Order | BaseException) -> None:
        """One after the other, after a while."""
        now_s = self._scheduler.now_s
        stream.arrives_s = max(stream.arrives_s, now_s + self._network.latency_s())
        self._scheduler.after(stream.arrives_s - now_s, lambda: self._arrived(stream, what))

    def _arrived(self, stream: _Stream, what: Order | BaseException) -> None:
        if self._process.dead:
            return
        if isinstance(what, BaseException):
            stream.broken = stream.broken or what
        elif stream.broken is None:
            stream.orders.append(what)
        if stream.listener is not None:
            self._scheduler.wake(stream.listener)

    # Calls

    def _check(self) -> int:
        """What the servicer does before it lets a process in. Returns the term."""
        if self._term != self._master.term:
            raise MasterReplaced(f"term {self._term}, but the master is of {self._master.term}")
        why = self._master.gateway.sessions.refusal(self._name, str(self._name))
        if why:
            raise Refused(why)
        return self._term

    def _call(self, handle: Callable[[], Coroutine[Any, Any, Any]], attempt_s: float) -> Any:
        end_s = self._scheduler.now_s + AWAY_S
        attempt = 0
        while True:
            attempt += 1
            term = self._term
            call = self._attempt(handle, attempt_s)
            if call.error is None:
                return call.outcome
            if isinstance(call.error, MasterReplaced):
                self._attach_again(term)
            if not isinstance(call.error, TransientError):
                raise call.error
            wait_s = self._delay_s(attempt)
            if self._scheduler.now_s + wait_s >= end_s:
                raise TransientError(f"{call.error.message} (gave up after {attempt} attempts)")
            self._scheduler.sleep(wait_s)

    def _attempt(self, handle: Callable[[], Coroutine[Any, Any, Any]], attempt_s: float) -> _Call:
        scheduler = self._scheduler
        assert scheduler.current is not None
        call = _Call(scheduler.current)
        self._calls[call] = None
        if self._network.loses():
            scheduler.after(
                self._network.latency_s(),
                lambda: self._reply(call, None, TransientError("the request was lost")),
            )
        else:
            scheduler.after(self._network.latency_s(), lambda: self._arrive_at_master(call, handle))
        end_s = scheduler.now_s + attempt_s
        try:
            while not call.over:
                if (
                    not scheduler.park(end_s - scheduler.now_s)
                    and not call.over
                    and scheduler.now_s >= end_s
                ):
                    call.over, call.error = True, TransientError("there was no answer in time")
                    if call.handler is not None:
                        call.handler.cancel()
        finally:
            self._calls.pop(call, None)
        return call

    def _arrive_at_master(
        self, call: _Call, handle: Callable[[], Coroutine[Any, Any, Any]]
    ) -> None:
        if call.over or self._process.dead:
            return
        if self._master.dead:
            refused = TransientError("no master listens")
            self._scheduler.after(
                self._network.latency_s(), partial(self._reply, call, None, refused)
            )
            return
        call.handler = self._master.loop.create_task(handle(), name=f"a call of {self._name}")
        call.handler.add_done_callback(lambda done: self._handled(call, done))

    def _handled(self, call: _Call, done: asyncio.Task[Any]) -> None:
        call.handler = None
        if done.cancelled():
            outcome = None
            error: BaseException | None = TransientError("the call was cancelled")
        else:
            error = done.exception()
            outcome = done.result() if error is None else None
        if error is not None and not isinstance(error, ElasticDLError) and not self._master.over:
            self._scheduler.fail(error, f"a call of {self._name}")
            return
        if call.over:
            return
        if self._network.loses():
            outcome, error = None, TransientError("the answer was lost")
        self._scheduler.after(self._network.latency_s(), lambda: self._reply(call, outcome, error))

    def _reply(self, call: _Call, outcome: Any, error: BaseException | None) -> None:
        if not call.over and not self._process.dead:
            call.over, call.outcome, call.error = True, outcome, error
            self._scheduler.wake(call.caller)

    def _delay_s(self, attempt: int) -> float:
        """As `rpc.retry.delay_s`."""
        return min(2.0, 0.1 * 2.0 ** min(attempt - 1, 10)) * (
            0.5 + 0.5 * self._network.random.random()
        )
