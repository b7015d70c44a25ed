"""Names workers that are far slower than the others, and replaces them within a budget.

A worker is compared with the others at the same time, so a cluster that is slow as a whole has no
slow worker. Workers of parameter servers only: on a ring all members have the same pace.
"""

from __future__ import annotations

from statistics import median_low
from typing import final

from elasticdl.master.core import events
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.causes import Cause
from elasticdl.master.core.processes.scaling import DRAIN_GRACE_S, Scaling
from elasticdl.master.core.processes.slowness import announce_slowness, lack_of_cpu
from elasticdl.master.core.processes.table import Life, Process
from elasticdl.master.core.tick_share import is_turn
from elasticdl.shard import Task

SLOW_TIMES = 5.0
_NOT_SLOW_TIMES = 3.0
_SLOW_FOR_S = 30.0
"""A worker is replaced if it has been slow for so long, and the rest of the job takes longer."""
_WORTH_S = 60.0
"""A replacement needs up to a minute until it trains: a shorter rest is not worth it."""
_MOST_IN_VAIN = 3
"""Replacements in a row whose successors are slow, too: then the cause is not the process."""
_BARRED_S = 60.0
"""A slow worker that synchronous steps do without, and that stays, gets work again after that."""
_PAUSE_S = 60.0
"""Pause after a replacement; it doubles with each replacement in vain."""


@final
class SlowWorkers:
    """Compares the workers at ticks. Only a tick with a command changes it."""

    def __init__(self, context: JobContext, leasing: Leasing, scaling: Scaling) -> None:
        self._context = context
        self._leasing = leasing
        self._scaling = scaling
        self._replacements = 0
        """Replacements in a row that were in vain; see `_in_vain`."""
        self._replaced_s = float("-inf")

    def saw(self, event: events.Event) -> None:
        """Take in what processes and steps report about slow ones."""
        match event:
            case events.StepsWaited():
                self._steps_waited(event)
            case events.CpuShareReported(name=name, share=share):
                process = self._context.processes.going.get(name)
                if process is not None:
                    process.cpu_share = share
            case _:
                pass

    def _steps_waited(self, event: events.StepsWaited) -> None:
        process = self._context.worker(event.worker)
        if process is None or process.life is not Life.READY:
            return
        # Without it, steps would have taken the rest of the time.
        others_s = max(1e-3, event.of_s - event.waited_s)
        text = f"synchronous steps waited {event.waited_s:.0f} of {event.of_s:.0f} s for it alone"
        self._compared(process, event.of_s / others_s, text)
        if process.slow_times and self._leasing.healthy_workers():
            # The open step continues without it at once, and it gets no other lease (`Leasing`).
            self._leasing.revocation.revoke(process.name, "it is too slow for synchronous steps")

    def tick(self, turn: int) -> None:
        """Compare the workers, and replace one that has been slow for long.

        `turn`: the number of the tick.
        """
        if self._context.spec.trains_on_ring:
            return
        if self._context.phase not in (Phase.WORKING, Phase.EVALUATING):
            return
        live = self._context.processes.live_workers()
        if not is_turn(len(live), turn):
            return
        workers = [worker for worker in live if worker.up]
        if self._context.spec.trains_in_steps:
            self._try_again(workers)
        else:
            self._compare(workers)
        slow = [worker for worker in workers if worker.slow_times]
        in_vain = self._in_vain(workers) if slow else 0
        # One at a time, and only while all others are there.
        if 2 * len(slow) > len(workers) or len(workers) < len(live):
            return
        for process in slow:
            if self._is_due(process, in_vain):
                self._replacements = in_vain + 1
                self._replaced_s = self._context.now_s
                self._replace(process)
                return

    def _try_again(self, workers: list[Process]) -> None:
        """Give work to those that steps do without: nothing else shows that they have recovered."""
        for process in workers:
            if process.slow_times and self._context.now_s - process.slow_since_s > _BARRED_S:
                process.slow_times = 0.0
                announce_slowness(
                    self._context, process, "gets work again: it may be slow no longer", "info"
                )

    # comparison

    def _task(self) -> Task:
        work = self._context.work
        return work.task if work is not None else Task.EVALUATION

    def _compare(self, workers: list[Process]) -> None:
        task, paces = self._task(), self._leasing.paces
        paces_s = {worker.name: pace for worker in workers if (pace := paces.of(worker.name, task))}
        if len(paces_s) < 2:
            return
        # The lower one of the two in the middle: of two workers, the faster is the measure.
        usual_s = median_low(paces_s.values())
        for process in workers:
            if (pace_s := paces_s.get(process.name)) is not None:
                text = f"{_spoken(pace_s)} per record, the others {_spoken(usual_s)}"
                self._compared(process, pace_s / usual_s, text)

    def _compared(self, process: Process, times: float, text: str) -> None:
        if not process.slow_times and times > SLOW_TIMES:
            process.slow_times, process.slow_since_s = times, self._context.now_s
            text += lack_of_cpu(process, self._context.processes)
            announce_slowness(
                self._context, process, f"is slow, {times:.0f} times the others: {text}", "warning"
            )
        elif process.slow_times and times < _NOT_SLOW_TIMES:
            process.slow_times = 0.0
            announce_slowness(self._context, process, f"is no longer slow: {text}", "info")

    # replacement

    def _in_vain(self, workers: list[Process]) -> int:
        """Replacements in a row whose successors are slow, too, or not known to be fast."""
        cured = any(
            worker.ordered_s > self._replaced_s
            and worker.works
            and not worker.slow_times
            and self._is_known(worker)
            # So long it would have been found to be slow.
            and self._context.now_s - (worker.ready_s or self._context.now_s) > 2 * _SLOW_FOR_S
            for worker in workers
        )
        return 0 if cured else self._replacements

    def _is_known(self, process: Process) -> bool:
        """Whether it has reported enough to be compared."""
        by_steps = self._context.spec.trains_in_steps
        return by_steps or self._leasing.paces.of(process.name, self._task()) is not None

    def _is_due(self, process: Process, in_vain: int) -> bool:
        now_s = self._context.now_s
        if in_vain >= _MOST_IN_VAIN or now_s - process.slow_since_s < _SLOW_FOR_S:
            return False
        if now_s - self._replaced_s < _PAUSE_S * 2.0**in_vain:
            return False
        left_s = self._leasing.left_s(process.name)
        return (
            left_s is not None
            and left_s > _WORTH_S
            and not self._scaling.why_not_replace(process.name)
        )

    def _replace(self, process: Process) -> None:
        # It gives its shards back, and its end is not an ordinary drain.
        process.cause = Cause.STRAGGLER
        why = f"replaced: it is slow, {process.slow_times:.0f} times the others"
        self._scaling.stop(process, DRAIN_GRACE_S, why)


def _spoken(seconds: float) -> str:
    """`12 ms`, `1.5 s`."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"
