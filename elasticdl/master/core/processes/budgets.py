"""How many ends of each cause a job accepts.

What a cluster does to processes never counts. Only what the user can fix ends a job: their own
errors, memory limit or image. Unexplained crashes end it only if they repeat without one finished
batch in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl.formatting import amount
from elasticdl.master.core.processes.causes import Cause, Verdict

_OUT_OF_MEMORY_DEATHS = 3
_CRASHES_IN_A_ROW = 5
_KILLS_IN_A_ROW = 50
_FIRST_START_ERRORS = 3
_BACK_OFF_S = (0.0, 0.0, 0.5, 1.0, 2.0, 5.0)
_START_BACK_OFF_S = (0.0, 0.5, 2.0, 5.0, 15.0, 30.0)


@dataclass(slots=True)
class Budgets:
    """Counts of the limited causes.

    `in_a_row` counts since the last finished batch.
    """

    max_user_errors: int
    user_errors: int = 0
    out_of_memory: int = 0
    """Ends that could not be answered with more memory and are not blamed on a shard."""
    crashes_in_a_row: int = 0
    kills_in_a_row: int = 0
    starts_in_a_row: int = 0
    """Processes that could not be started: image or program missing."""
    deaths_in_a_row: int = 0
    """Ends of any cause; only the back-off depends on them."""
    _counted_s: dict[str, float] = field(default_factory=dict)
    """When the last counted crash or kill in a row happened."""

    def progressed(self) -> None:
        """Reset the counts in a row after a finished batch: the job makes progress anyway."""
        self.crashes_in_a_row = 0
        self.kills_in_a_row = 0
        self.starts_in_a_row = 0
        self.deaths_in_a_row = 0

    def user_error(self, error: str) -> str | None:
        """Count an error of the user's code outside of any shard.

        Returns why the job must end, or None.
        """
        self.user_errors += 1
        if self.user_errors <= self.max_user_errors:
            return None
        return (
            f"user code failed {amount(self.user_errors, 'time')} (--max-relaunches"
            f" {self.max_user_errors}): {error}"
        )

    def died(
        self,
        who: str,
        verdict: Verdict,
        *,
        answered: bool,
        role_ran: bool = True,
        life: tuple[float, float] | None = None,
    ) -> str | None:
        """Count the end of a process.

        Returns why the job must end, or None. `answered`: a shard is blamed, the next process gets
        more memory, or others must come back first. `role_ran`: some process of that role ran
        before. `life`: start and end of the process in seconds; None: after all ends counted
        before.
        """
        # Every end delays the next start, whatever its cause: a broken node must not cause a start
        # storm.
        self.deaths_in_a_row += 1
        if verdict.permanent:
            return f"{who}: {verdict.text}"
        match verdict.cause:
            case Cause.USER_ERROR:
                return None if answered else self.user_error(f"{who}: {verdict.text}")
            case Cause.OUT_OF_MEMORY:
                return None if answered else self._out_of_memory(who, verdict)
            case Cause.IMAGE | Cause.START_ERROR:
                return self._not_started(who, verdict, role_ran)
            # An abort blames no shard, but it is a crash and not a kill.
            case Cause.INFRASTRUCTURE if verdict.blames_work or "SIGABRT" in verdict.text:
                self.crashes_in_a_row += self._follows("crash", life)
                over = self.crashes_in_a_row >= _CRASHES_IN_A_ROW
                return self._in_a_row(who, verdict, self.crashes_in_a_row) if over else None
            case Cause.STRANDED if answered:
                return None
            case (
                Cause.INFRASTRUCTURE
                | Cause.SILENT
                | Cause.STRAGGLER
                | Cause.HUNG
                | Cause.STALLED
                | Cause.FENCED
                | Cause.STRANDED
            ):
                self.kills_in_a_row += self._follows("kill", life)
                over = self.kills_in_a_row >= _KILLS_IN_A_ROW
                return self._in_a_row(who, verdict, self.kills_in_a_row) if over else None
            case _:
                return None

    def explained(self) -> None:
        """Uncount a kill that turned out to be the platform's doing."""
        self.kills_in_a_row = max(0, self.kills_in_a_row - 1)

    def back_off_s(self) -> float:
        """Seconds to wait before the next start.

        Starts at 0 and grows without progress, to 5 s or, if nothing can be started, to 30 s.
        """
        pause_s = _BACK_OFF_S[min(self.deaths_in_a_row, len(_BACK_OFF_S) - 1)]
        return max(
            pause_s, _START_BACK_OFF_S[min(self.starts_in_a_row, len(_START_BACK_OFF_S) - 1)]
        )

    def _follows(self, kind: str, life: tuple[float, float] | None) -> bool:
        """Whether the process began after the last counted end.

        A failing node or network that ends many processes at the same time counts once.
        """
        began_s, ended_s = life or (float("inf"), 0.0)
        # A process that was already running at the last counted end may have died of the same
        # cause.
        follows = began_s >= self._counted_s.get(kind, float("-inf"))
        if follows and life is not None:
            self._counted_s[kind] = ended_s
        return follows

    def _out_of_memory(self, who: str, verdict: Verdict) -> str | None:
        self.out_of_memory += 1
        over = self.out_of_memory > _OUT_OF_MEMORY_DEATHS
        return (
            f"{who} {verdict.text}; this is the {self.out_of_memory}th such end" if over else None
        )

    def _not_started(self, who: str, verdict: Verdict, role_ran: bool) -> str | None:
        """Count a process that could not be started.

        If its role never ran, a missing image ends the job at once, because the registry was
        already retried for a long time. A program that cannot start gets a few tries, because the
        container runtime may have failed.
        """
        self.starts_in_a_row += 1
        if not role_ran and (
            verdict.cause is Cause.IMAGE or self.starts_in_a_row >= _FIRST_START_ERRORS
        ):
            return f"{who}: {verdict.text}"
        over = self.starts_in_a_row >= _KILLS_IN_A_ROW
        return self._in_a_row(who, verdict, self.starts_in_a_row) if over else None

    def _in_a_row(self, who: str, verdict: Verdict, times: int) -> str:
        return (
            f"{times} processes in a row ended without a finished batch in between; the last,"
            f" {who}: {verdict.text}"
        )
