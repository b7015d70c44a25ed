"""Synchronous steps: long polls for turns, and the servers that apply each complete step.

`core/ps/steps.py` decides. A step is applied on all servers before a turn of the next one is given,
so every gradient of a step is computed at the same version.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.events import GradientDropped, StepApplied, StepDelayed
from elasticdl.master.core.ps.step_waits import StepWaits
from elasticdl.master.core.ps.steps import Contribution, LeasePart, Outlook, Steps
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.gateway.order_streams import OrderStreams
from elasticdl.master.gateway.ps_registry import Holder, PsRegistry, Server
from elasticdl.rpc.conversation import Settled
from elasticdl.rpc.ps_control import RecentSteps

_ATTEMPT_S = 10.0
_DROPS_KEPT = 64
"""Dropped pushes per worker to repeat on a new order stream, beside those of two whole steps: more
than can be in flight. A worker counts a push that is not named as trained."""
_SERVER_ENDED = "a parameter server ended in the middle of its step"
_DELAYED_S = 2.0
"""A step that stays open for longer is announced with its reason."""


@dataclass(slots=True)
class _Outcomes:
    """What became of a worker's pushes."""

    dropped: deque[int]
    through: int = 0
    version: int = 0


def _pushes_of(recent: RecentSteps | None, step: int) -> tuple[tuple[str, int, float], ...]:
    """The pushes in a step of a server; () if it does not know the step, or is gone."""
    return recent.steps.get(step, ()) if recent is not None else ()


@final
class StepTurns:
    """Use it from one event loop."""

    def __init__(
        self,
        steps: Steps,
        outlook: Callable[[], Outlook],
        queue: EventQueue,
        registry: PsRegistry,
        orders: OrderStreams,
        between_steps: asyncio.Lock,
    ) -> None:
        """`between_steps` is held while a step is applied: no cut and no fence sees half of one."""
        self._steps = steps
        self._outlook = outlook
        self._queue = queue
        self._registry = registry
        self._orders = orders
        self._between_steps = between_steps
        self._waiting: dict[ProcessName, tuple[int, asyncio.Future[int]]] = {}
        self._revocations: dict[ProcessName, int] = {}
        self._barred: set[ProcessName] = set()
        """Workers whose leases are about to be revoked: a gradient of theirs was dropped."""
        self._outcomes: dict[ProcessName, _Outcomes] = {}
        self._delay = StepDelayed(0.0)
        self._waits = StepWaits()
        self._opened_s = queue.at_s()
        self._recovered = asyncio.Event()
        """Unset while an earlier master's last step is being looked for: no turn is given."""
        self._recovered.set()
        self._recent: Sequence[RecentSteps | None] = ()
        """The newest steps of an earlier master, by server; None for one that is gone."""
        self._unsettled: dict[ProcessName, tuple[int, ...]] = {}
        """Pushes whose outcome workers of an earlier master do not know."""

    # after a takeover

    def recover(self, known: int) -> None:
        """Continue after the last step of an earlier master, which its servers know.

        `known`: the last one in the journal. Servers that came back without their memory since know
        of none, and a number must not come again.
        """
        self._recovered.clear()
        self._queue.spawn("last step of an earlier master", self._recover(known))

    def restore(self, worker: ProcessName, revocation: int, unsettled: tuple[int, ...]) -> None:
        """Tell a worker of an earlier master what became of its pushes, as soon as it is known."""
        self._revocations[worker] = max(revocation, self._revocations.get(worker, 0))
        self._unsettled[worker] = unsettled
        if self._recovered.is_set():
            self._settle_earlier(worker)

    async def _recover(self, known: int) -> None:
        async with self._between_steps:
            indexes = range(self._registry.number)
            answers = await asyncio.gather(*(self._recent_on(index) for index in indexes))
            recent = [steps for _, steps in answers]
            newest = max((steps.newest for steps in recent if steps is not None), default=0)
            pushes = max((_pushes_of(steps, newest) for steps in recent), key=len, default=())
            named = [
                Contribution(ProcessName.parse(worker), sequence, examples)
                for worker, sequence, examples in pushes
            ]
            # The master was killed between two servers: the others still have the gradients.
            behind = [
                index
                for index, steps in enumerate(recent)
                if steps is not None and steps.newest == newest - 1
            ]
            await asyncio.gather(
                *(self._apply_by(self._registry.holder(index), newest, named) for index in behind)
            )
            answers = [
                await self._recent_on(index) if index in behind else answer
                for index, answer in enumerate(answers)
            ]
            self._recent = [steps for _, steps in answers]
        # One that had lost its memory applies a step, too, but without the gradients.
        complete = all(len(_pushes_of(steps, newest)) == len(pushes) for steps in self._recent)
        if newest > known:
            # Those that answered: another one may have come back without that step since.
            self._post_applied(newest, [server for server, _ in answers], complete=complete)
        self._steps.continue_after(max(newest, known))
        self._opened_s = self._queue.at_s()
        self._recovered.set()
        for worker in sorted(self._unsettled):
            self._settle_earlier(worker)
        self.decide()

    async def _recent_on(self, index: int) -> tuple[Server | None, RecentSteps | None]:
        """Return a server and its newest steps; its next process if it ends meanwhile."""
        while (server := await self._registry.present(index)) is not None:
            recent = await server.answer(
                lambda control: control.recent_steps(timeout_s=_ATTEMPT_S), "recent steps"
            )
            if recent is not None:
                self._registry.learn(server, recent.memory)
                return server, recent
            if not self._registry.returns_s:
                break
        return None, None

    def _settle_earlier(self, worker: ProcessName) -> None:
        """Settle the pushes of a worker; what is not in the model is trained again."""
        unsettled = self._unsettled.pop(worker, ())
        if not unsettled:
            return
        on = {sequence: self._recent_with(worker, sequence) for sequence in unsettled}
        dropped = [sequence for sequence, all_or_some in on.items() if not all(all_or_some)]
        outcomes = self._outcomes_of(worker)
        outcomes.through = max(outcomes.through, *unsettled)
        outcomes.version = max(
            outcomes.version, *(steps.version for steps in self._recent if steps), 0
        )
        outcomes.dropped.extend(dropped)
        self._publish(worker)
        if dropped:
            partly = any(any(on[sequence]) for sequence in dropped)
            self._drop(worker, "another master took over during its step", partly_applied=partly)

    def _recent_with(self, worker: ProcessName, sequence: int) -> list[bool]:
        """Whether a step of an earlier master has that push, by server."""
        if not self._recent or len(self._recent) != self._registry.number:
            return [False]
        return [steps is not None and steps.has(str(worker), sequence) for steps in self._recent]

    # calls of workers

    async def take(
        self, worker: ProcessName, number: int, epoch: int, revocation: int, wait_s: float
    ) -> tuple[int, str]:
        """Wait for turn `number` of a worker. Returns its step, or 0 and why there is none yet."""
        if worker in self._barred or revocation < self._revocations.get(worker, 0):
            return 0, "its lease was revoked"
        if self._steps.has_turn(worker, number):
            return self._steps.step, ""  # The first answer was lost on its way.
        self._end_poll(worker)
        poll = asyncio.get_running_loop().create_future()
        self._waiting[worker] = number, poll
        self._steps.ask(worker, number, epoch)
        self.decide()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    # The timeout must not cancel a turn that is given at the same moment.
                    await asyncio.shield(poll)
            if poll.done():
                return poll.result(), "" if poll.result() else "superseded by a newer request"
            outlook = self._outlook()
            if outlook.held:
                return 0, "all parameter servers return to a checkpoint"
            return 0, self._steps.why_open(outlook) or "the step before is being applied"
        finally:
            if self._waiting.get(worker) == (number, poll):
                del self._waiting[worker]
                self._steps.withdraw(worker)

    async def end(
        self,
        worker: ProcessName,
        number: int,
        contribution: Contribution | None,
        lease: LeasePart,
        *,
        last: bool,
    ) -> bool:
        """End a turn; without a number, only the lease ends. See `Steps.end`."""
        await self._recovered.wait()
        # An earlier master may have accepted it, and its answer was lost.
        applied = contribution is not None and all(self._recent_with(worker, contribution.sequence))
        accepted = number == 0 or applied or self._steps.end(worker, number, contribution, lease)
        if accepted and contribution is not None and not applied:
            self._waits.came(worker, self._queue.at_s())
        if not accepted and contribution is not None:
            # Unless its lease was taken back already: the next one loses nothing.
            if lease in (held.part for held in self._outlook().leases):
                self._drop(worker, "its gradient came too late for its step")
        elif last and worker not in self._barred:
            self._steps.read(lease)
        self.decide()
        return accepted

    # calls of the driver

    def revoked(self, worker: ProcessName, revocation: int) -> None:
        """The core voids the leases of a worker: its gradients of the open step are void, too."""
        self._revocations[worker] = revocation
        self._barred.discard(worker)
        if worker in self._outcomes:
            # The servers may return to an earlier version. The next step says which one they have.
            self._outcomes[worker].version = 0
            self._publish(worker)
        self._settle_dropped(worker, self._steps.remove(worker))
        self._end_poll(worker)
        self.decide()

    def leave(self, worker: ProcessName) -> None:
        """Forget a worker that has ended or was given up."""
        self._steps.forget(worker)
        self._waits.forget(worker)
        self._end_poll(worker)
        self._revocations.pop(worker, None)
        self._outcomes.pop(worker, None)
        self._unsettled.pop(worker, None)
        self._barred.discard(worker)
        self.decide()

    async def server_left(self, index: int) -> None:
        """A server has ended. Its next process may have its memory, and with it the gradients."""
        if await self._registry.present(index) is None:
            self.server_changed()

    def server_changed(self) -> None:
        """A server's part of the open step's gradients is lost."""
        for worker in sorted(self._steps.involved()):
            self._settle_dropped(worker, self._steps.remove(worker))
            self._drop(worker, _SERVER_ENDED)
        self.decide()

    def decide(self) -> None:
        """Give turns, and apply the step if it is complete. Call it after every change."""
        if not self._recovered.is_set():
            return
        outlook = self._outlook()
        self._steps.prune(lease.part for lease in outlook.leases)
        for turn in self._steps.give(outlook):
            _, poll = self._waiting.pop(turn.worker)
            poll.set_result(turn.step)
        complete = self._steps.complete(outlook)
        if complete:
            workers = [contribution.worker for contribution in complete]
            waited = self._waits.completed(workers, self._opened_s, self._queue.at_s())
            if waited is not None:
                self._queue.post(waited)
            # These servers have the gradients; one that attaches with another memory has not.
            holders = [self._registry.holder(index) for index in range(self._registry.number)]
            self._queue.spawn(f"step {self._steps.step}", self._apply(complete, holders))

    def tick(self) -> None:
        """Tell the core what a step waits for if it stays open for long."""
        now_s, open_s = self._queue.at_s(), self._queue.at_s() - self._opened_s
        outlook = self._outlook()
        why = self._steps.why_open(outlook) if open_s >= _DELAYED_S else ""
        missing = tuple(sorted(self._steps.missing(outlook))) if why else ()
        if (why, missing) != (self._delay.reason, self._delay.missing):
            self._delay = StepDelayed(now_s, why, missing)
            self._queue.post(self._delay)

    # steps

    async def _apply(
        self, contributions: Sequence[Contribution], holders: Sequence[Holder]
    ) -> None:
        async with self._between_steps:
            step = self._steps.step
            versions = await asyncio.gather(
                *(self._apply_by(holder, step, contributions) for holder in holders)
            )
        self._opened_s = self._queue.at_s()
        self._steps.applied()
        servers = [holder.server for holder in holders]
        self._post_applied(step, servers, complete=None not in versions)
        pushes: dict[ProcessName, list[int]] = {}
        for contribution in contributions:
            pushes.setdefault(contribution.worker, []).append(contribution.sequence)
        applied = [version for version in versions if version is not None]
        for worker, sequences in pushes.items():
            if len(applied) == self._registry.number:
                outcomes = self._outcomes_of(worker)
                outcomes.through = max(outcomes.through, *sequences)
                outcomes.version = max(outcomes.version, min(applied))
                self._publish(worker)
            else:
                self._settle_dropped(worker, sequences)
                self._drop(worker, _SERVER_ENDED, partly_applied=bool(applied))
        self.decide()

    def _post_applied(self, step: int, servers: Sequence[Server | None], *, complete: bool) -> None:
        """Post the outcome of a step, before anything that workers may say of it."""
        names = tuple(server.name for server in servers if server is not None)
        self._queue.post(StepApplied(self._queue.at_s(), step, complete, names))

    async def _apply_by(
        self, holder: Holder, step: int, contributions: Sequence[Contribution]
    ) -> int | None:
        """Apply a step at a server, by its next process with the same memory if it ends meanwhile.

        None if the gradients are lost.
        """
        server = holder.server
        while True:
            version = await self._apply_at(server, step, contributions) if server else None
            if version is not None or not holder.memory:
                return version
            server = await self._registry.present(holder.index)
            if server is None or server.memory != holder.memory:
                return None

    async def _apply_at(
        self, server: Server, step: int, contributions: Sequence[Contribution]
    ) -> int | None:
        """Apply a step at one server; None if the server is gone."""
        named = [
            (str(contribution.worker), contribution.sequence, contribution.examples)
            for contribution in contributions
        ]
        return await server.answer(
            lambda control: control.apply_step(step, named, timeout_s=_ATTEMPT_S), f"step {step}"
        )

    def _drop(self, worker: ProcessName, why: str, *, partly_applied: bool = False) -> None:
        """Have the core take the leases of a worker back: their records are trained later.

        `partly_applied`: some servers have these gradients already.
        """
        if partly_applied or worker not in self._barred:
            self._barred.add(worker)
            self._queue.post(GradientDropped(self._queue.at_s(), worker, why, partly_applied))

    def _settle_dropped(self, worker: ProcessName, sequences: Sequence[int]) -> None:
        if not sequences:
            return
        outcomes = self._outcomes_of(worker)
        outcomes.through = max(outcomes.through, *sequences)
        outcomes.dropped.extend(sequences)
        self._publish(worker)

    def _outcomes_of(self, worker: ProcessName) -> _Outcomes:
        if worker not in self._outcomes:
            kept = _DROPS_KEPT + 2 * self._steps.turns
            self._outcomes[worker] = _Outcomes(deque(maxlen=kept))
        return self._outcomes[worker]

    def _publish(self, worker: ProcessName) -> None:
        outcomes = self._outcomes.get(worker)
        if outcomes is not None:
            # A dropped push may overtake one that is being applied.
            before = (sequence - 1 for sequence in self._steps.applying(worker))
            through = min((outcomes.through, *before))
            settled = Settled(through, outcomes.version, tuple(outcomes.dropped))
            self._orders.publish_settled(worker, settled)

    def _end_poll(self, worker: ProcessName) -> None:
        _, poll = self._waiting.pop(worker, (0, None))
        if poll is not None and not poll.done():
            poll.set_result(0)
