"""One thing that a job waits for, and words for several of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.job_context import JobContext
from elasticdl.shard import ShardId

MOST_NAMED = 4

LeaseKey: TypeAlias = tuple[ShardId, int]
"""Shard and attempt."""


@dataclass(frozen=True, slots=True)
class Obligation:
    """One thing that the job waits for.

    `what` completes "waiting for …". `debtors` must deliver it, the most likely culprit first.
    `numbers`: what is reached and what is missing. `limited`: another part of the master limits
    this wait.
    """

    what: str
    debtors: tuple[ProcessName, ...]
    since_s: float
    numbers: str = ""
    limited: bool = False

    def text(self, now_s: float) -> str:
        """The obligation in one sentence."""
        debtors = f"from {listed(self.debtors)}" if self.debtors else ""
        details = "; ".join(part for part in (debtors, self.numbers) if part)
        waited = f"{self.what} for {max(0.0, now_s - self.since_s):.0f} s"
        return f"{waited} ({details})" if details else waited


def listed(names: Iterable[ProcessName]) -> str:
    """`worker-0, worker-1 and 3 more`."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return ", ".join(texts[:MOST_NAMED]) + more


def booked(ledger: Ledger) -> str:
    """`booked 18,880 of 20,000 records`."""
    # Totals cover opened epochs only; the others count as expected too.
    total = ledger.totals()
    expected = total.expected + ledger.epochs_left * ledger.plan.records
    return f"booked {total.trained + total.bad:,} of {expected:,} records"


def since(context: JobContext, names: Iterable[ProcessName]) -> float:
    """When the first of these processes entered its present state."""
    going = context.processes.going
    return min(
        (going[name].since_s for name in names if name in going), default=context.phase_since_s
    )
