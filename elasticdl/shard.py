"""What the data ledger counts: sources, shards of them, leases of shards, progress within a lease.

A *shard* is a range of records of one source. A *lease* gives one attempt at the unread rest of a
shard to one worker.
A *minibatch* is what `feed` makes of one window of at most `minibatch_size` consecutive records of
a lease, so
progress counts **records read**, whatever `feed` shuffles, drops or adds inside a window.

The order of records within a shard is a permutation that depends only on `Lease.order_seed` (None:
file order), so any
worker can go on at `offset`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

ShardId = NewType("ShardId", int)
SnapshotId = NewType("SnapshotId", int)


class Task(StrEnum):
    """What a lease asks of a worker."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"
    SUMMARY = "summary"
    """Turn the merged metric states of an evaluation round into values; run the epoch's
    callbacks.
    """
    EXPORT = "export"


@dataclass(frozen=True, slots=True)
class Source:
    """One file, table or origin and how many records it has.

    `fingerprint` tells that it changed during the job.

    That of a file is `BYTES:TIME` or `BYTES:TIME:blake2b=DIGEST`, those of several are joined by
    `+`; a reader of one's own has any
    words. '' tells nothing.
    """

    name: str
    records: int
    fingerprint: str = ""


DIGEST_MARK = "blake2b="


def same_data(one: Source, other: Source) -> bool:
    """Whether two sources are of one name, as many records and the same data.

    Where both have digests, times do not matter.
    """
    if (one.name, one.records) != (other.name, other.records):
        return False
    mine, theirs = one.fingerprint.split("+"), other.fingerprint.split("+")
    return len(mine) == len(theirs) and all(map(same_file, mine, theirs))


def same_file(one: str, other: str) -> bool:
    """Whether two fingerprints are of the same bytes, as far as they tell."""
    mine, theirs = one.split(":"), other.split(":")
    if len(mine) == len(theirs) == 3 and mine[2].startswith(DIGEST_MARK):
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

    `offset` records of the shard (in the lease's order) were done by earlier attempts and are
    skipped.
    `shard` is None for SUMMARY and EXPORT. `round` is the evaluation round of EVALUATION and
    SUMMARY leases and
    `snapshot` the frozen view of the parameters to read (None: the live ones).
    `payload` is JSON: for SUMMARY the merged metric states, see `master/core/evaluation/rounds.py`.
    `revocation` is how often this worker's leases had been voided before: a revocation voids those
    of earlier revocations, in whatever
    order lease and revocation reach the worker.
    `limit` is the offset up to which to work (0: to the shard's end): leases of a ring end where a
    checkpoint is due.
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
class Applied:
    """How far one attempt got: the first `offset` records of the shard are in the parameters."""

    shard: ShardId
    attempt: int
    offset: int


class Barrier(StrEnum):
    """What an item of the ring is, other than training."""

    NONE = ""
    """It is a lease to train on."""
    PAUSE = "pause"
    """Stand still: confirm the last step, then ask for the next item and for work on the weights as
    they are.
    """
    CHECKPOINT = "checkpoint"
    """Rank 0 keeps a copy of the weights as they are here, and all go on."""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One of the ring's sequence, numbered from 1: the same for every member, whenever it asks.

    `batch`: records of one step of the whole ring. `rate_scale`: what the learning rate is
    multiplied with. `lease` is None
    for a mark, `snapshot` is set for a checkpoint.
    """

    number: int
    lease: Lease | None
    batch: int = 0
    rate_scale: float = 1.0
    mark: Barrier = Barrier.NONE
    snapshot: SnapshotId | None = None
