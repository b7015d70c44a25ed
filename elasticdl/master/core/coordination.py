"""How the workers of a job share one model: through parameter servers or on a ring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from elasticdl.cluster.base import ProcessName
from elasticdl.history.awaited import Awaited
from elasticdl.job_status import RingStatus
from elasticdl.master.core.checkpoint.snapshots import OpenCut
from elasticdl.master.core.events import (
    ConnectionLost,
    LeaseRequested,
    ProgressReported,
    RingReported,
    TaskFailed,
)
from elasticdl.master.core.obligation import LeaseKey, Obligation
from elasticdl.shard import ShardId, SnapshotId


class Coordination(Protocol):
    """What differs between `PsCoordination` and `RingCoordination`.

    `JobState` builds one of them. Like the whole core it is pure: time comes from the events.
    """

    # leases and reports

    def requested(self, event: LeaseRequested) -> None:
        """Answer a worker's request for work with exactly one command."""

    def progressed(self, event: ProgressReported) -> None:
        """Book the progress of a lease."""

    def failed(self, event: TaskFailed) -> None:
        """Handle an exception of the user's code in a worker."""

    def recall(self, why: str) -> None:
        """Take back the work that workers hold, because training ends early."""

    def unknown_leases(self, reported: set[LeaseKey], held: set[LeaseKey]) -> set[LeaseKey]:
        """Reported leases that contradict what the worker holds."""

    # the course of the job

    def begin(self, ledger: str, version: int) -> None:
        """Begin the job with this ledger (JSON; '' for a new one) and version."""

    def taken_over(self) -> None:
        """Order again what an earlier master may not have carried out."""

    def decide_cuts(self) -> None:
        """Begin an evaluation round and a checkpoint if they are due and possible."""

    def decide_members(self) -> None:
        """Decide who trains together, after the decisions on processes to start and stop."""

    def halt(self, why: str) -> str:
        """Stop the workers that have the weights where they are; return words that say so.

        '' if the last checkpoint needs no workers: they are sent away.
        """

    def drained(self) -> str:
        """After a stop: why the last checkpoint can begin, in words; '' while work is held."""

    def not_halted(self) -> tuple[ProcessName, ...]:
        """After a stop: the workers with the weights that have not stopped."""

    def weights_away(self) -> str:
        """Why the weights may be unavailable for a checkpoint, in words; '' if they are not."""

    # checkpoints

    def offsets_at(self, snapshot: SnapshotId | None) -> Mapping[ShardId, int] | None:
        """The position in each shared shard at a cut (None: at the beginning).

        None if workers hold shards individually: each reports its own position.
        """

    def unanswered_cut(self) -> SnapshotId | None:
        """A cut that was ordered so long ago that it counts as failed."""

    # processes

    @property
    def weights_outlive_workers(self) -> bool:
        """Whether the weights survive while there is no worker."""

    @property
    def limited_by_shards(self) -> bool:
        """Whether a worker without a shard of its own would be idle."""

    @property
    def at_work(self) -> tuple[int, int]:
        """How many workers train now, and a number that changes when others do."""

    def why_not_replace(self, name: ProcessName) -> str | None:
        """What would be lost if this live worker were sent away; None if nothing."""

    def gave_initial_values(self, worker: ProcessName) -> None:
        """Note that a worker supplied the initial weights."""

    def member_reported(self, event: RingReported) -> None:
        """Handle a worker's report of its position on the ring."""

    def lost_connection(self, event: ConnectionLost) -> None:
        """Handle the broken order stream of a process, which is probably dead."""

    # waits

    def status(self) -> RingStatus | None:
        """The ring's status, for people; None if there is no ring."""

    def waits_for(self) -> Mapping[Awaited, str]:
        """What the job waits for while all servers are up, with reasons in words."""

    def idle(self) -> Iterator[str]:
        """Which workers are idle and why, in words."""

    def owed(self) -> Iterator[Obligation]:
        """What the work of this phase waits for."""

    def owed_cut(self, open_cut: OpenCut | None) -> Obligation:
        """What a checkpoint waits for: the answer to an ordered cut, or the order."""

    def weight_holders(self) -> tuple[ProcessName, ...]:
        """The processes that copy and write the weights of a checkpoint."""

    def booked_all(self) -> bool:
        """Whether the ledger has everything in the weights: only then is a checkpoint exact."""

    def form_again(self, why: str) -> None:
        """Have the same workers form a new generation, if `can_form_again`."""

    @property
    def can_form_again(self) -> bool:
        """Whether workers train together in generations."""
