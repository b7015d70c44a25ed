"""How the workers of a job share one model: what differs between parameter servers and a ring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from elasticdl.cluster.base import ProcessName
from elasticdl.job_status import RingStatus
from elasticdl.master.core.checkpoint.snapshots import Cutting
from elasticdl.master.core.events import (
    ConnectionLost,
    LeaseRequested,
    ProgressReported,
    RingTold,
    TaskFailed,
)
from elasticdl.master.core.obligation import LeaseKey, Obligation
from elasticdl.master.core.processes.table import Process
from elasticdl.master.core.wait_reasons import Awaited
from elasticdl.shard import ShardId, SnapshotId


class Coordination(Protocol):
    """Implemented by `PsCoordination` and `RingCoordination`; `JobState` builds the one there is.

    Pure as all of the core: time comes from the events.
    """

    # leases and reports

    def requested(self, event: LeaseRequested) -> None:
        """Answer a worker that asks for work, with exactly one command."""

    def progressed(self, event: ProgressReported) -> None:
        """Book progress with a lease."""

    def failed(self, event: TaskFailed) -> None:
        """The user's code raised in a worker."""

    def recall(self, why: str) -> None:
        """Training ends early: work that workers hold goes back."""

    def unknown_leases(self, reported: set[LeaseKey], held: set[LeaseKey]) -> set[LeaseKey]:
        """Leases that a worker reports and that contradict what it holds."""

    # the course of the job

    def begin(self, ledger: str, version: int) -> None:
        """The job begins with this ledger (JSON; '' for a fresh one) and version."""

    def decide_cuts(self) -> None:
        """Open a round of evaluation and order a checkpoint, where one is due and can begin."""

    def decide_members(self) -> None:
        """Decide who trains together. Processes to start and to stop are decided before."""

    def halt(self, why: str) -> str:
        """Have workers that have the weights stop where they are, in the words for it.

        '' if workers are not needed for the last checkpoint: they are sent away.
        """

    def drained(self) -> str:
        """After a stop: what allows for the last checkpoint, in words; '' while work is held."""

    def weights_away(self) -> str:
        """Why the weights may be out of reach for a checkpoint, in words; '' if they are not."""

    # checkpoints

    def offsets_at(self, snapshot: SnapshotId | None) -> Mapping[ShardId, int] | None:
        """How far each shard in common hands is at a cut (None: the beginning).

        None if workers hold shards by themselves: each tells where it is.
        """

    def unanswered_cut(self) -> SnapshotId | None:
        """A cut that was ordered so long ago that it has failed."""

    # processes

    @property
    def weights_outlive_workers(self) -> bool:
        """Whether weights are kept while there is no worker."""

    @property
    def limited_by_shards(self) -> bool:
        """Whether a worker without a shard of its own would have nothing to do."""

    def has_come_up(self, process: Process) -> bool:
        """Whether what takes a core for seconds at a worker's start is over."""

    def why_not_replace(self, name: ProcessName) -> str:
        """What would be lost with a live worker that is sent away; '' if nothing is."""

    def gave_initial_values(self, worker: ProcessName) -> None:
        """A worker had to give initial weights."""

    def member_told(self, event: RingTold) -> None:
        """A worker says where it stands with the ring."""

    def lost_connection(self, event: ConnectionLost) -> None:
        """The order stream of a process broke: it may well be dead."""

    # waits

    def status(self) -> RingStatus | None:
        """The ring, for people; None if there is none."""

    def waits_for(self) -> Mapping[Awaited, str]:
        """What the job waits for now while all servers are there, and why, in words."""

    def idle(self) -> Iterator[str]:
        """Which workers have nothing to do and why, in words."""

    def owed(self) -> Iterator[Obligation]:
        """What the work of this phase waits for."""

    def owed_cut(self, cutting: Cutting | None) -> Obligation:
        """What a checkpoint waits for: the cut that was ordered, or that one is."""

    def weight_holders(self) -> tuple[ProcessName, ...]:
        """Who copies and writes the weights of a checkpoint."""

    def booked_all(self) -> bool:
        """Whether the ledger has all that is in the weights: only then is a checkpoint exact."""

    def form_anew(self, why: str) -> None:
        """Have the same workers meet again, if they `can_form_anew`."""

    @property
    def can_form_anew(self) -> bool:
        """Whether workers meet to train."""
