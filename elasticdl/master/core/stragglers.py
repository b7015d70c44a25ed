"""Replaces workers that hold the others up: their code does not return, or they do nothing.

A worker may take as long as recent work took here (`paces.py`, `activities.py`). Beyond that it is
replaced only while most others get on. If everything is slow, nobody in particular is to blame:
then the far longer bound of `Activities.limit_s` counts, and `stalls.py` acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.master.core import events
from elasticdl.master.core.activities import Activities, Activity
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.paces import SHORTEST_S
from elasticdl.master.core.data.pieces import Stage
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.causes import Cause, Verdict
from elasticdl.master.core.processes.table import Life, Process
from elasticdl.master.core.remedies import Remedies
from elasticdl.master.core.stalls import Stalls
from elasticdl.master.core.state_questions import StateQuestions
from elasticdl.master.core.tick_share import share_of_tick

_MOST_BUSY_ENDS = 3
_SUSPECT = 0.5
"""A worker beyond this share of its limit is asked where its threads are, and gets on no more."""
_ALONE_S = 300.0
"""The least time without progress before the only worker is replaced."""
_RETURN_S = 60.0
"""A worker that holds revoked shards for longer is replaced."""


@dataclass(frozen=True, slots=True)
class _Ups:
    """The workers that are up, and those of them that are near their limits."""

    number: int
    stuck: frozenset[ProcessName]


@final
class Stragglers:
    """Looks at the workers at each tick. Only a tick with a command changes it."""

    def __init__(
        self,
        context: JobContext,
        leasing: Leasing,
        activities: Activities,
        remedies: Remedies,
        stalls: Stalls,
        questions: StateQuestions,
    ) -> None:
        self._context = context
        self._leasing = leasing
        self._activities = activities
        self._remedies = remedies
        self._stalls = stalls
        self._questions = questions
        self._suspected: dict[ProcessName, float] = {}
        """Workers that were asked for their stacks, with the time of their last progress then."""
        self._busy_ends = 0
        """Workers in a row that were replaced because their code did not end."""
        self._busy_end_s = 0.0
        self._ups: _Ups | None = None
        """Set during a tick only."""

    def saw(self, event: events.Event) -> None:
        """Take in an event that was handled."""
        match event:
            case events.ActivityReported():
                self._suspected.pop(event.worker, None)
            case events.ProcessEnded() | events.ProcessSilent():
                self._suspected.pop(event.name, None)
            case _:
                pass

    def tick(self, turn: int) -> None:
        """Replace workers that are beyond their limits. `turn`: the number of the tick."""
        if self._context.phase in (Phase.STARTING, Phase.ENDING, Phase.ENDED):
            return
        away = bool(self._context.servers_away())
        workers = self._context.processes.live_workers()
        share = share_of_tick(workers, turn)
        # A copy: replacing one changes the list.
        for process in [worker for worker in share if worker.life is Life.READY]:
            activity = self._activities.of(process)
            if activity is not None:
                self._look_at_activity(process, activity)
            if not away and not (activity and self._activities.acts):
                self._look_at_progress(process)
        self._ups = None
        if not away:
            self._look_at_revoked()

    # code that does not return

    def _look_at_activity(self, process: Process, activity: Activity) -> None:
        age_s, usual_s = self._context.now_s - activity.since_s, self._usual_s(process, activity)
        ask_s = self._activities.bound_s
        if usual_s is not None:
            ask_s = min(ask_s, _SUSPECT * usual_s)
        if age_s >= ask_s:
            self._suspect(process, activity.since_s)
        # Only act with `--stall-seconds` above 0; 0 asks for reports only.
        if not self._activities.acts:
            return
        limit_s = self._activities.limit_s(process, activity)
        evident = self._others_get_on(process) or self._hung_before(process)
        if usual_s is not None and age_s > usual_s and evident:
            self._replace_hung(process, activity, usual_s)
        elif age_s > limit_s:
            self._replace_busy(process, activity, limit_s)

    def _usual_s(self, process: Process, activity: Activity) -> float | None:
        """How long the activity may take while the others get on, at least as long as progress."""
        usual_s = self._activities.usual_limit_s(activity)
        if usual_s is None:
            return None
        # The time for a compilation is no measure of `feed`.
        compiles = not self._activities.is_input(activity)
        return max(usual_s, self._leasing.limits.limit_s(process, compiles=compiles) or 0.0)

    def _suspect(self, process: Process, since_s: float) -> None:
        """Ask a worker once where its threads are."""
        if self._suspected.get(process.name) != since_s:
            self._suspected[process.name] = since_s
            self._questions.ask(process.name)

    def _replace_hung(self, process: Process, activity: Activity, limit_s: float) -> None:
        """Replace a worker whose code does not return; its shard counts a failure.

        If the shard is the cause, every worker that gets it hangs. Doubling the limit each time
        makes sure that the cause is not a limit that is too short.
        """
        self._activities.hung(activity.what)
        self._context.processes.hang(process, activity.since_s, self._context.now_s)
        self._remedies.replace(process, self._hung(process, activity, limit_s))

    def _hung(self, process: Process, activity: Activity, limit_s: float) -> Verdict:
        age_s, place = self._context.now_s - activity.since_s, self._questions.place(process.name)
        text = f"hung: in {activity.what} for {age_s:.0f} s{place} (limit {limit_s:.0f} s)"
        frames = self._questions.frames(process.name)
        return Verdict(Cause.HUNG, text, blames_work=True, frames=frames)

    def _replace_busy(self, process: Process, activity: Activity, limit_s: float) -> None:
        """Replace a worker whose code does not end; end the job after several in a row."""
        age_s, place = self._context.now_s - activity.since_s, self._questions.place(process.name)
        why = f"in {activity.what} for {age_s:.0f} s{place}; the limit is {limit_s:.0f} s"
        self._context.processes.hang(process, activity.since_s, self._context.now_s)
        self._activities.forget(process.name)
        progressed = self._stalls.progress_s > self._busy_end_s
        self._busy_ends = 1 if progressed else self._busy_ends + 1
        self._busy_end_s = self._context.now_s
        if self._busy_ends < _MOST_BUSY_ENDS:
            frames = self._questions.frames(process.name)
            self._remedies.replace(process, Verdict(Cause.HUNG, f"hung: {why}", frames=frames))
            return
        text = (
            f"{process.name} has been {why}; it is the {self._busy_ends}rd worker in a row whose"
            " code does not return"
        )
        details = meaning(EventStep.FAILED)
        self._context.orders.announce(
            "stall", f"the job is stalled: {text}", level="warning", details=details
        )
        self._remedies.end(text)

    # no progress

    def _look_at_progress(self, process: Process) -> None:
        since_s = self._idle_since_s(process)
        idle_s = self._context.now_s - since_s
        if idle_s <= _SUSPECT * SHORTEST_S:
            return  # No limit is shorter, and most workers are here.
        limit_s = self._leasing.limits.limit_s(process)
        if limit_s is None or idle_s <= _SUSPECT * limit_s:
            return
        self._suspect(process, since_s)
        if self._counted().number == process.up:
            # There is nobody to compare it with.
            limit_s = max(limit_s, _ALONE_S)
            over = idle_s > limit_s
        else:
            over = idle_s > limit_s and self._others_get_on(process)
        if over:
            # The limit may be too short for this model: the next worker gets twice the time.
            self._leasing.paces.overran()
            place = self._questions.place(process.name)
            text = f"no progress for {idle_s:.0f} s{place}; the limit is {limit_s:.0f} s"
            frames = self._questions.frames(process.name)
            self._remedies.replace(process, Verdict(Cause.STRAGGLER, text, frames=frames))

    def _others_get_on(self, process: Process) -> bool:
        """Whether this worker is one of at most half that are near their limits, and not alone."""
        ups = self._counted()
        others = ups.number - process.up
        stuck = len(ups.stuck) - (process.name in ups.stuck)
        return bool(others) and 2 * (stuck + 1) <= others + 1

    def _counted(self) -> _Ups:
        """Count the workers once in a tick: many may have to be compared with all others."""
        if self._ups is None:
            up = [worker for worker in self._context.processes.live_workers() if worker.up]
            stuck = frozenset(worker.name for worker in up if self._is_stuck(worker))
            self._ups = _Ups(len(up), stuck)
        return self._ups

    def _hung_before(self, process: Process) -> bool:
        """Whether a shard that the worker holds has failed before: then others need not get on."""
        return any(held.piece.failures for _, held in self._leasing.leased_to(process.name))

    def _is_stuck(self, process: Process) -> bool:
        now_s = self._context.now_s
        if self._context.waits_for_others(process.name):
            return False
        activity = self._activities.of(process)
        usual_s = self._usual_s(process, activity) if activity is not None else None
        if activity is not None and usual_s is not None:
            return now_s - activity.since_s > _SUSPECT * usual_s
        limit_s = self._leasing.limits.limit_s(process)
        return limit_s is not None and now_s - self._idle_since_s(process) > _SUSPECT * limit_s

    def _idle_since_s(self, process: Process) -> float:
        """When the worker last got on: what a long step yields is not pushed yet when it ends."""
        return max(process.busy_since_s, self._activities.ended_s(process))

    # revoked shards

    def _look_at_revoked(self) -> None:
        """Replace a worker that keeps revoked shards: nobody else can have them before."""
        work, context = self._context.work, self._context
        closing = (
            [held for held in work.held.values() if held.stage is Stage.CLOSING] if work else []
        )
        for held in closing:
            process = context.worker(held.worker)
            since_s = max(held.since_s, context.server_back_s)
            kept_s = context.now_s - since_s
            if process is None or process.life is not Life.READY or kept_s <= _RETURN_S:
                continue
            text = f"it has not returned its revoked shards for {kept_s:.0f} s"
            frames = self._questions.frames(process.name)
            self._remedies.replace(process, Verdict(Cause.STRAGGLER, text, frames=frames))
