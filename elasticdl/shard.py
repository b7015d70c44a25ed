"""The units of the data ledger: sources, shards, leases, and progress within a lease.

A *shard* is a range of records of one source. A *lease* gives one attempt at the unread rest of a
shard to one worker. A *minibatch* is what `feed` makes of one window of at most `minibatch_size`
consecutive records of a lease. Progress counts **records read**, whatever `feed` shuffles, drops or
adds inside a window.

The order of records within a shard is a permutation that depends only on `Lease.order_seed` (None:
file order), so that any worker can continue at `offset`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

ShardId = NewType("ShardId", int)
SnapshotId = NewType("SnapshotId", int)


class Task(StrEnum):
    """The purpose of a lease."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"
    SUMMARY = "summary"
    """Compute an evaluation round's values from merged metric states; run the epoch's callbacks."""
    EXPORT = "export"


@dataclass(frozen=True, slots=True)
class Source:
    """One file, table or origin, with its number of records; `fingerprint` changes with the data.

    A file's fingerprint is `BYTES:TIME`, `BYTES:TIME:blake2b=DIGEST` or, of an object,
    `BYTES:TIME:etag=DIGEST`; those of several files are joined by `+`. A user's own reader may use
    any text; '' means unknown.
    """

    name: str
    records: int
    fingerprint: str = ""


DIGEST_MARK = "blake2b="
ETAG_MARK = "etag="
"""Of an object: what its store says of its bytes."""


def same_data(one: Source, other: Source) -> bool:
    """Whether two sources have the same name, number of records and data.

    If both have digests, times do not matter.
    """
    if (one.name, one.records) != (other.name, other.records):
        return False
    mine, theirs = one.fingerprint.split("+"), other.fingerprint.split("+")
    return len(mine) == len(theirs) and all(map(same_file, mine, theirs))


def same_file(one: str, other: str) -> bool:
    """Whether two fingerprints describe the same bytes, as far as they show."""
    mine, theirs = one.split(":"), other.split(":")
    if len(mine) == len(theirs) == 3 and mine[2].startswith((DIGEST_MARK, ETAG_MARK)):
        return (mine[0], mine[2]) == (theirs[0], theirs[2])
    if 3 in (len(mine), len(theirs)) and DIGEST_MARK in f"{one}{other}":
        return mine[:2] == theirs[:2]
    return one == other


@dataclass(frozen=True, slots=True)
class Shard:
    """Records [begin, end) of one source."""

    id: ShardId
    source: str
    begin: int
    end: int

    @property
    def records(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Lease:
    """One attempt at the rest of a shard, for one worker.

    Earlier attempts did `offset` records of the shard (in the lease's order), which are skipped.
    `shard` is None for SUMMARY and EXPORT. `round` is the evaluation round of EVALUATION and
    SUMMARY leases, and of EXPORT leases the number of the export's folder (None: the export is
    `--output` itself). `snapshot` is the frozen view of the parameters to read (None: the live
    ones). `payload` is JSON: for SUMMARY, the merged metric states (see
    `master/core/evaluation/rounds.py`). `revocation` counts how often this worker's leases were
    voided before. A revocation voids those of earlier revocations, in whatever order lease and
    revocation reach the worker. `limit` is the offset at which to stop (0: the shard's end): leases
    of a ring end where a checkpoint is due.
    """

    task: Task
    shard: Shard | None
    attempt: int
    offset: int = 0
    epoch: int = 0
    order_seed: int | None = None
    round: int | None = None
    snapshot: SnapshotId | None = None
    version: int = 0
    payload: str = ""
    revocation: int = 0
    limit: int = 0

    @property
    def end(self) -> int:
        """The offset at which this lease ends."""
        return self.limit or (self.shard.records if self.shard else 0)


@dataclass(frozen=True, slots=True)
class ReceivedLease:
    """What identifies a lease among all that a worker ever gets.

    `shard` is None for SUMMARY and EXPORT, `round` for leases without one; see `Lease`.
    """

    task: Task
    shard: ShardId | None
    attempt: int
    round: int | None = None

    @classmethod
    def of(cls, lease: Lease) -> ReceivedLease:
        shard = lease.shard.id if lease.shard is not None else None
        return cls(lease.task, shard, lease.attempt, lease.round)


@dataclass(frozen=True, slots=True)
class Applied:
    """Progress of one attempt: the first `offset` records of the shard are in the parameters."""

    shard: ShardId
    attempt: int
    offset: int


class Barrier(StrEnum):
    """The kind of a work item that is not training."""

    NONE = ""
    """The item is a lease to train on."""
    PAUSE = "pause"
    """Stop: confirm the last step, ask for the next item, and work on the weights as they are."""
    CHECKPOINT = "checkpoint"
    """Rank 0 copies the weights as they are, and all members continue."""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One item of the ring's sequence, numbered from 1 and equal for every member at any time.

    `batch` is the number of records of one step of the whole ring, `rate_scale` the factor of the
    learning rate. `lease` is None for a mark, and `snapshot` is set for a checkpoint.
    """

    number: int
    lease: Lease | None
    batch: int = 0
    rate_scale: float = 1.0
    mark: Barrier = Barrier.NONE
    snapshot: SnapshotId | None = None
