"""How far a job is, measured by what cannot be undone without loss."""

from __future__ import annotations

from typing import TypeAlias, final

from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.job_context import JobContext, Phase

_PLACES = {phase: place for place, phase in enumerate(Phase)}

Mark: TypeAlias = tuple[tuple[int, int], ...]
"""Each pair grows with progress: the phase, records booked, evaluation, the newest checkpoint."""


@final
class ProgressMarks:
    """Computes a mark for each report without a walk over all epochs: there may be thousands."""

    def __init__(
        self, context: JobContext, evaluation: Evaluation, checkpointing: Checkpointing
    ) -> None:
        self._context = context
        self._evaluation = evaluation
        self._checkpointing = checkpointing
        self._counted: Ledger | None = None
        self._before = 0
        """Records that this ledger had from its checkpoint."""

    def now(self) -> Mark:
        """The job's current mark."""
        evaluation, saved = self._evaluation, self._checkpointing.complete.saved
        current, results = evaluation.round, evaluation.results
        evaluated = 0
        if current is not None:
            held = current.ledger.held.values()
            evaluated = current.ledger.booked + sum(lease.offset for lease in held)
        return (
            (_PLACES[self._context.phase], 0),
            (self._booked(), 0),
            (results[-1].round + 1 if results else 0, evaluated),
            (saved[-1].version if saved else -1, 0),
        )

    def _booked(self) -> int:
        """Records of all epochs that are trained or bad."""
        work = self._context.work
        if work is None:
            return 0
        # A resume or a rollback replaces the ledger object. `booked` counts only what this object
        # settled.
        if work is not self._counted:
            total = work.totals()
            self._counted, self._before = work, total.trained + total.bad - work.booked
        return self._before + work.booked
