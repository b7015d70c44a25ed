"""How many processes run: planned by the user, requested from the cluster, and ready."""

from __future__ import annotations

import itertools
import random
from typing import final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.errors import ExitCode
from elasticdl.flag_values import WorkerRange
from elasticdl.formatting import amount
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.job_choices import Action
from elasticdl.master.core.commands import KeepScale, StartProcess, StopProcess
from elasticdl.master.core.coordination import Coordination
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.events import CreateFailed, ReplaceRequested, ScaleRequested
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.causes import Cause
from elasticdl.master.core.processes.table import Life, Process

DRAIN_GRACE_S = 30.0
"""A worker that drains may take this long to return its leases, then the cluster kills it."""
END_GRACE_S = 5.0
"""How long a process may take that is stopped when the job is over: it has nothing to return."""
_STOP_MARGIN_S = 30.0
_EXPLAIN_LIMIT_S = 60.0
"""Platforms report a lost node half a minute after its grace; only the process table waits."""
_REFUSED_RETRY_S = 1.0
_LONGEST_REFUSED_RETRY_S = 30.0
_COME_UP_LIMIT_S = 120.0
"""After this time, a worker that is still starting no longer delays others."""


@final
class Scaling:
    """Orders starts and stops so that the running processes match the plan."""

    def __init__(
        self, context: JobContext, evaluation: Evaluation, coordination: Coordination
    ) -> None:
        self._context = context
        self._evaluation = evaluation
        self._coordination = coordination

    def requested(self, event: ScaleRequested) -> None:
        """Change the range of workers at a person's request."""
        low, high, before = event.min_workers, event.max_workers, self._context.workers
        if why_not := self._why_not(low, high):
            text = f"cannot change the number of workers to {low}:{high}: {why_not}"
            self._context.orders.announce("scale", text, level="warning")
            return
        self._context.workers = WorkerRange(low=low, high=high)
        details = {"low": low, "high": high}
        text = f"workers scaled from {before.low}:{before.high} to {low}:{high} on request"
        if stays := self.what_steps_stay(high):
            text += f"; {stays}"
        self._context.orders.announce("scale", text, details=details)
        self._context.orders.give(KeepScale(low, high))

    def what_steps_stay(self, workers: int) -> str | None:
        """What the job chose for fewer workers and keeps, in words; None if it suits as many."""
        spec = self._context.spec
        if spec.action is not Action.TRAIN or spec.trains_on_ring:
            return None
        again = "stop the job and resume it with another --num-workers to choose again"
        if spec.trains_in_steps:
            at_once = spec.turns_per_step
            if workers > at_once:
                return f"only {at_once} compute at a time, as many as share a step; {again}"
        elif spec.cluster.num_workers.high == 1 < workers:
            return f"steps stay asynchronous, as one worker began them; {again}"
        return None

    def why_not_scale(self, low: int, high: int) -> str | None:
        """Why a person cannot change the number of workers to low:high; None if they can."""
        if self._context.phase is Phase.STARTING:
            return (
                "the job has not begun: model and data are being checked; try again when it trains"
            )
        return self._why_not(low, high)

    def _why_not(self, low: int, high: int) -> str | None:
        if not 1 <= low <= high:
            return "expected 1 <= MIN <= MAX"
        most = self._context.spec.training.virtual_workers
        if most and high > most:
            return f"the job has --virtual-workers {most}"
        gang = self._context.spec.gang_workers
        if low < gang:
            return f"with --gang the job has at least {amount(gang, 'worker')}"
        late = self._context.late()
        return f"the job {late}" if late else None

    def why_not_replace(self, name: ProcessName) -> str | None:
        """Why a process cannot be replaced, in words; None if it can."""
        process = self._context.processes.all.get(name)
        if process is None:
            return f"{name} is not a process of this job"
        if name.role is not Role.WORKER:
            return (
                f"{name} is a parameter server: its updates since the newest checkpoint would be"
                " lost"
            )
        if not process.live:
            return f"{name} is already {process.life}" + (
                f": {process.message}" if process.message else ""
            )
        if late := self._context.late():
            return f"the job {late}: {name} would have no successor"
        return self._coordination.why_not_replace(name)

    def replace(self, event: ReplaceRequested) -> None:
        """Replace a worker at a person's request, if possible.

        It drains, and another starts at once.
        """
        if why_not := self.why_not_replace(event.name):
            self._context.orders.announce(
                "scale", f"{event.name} cannot be replaced: {why_not}", level="warning"
            )
            return
        self.stop(self._context.processes.all[event.name], DRAIN_GRACE_S, "replaced on request")

    def desired_workers(self) -> int:
        """The number of workers that have work, within the plan.

        A lack of work never stops existing workers, and leaves no gang short of one: the rest of
        it would get no place any more.
        """
        least = self._least_for_gang()
        match self._context.phase:
            case Phase.WORKING | Phase.EVALUATING | Phase.EXPORTING:
                work = self._work_items() if self._gang_placed() else 0
                return min(self._context.most_workers, max(1, least, work))
            case Phase.CHECKPOINTING if self._context.outcome is None:
                exports = bool(self._context.spec.checkpoint.output)
                return max(least, int(exports or not self._coordination.weights_outlive_workers))
            case _:
                return 0

    def _gang(self) -> list[Process]:
        live = self._context.processes.live_workers()
        return [process for process in live if process.in_gang]

    def _least_for_gang(self) -> int:
        """Live workers if the gang was whole, beside those outside of it; 0 without a gang."""
        gang = self._context.spec.gang_workers
        return gang and gang + len(self._context.processes.live_workers()) - len(self._gang())

    def _gang_placed(self) -> bool:
        """Whether the gang runs, so that more workers do not take the room that it waits for."""
        gang = self._context.spec.gang_workers
        return not gang or gang <= sum(worker.running_s is not None for worker in self._gang())

    def _work_items(self) -> int:
        """Shards to lease, plus one per worker that holds any: its shards may come back."""
        if not self._coordination.limited_by_shards:
            return self._context.most_workers
        current = self._evaluation.round
        work = self._context.work if self._context.phase is Phase.WORKING else None
        ledgers = [
            ledger for ledger in (work, current.ledger if current else None) if ledger is not None
        ]
        if any(ledger.epochs_left for ledger in ledgers):
            return self._context.most_workers
        available = sum(ledger.available for ledger in ledgers)
        if available >= self._context.most_workers:
            return available
        if len(ledgers) == 1:
            return ledgers[0].holders + available
        holders = {held.worker for ledger in ledgers for held in ledger.held.values()}
        return len(holders) + available

    def decide(self) -> None:
        """Start missing processes and drain surplus workers."""
        if self._context.phase in (Phase.STARTING, Phase.ENDING, Phase.ENDED):
            return
        for index in self._context.server_map.indices:
            if self._context.processes.server(index) is None:
                self.start(
                    ProcessName(Role.PS, index, self._context.processes.next_incarnation(index)),
                    # Of a job that stops, no gang is whole any more.
                    in_gang=self._context.spec.gang_workers > 0 and self._context.outcome is None,
                )
        live = self._context.processes.live_workers()
        missing = self._missing(live)
        if missing:
            gang = self._context.spec.gang_workers - len(self._gang())
            for number in range(min(missing, self._room())):
                self.start(self._context.processes.new_worker_name(), in_gang=number < gang)
        most = self._context.most_workers
        for process in self._surplus(live, most):
            # Nobody replaces it, so no later start must name it as its predecessor.
            process.replaced = True
            self.stop(process, DRAIN_GRACE_S, f"scaled down to {amount(most, 'worker')}")
        self._retry_refused()

    def _surplus(self, live: list[Process], most: int) -> list[Process]:
        """Those of `live`, sorted by index, to stop: those of a gang last.

        The highest places of the ladder, which other jobs would preempt first, come first. Without
        a ladder these are the newest workers.
        """
        # Read after every event: without too many workers nothing need be looked at more closely.
        if len(live) <= most or self._context.phase is Phase.DRAINING:
            return []
        # A worker that the cluster has not shown yet takes the lowest free place, perhaps that of
        # one that it replaces: see `cluster/kubernetes/worker_places.py`.
        held = {worker.ladder_place for worker in self._context.processes.workers()}
        free = (place for place in itertools.count(1) if place not in held)
        places = {
            process.name: next(free) if process.ladder_place is None else process.ladder_place
            for process in live
        }
        return sorted(live, key=lambda process: (not process.in_gang, places[process.name]))[most:]

    def _missing(self, live: list[Process]) -> int:
        # Read after every event: with all of its workers a job need not be looked at more closely.
        if len(live) >= self._context.most_workers:
            return 0
        return max(0, self.desired_workers() - len(live))

    def _room(self) -> int:
        """How many more workers may start now."""
        at_once = self._context.limits.starting
        if at_once is None:
            return self._context.most_workers
        since_s = self._context.now_s - _COME_UP_LIMIT_S
        coming = self._context.processes.coming_workers()
        return max(0, at_once - sum(process.ordered_s > since_s for process in coming))

    def waiting_turn(self) -> str:
        """Which workers wait because others are still starting, in words; '' if none."""
        live = self._context.processes.live_workers()
        left = self._missing(live) if self._context.limits.starting is not None else 0
        at_once = self._context.limits.starting
        return f"starting workers {at_once} at a time; {left:,} queued" if left else ""

    def start(self, name: ProcessName, *, in_gang: bool = False) -> None:
        """Order the first start of a process, after the back-off."""
        delay_s = self._context.budgets.back_off_s()
        process = self._context.processes.start(name, self._context.now_s)
        process.memory_bytes = self._context.memory.of(name.role)
        process.in_gang = in_gang
        # The back-off is our own choice; time spent waiting counts from its end.
        process.ordered_s += delay_s
        self.order(process, delay_s)
        wait = f" in {delay_s:g} s" if delay_s else ""
        before = self._context.processes.take_unreplaced(name)
        details = meaning(EventStep.ORDERED, delay_s=delay_s)
        if before is not None:
            details["replaces"] = str(before.name)
        if process.memory_bytes is not None:
            details["memory_bytes"] = process.memory_bytes
        self._context.orders.announce(
            "process", f"starting {name}{wait}", process=name, details=details
        )

    def order(self, process: Process, delay_s: float = 0.0) -> None:
        """Order the start of a process, for the first time or again, with its memory."""
        raised = self._context.memory.raised(process.name.role)
        self._context.orders.give(
            StartProcess(
                process.name,
                delay_s,
                process.memory_bytes if raised else None,
                process.in_gang,
            )
        )

    def order_again(self) -> None:
        """Order starts and stops again: an earlier master may not have carried them out.

        A process of that name that exists is not started again.
        """
        now_s = self._context.now_s
        for process in self._context.processes.going.values():
            if process.life in (Life.REQUESTED, Life.PENDING):
                self.order(process, max(0.0, process.ordered_s - now_s))
            elif process.stop_ordered and process.deadline_s is not None:
                margin_s = _EXPLAIN_LIMIT_S if process.life is Life.LOST else _STOP_MARGIN_S
                grace_s = max(0.0, process.deadline_s - margin_s - now_s)
                for_good = self._context.is_spare(process.name)
                self._context.orders.give(
                    StopProcess(process.name, grace_s, process.message, for_good)
                )

    def stop(
        self, process: Process, grace_s: float, reason: str, *, life: Life = Life.STOPPING
    ) -> None:
        """Ask a process to end. With LOST instead of STOPPING, its reports no longer count."""
        now_s = self._context.now_s
        # A refused process does not exist in the cluster, so no end would ever be reported.
        never_made = process.life is Life.REFUSED
        # Then only its grace is shorter now.
        known = process.life is life and process.message == reason
        margin_s = _EXPLAIN_LIMIT_S if life is Life.LOST else _STOP_MARGIN_S
        process.enter(life, now_s, reason, deadline_s=now_s + grace_s + margin_s)
        if never_made:
            self._end(process, Cause.DRAINED, f"never created: {reason}")
            return
        process.stop_ordered = True
        for_good = self._context.is_spare(process.name)
        self._context.orders.give(StopProcess(process.name, grace_s, reason, for_good))
        if known:
            return
        details = meaning(EventStep.STOPPING, reason=reason, grace_s=grace_s)
        self._context.orders.announce(
            "process",
            f"stopping {process.name}: {reason}",
            process=process.name,
            details=details,
        )

    def _end(self, process: Process, cause: Cause, reason: str) -> None:
        """Record the end of a process that was never created."""
        self._context.processes.end(process, cause, reason, self._context.now_s)
        details = meaning(EventStep.ENDED, reason=reason)
        text = f"{process.name} ended: {reason}"
        self._context.orders.announce(
            "process", text, process=process.name, cause=cause, details=details
        )

    def create_failed(self, event: CreateFailed) -> None:
        """Handle the cluster's refusal to create a process: retry later, or give the process up."""
        process = self._context.processes.going.get(event.name)
        if process is not None and process.life is Life.STOPPING and not process.ran:
            # It was asked to end while its creation was under way: no end of it will be reported.
            cause = process.cause or Cause.DRAINED
            self._end(process, cause, f"never created: {process.message}")
            return
        if process is None or process.life not in (Life.REQUESTED, Life.REFUSED):
            return
        if event.retry:
            process.refusals += 1
            process.enter(
                Life.REFUSED, event.at_s, event.reason, deadline_s=event.at_s + _pause_s(process)
            )
            return
        process.replaced = True
        self._end(process, Cause.INFRASTRUCTURE, event.reason)
        text = f"{event.name} cannot be created: {event.reason}"
        others = len(self._context.processes.live_workers())
        if self._context.is_spare(event.name):
            # The change of the number of servers fails, and not the job.
            return
        needed = event.name.role is Role.PS or process.in_gang
        if needed or others < self._context.workers.low:
            self._context.fail(
                text,
                exit_code=ExitCode.CLUSTER_REFUSED,
                hint="run `elasticdl check` to list the missing rights",
            )
        else:
            # Do not order what the cluster will never grant; a user may scale up again.
            self._context.workers = WorkerRange(low=self._context.workers.low, high=others)
            self._context.orders.announce(
                "scale", f"{text}; continuing with {amount(others, 'worker')}", level="warning"
            )

    def _retry_refused(self) -> None:
        for process in self._context.processes.refused():
            if process.deadline_s is not None and self._context.now_s >= process.deadline_s:
                process.enter(Life.REQUESTED, self._context.now_s, process.message)
                self.order(process)


def _pause_s(process: Process) -> float:
    """Seconds until the next try: growing, and different for each process.

    Different pauses spread the requests. They depend on the name only, so that a replay gets the
    same.
    """
    longest_s = min(
        _LONGEST_REFUSED_RETRY_S, _REFUSED_RETRY_S * 2.0 ** min(process.refusals - 1, 10)
    )
    return longest_s * random.Random(f"{process.name}/{process.refusals}").uniform(0.8, 1.0)
