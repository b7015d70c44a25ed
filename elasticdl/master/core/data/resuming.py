"""The training ledger as JSON, for checkpoints.

It matches the cut exactly, whatever was reported since.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from elasticdl.errors import UserError
from elasticdl.job_choices import Shuffle
from elasticdl.job_status import NO_UPDATES, UpdateCounts
from elasticdl.master.core.data.counts import EpochCount, ShardIds
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.pieces import HeldShard, Piece, reached
from elasticdl.master.core.data.sharding import ShardPlan
from elasticdl.shard import Applied, ShardId, Source, Task, same_data

_FORMAT = 1
_MADE = ("applied", "lost", "repeated")


@dataclass(frozen=True, slots=True)
class Resumed:
    """The result of resuming a checkpoint's ledger.

    `workers_used`: the first worker index that was never used. `updates`: those of earlier runs.
    `loss` is the last of training, `metrics` those of the last evaluation. `evaluated`: the data of
    the final evaluation, if there was one.
    """

    ledger: Ledger
    workers_used: int
    rounds_used: int
    updates: UpdateCounts
    loss: float | None
    metrics: Mapping[str, float]
    evaluated: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class RunBefore:
    """What is known of the run that a job resumes: records trained and repeated, by epoch.

    `trained`: records of all epochs, possibly reported later than `counts`. `killed`: the run ended
    without an outcome. `sources`: its data; () if unknown. `at_least`: it may itself have repeated
    more than it counted. `updates`: None if unknown.
    """

    counts: Mapping[int, tuple[int, int]]
    trained: int = 0
    killed: bool = False
    sources: tuple[Source, ...] = ()
    at_least: bool = False
    updates: UpdateCounts | None = None


def ledger_json(
    ledger: Ledger,
    ids: ShardIds,
    applied: Mapping[str, Applied],
    *,
    ring_at: Mapping[ShardId, int] | None = None,
    workers_used: int = 0,
    rounds_used: int = 0,
    updates: UpdateCounts | None = None,
    loss: float | None = None,
    metrics: Mapping[str, float] | None = None,
    evaluated: tuple[Source, ...] = (),
) -> str:
    """The ledger with every holding at its position in the cut.

    `applied` maps each worker's name to its last push within the cut. `ring_at`: positions of the
    shards that a ring holds; None without a ring. The ledger does not change. Holdings become
    pieces with their next attempt, because their workers will be gone.
    """
    counts = [replace(count) for count in ledger.counts]
    held = (
        _ring_pieces(ledger, counts, ring_at)
        if ring_at is not None
        else _held_pieces(ledger, counts, applied)
    )
    pieces = [*held, *ledger.returned]
    return json.dumps(
        {
            "format": _FORMAT,
            "sources": [asdict(source) for source in ledger.plan.sources],
            "shard_records": ledger.plan.shard_records,
            "shuffle": ledger.plan.shuffle,
            "seed": ledger.plan.seed,
            "counts": [asdict(count) for count in counts],
            "cursor": ledger.cursor,
            "first_id": ledger.first_id,
            "next_id": ids.next,
            "pieces": [_piece_plain(piece) for piece in pieces],
            "stopped": ledger.stopped,
            "parked": [_piece_plain(piece) for piece in ledger.parked],
            "done_shards": ledger.done_shards + sum(not piece.rest for piece in pieces),
            "workers_used": workers_used,
            "rounds_used": rounds_used,
            "updates": asdict(updates or NO_UPDATES),
            "loss": loss,
            "metrics": dict(metrics or {}),
            "evaluated": [asdict(source) for source in evaluated],
            "repeated_at_least": ledger.repeated_at_least,
            "repeated_before": {
                str(epoch): count for epoch, count in ledger.repeated_before.items()
            },
        }
    )


def _held_pieces(
    ledger: Ledger, counts: list[EpochCount], applied: Mapping[str, Applied]
) -> Iterable[Piece]:
    workers = dict.fromkeys(held.worker for held in ledger.held.values())
    for worker in workers:
        mine = ledger.held_by(worker)
        yield from _at_cut(
            mine, counts, [offset for offset, _ in reached(mine, [applied.get(str(worker))])]
        )


def _ring_pieces(
    ledger: Ledger, counts: list[EpochCount], ring_at: Mapping[ShardId, int]
) -> Iterable[Piece]:
    mine = list(ledger.held.values())
    return _at_cut(
        mine, counts, [max(held.offset, ring_at.get(held.piece.shard.id, 0)) for held in mine]
    )


def _at_cut(mine: list[HeldShard], counts: list[EpochCount], offsets: list[int]) -> Iterable[Piece]:
    for held, offset in zip(mine, offsets, strict=True):
        piece, count = held.piece, counts[held.piece.epoch]
        bad = held.bad_until(offset) - held.bad
        count.trained += offset - piece.offset - bad
        count.bad += bad
        # A piece complete at the cut counts as ended; `_rebuild` drops it.
        count.unfinished -= offset == piece.shard.records
        # A copy: the running job keeps its own piece and attempt.
        yield replace(piece, offset=offset, attempt=piece.attempt + 1)


def _piece_plain(piece: Piece) -> dict[str, Any]:
    return {
        "number": piece.number,
        "id": piece.shard.id,
        "epoch": piece.epoch,
        "offset": piece.offset,
        "attempt": piece.attempt,
        "failures": piece.failures,
    }


def resume(text: str, training: tuple[Source, ...], epochs: int, ids: ShardIds) -> Resumed:
    """Resume the ledger of a checkpoint, up to `epochs` epochs in total.

    Sharding, order and seed come from the ledger, so partly done pieces stay valid. Raises
    UserError if the data changed or the ledger cannot be read.
    """
    try:
        plain = json.loads(text)
        if plain["format"] != _FORMAT:
            raise UserError(
                f"the checkpoint's ledger has format {plain['format']}, this version reads"
                f" {_FORMAT}"
            )
        return _rebuild(plain, training, epochs, ids)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(
            f"the checkpoint's ledger cannot be read: {error!r}",
            hint="resume from an earlier checkpoint",
        ) from error


def counts_of(text: str) -> dict[int, tuple[int, int]]:
    """Return a ledger's records trained and repeated by epoch; {} for '' or an unreadable one.

    Epochs that have not begun (again) are included if their repeated records are known.
    """
    try:
        plain = json.loads(text or "{}")
        later = plain.get("repeated_before", {})
        return {int(epoch): (0, int(repeated)) for epoch, repeated in later.items()} | {
            int(count["epoch"]): (int(count["trained"]), int(count["repeated"]))
            for count in plain.get("counts", ())
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def repeated_at_least(text: str) -> bool:
    """Return whether a ledger may have repeated more than it counts; False for '' or an unreadable
    one.
    """
    try:
        return bool(json.loads(text or "{}").get("repeated_at_least", False))
    except (ValueError, AttributeError):
        return False


def begin_again(plan: ShardPlan, before: RunBefore) -> tuple[str, int]:
    """Return the ledger (JSON) of a job that starts over, and the known records of earlier runs.

    They count as repeated if they are the same data.
    """
    ids = ShardIds()
    text = ledger_json(Ledger(plan, ids, task=Task.TRAINING), ids, {})
    more = before.killed or before.at_least
    if not same_sources(before.sources, plan.sources):
        # Some of them may be the same, so there is only a lower bound.
        before = RunBefore({}, killed=more or bool(before.counts) or bool(before.trained))
    return count_repeated(text, replace(before, killed=more or before.killed), plan.epochs)


def same_sources(before: tuple[Source, ...], now: tuple[Source, ...]) -> bool:
    """Whether these are the same data in the same order."""
    return len(before) == len(now) and all(map(same_data, before, now))


def count_repeated(text: str, before: RunBefore, epochs: int) -> tuple[str, int]:
    """Count what the earlier run trained beyond this ledger as repeated, up to `epochs` epochs.

    Returns the changed ledger and the number of those records. The run may have done more without
    reporting it. An unreadable ledger is returned unchanged.
    """
    again = 0
    try:
        plain = json.loads(text)
        counts = {count["epoch"]: count for count in plain["counts"]}
        later = plain.setdefault("repeated_before", {})
        for epoch, trained in _trained_by_epoch(plain, before, epochs).items():
            mine, repeated = counts.get(epoch), before.counts.get(epoch, (0, 0))[1]
            more = trained - (mine["trained"] if mine else 0)
            known = max(repeated, mine["repeated"] if mine else later.get(str(epoch), 0))
            if mine:
                mine["repeated"] = known + more
            elif known or more:
                later[str(epoch)] = known + more
            again += more
        _count_undone(plain, before)
    except (ValueError, KeyError, TypeError, AttributeError):
        return text, 0
    plain["repeated_at_least"] = (
        plain.get("repeated_at_least", False) or before.killed or before.at_least or again > 0
    )
    return json.dumps(plain), again


def _count_undone(plain: dict[str, Any], before: RunBefore) -> None:
    """Count the updates that the earlier run made beyond this ledger as repeated."""
    mine = plain.setdefault("updates", asdict(NO_UPDATES))
    counted = sum(mine[key] for key in _MADE)
    if before.updates is not None:
        made_before = sum(getattr(before.updates, key) for key in _MADE)
        mine["repeated"] += max(0, made_before - counted)
        mine["at_least"] = mine["at_least"] or before.updates.at_least
    mine["at_least"] = mine["at_least"] or before.killed


def _trained_by_epoch(plain: Mapping[str, Any], before: RunBefore, epochs: int) -> dict[int, int]:
    """Records that the earlier run trained at least, never fewer than the ledger has.

    The ledger may be newer than `before.counts`, and older than `before.trained`.
    """
    counts = {count["epoch"]: count for count in plain["counts"]}
    known = {epoch: trained for epoch, (trained, _) in before.counts.items() if epoch < epochs}
    by_epoch = {
        epoch: max(known.get(epoch, 0), counts[epoch]["trained"] if epoch in counts else 0)
        for epoch in sorted(known.keys() | counts.keys())
    }
    # Compare with the newer of both: what the ledger has must not count again.
    newer = before.trained - sum(by_epoch.values())
    records = sum(source["records"] for source in plain["sources"])
    for epoch in range(epochs):
        if newer <= 0:
            break
        # The epoch of these records is unknown. Epochs fill up in order.
        count = counts.get(epoch, {})
        rest = sum(count.get(key, 0) for key in ("bad", "parked", "forgone"))
        room = max(0, records - rest - by_epoch.get(epoch, 0))
        if room:
            by_epoch[epoch] = by_epoch.get(epoch, 0) + min(newer, room)
            newer -= room
    return by_epoch


def _rebuild(
    plain: dict[str, Any], training: tuple[Source, ...], epochs: int, ids: ShardIds
) -> Resumed:
    sources = tuple(Source(**source) for source in plain["sources"])
    _check_same(sources, training)
    plan = ShardPlan(
        sources, plain["shard_records"], epochs, Shuffle(plain["shuffle"]), plain["seed"]
    )
    # Reserve all old ids before any new shard is made.
    ids.next = max(ids.next, plain["next_id"])
    ledger = Ledger(plan, ids, task=Task.TRAINING)
    ledger.reopen(
        (EpochCount(**count) for count in plain["counts"]), plain["cursor"], plain["first_id"]
    )
    ledger.returned.extend(
        piece for piece in (_piece(plan, entry) for entry in plain["pieces"]) if piece.rest
    )
    ledger.parked.extend(_piece(plan, entry) for entry in plain["parked"])
    ledger.done_shards = plain["done_shards"]
    ledger.stopped = plain["stopped"]
    ledger.repeated_at_least = bool(plain.get("repeated_at_least", False))
    ledger.repeated_before = {
        int(epoch): count for epoch, count in plain.get("repeated_before", {}).items()
    }
    updates = UpdateCounts(**plain["updates"]) if "updates" in plain else NO_UPDATES
    return Resumed(
        ledger,
        plain["workers_used"],
        plain["rounds_used"],
        updates,
        plain.get("loss"),
        plain.get("metrics", {}),
        tuple(Source(**source) for source in plain.get("evaluated", ())),
    )


def _piece(plan: ShardPlan, entry: dict[str, Any]) -> Piece:
    shard = plan.shard(entry["number"], ShardId(entry["id"]))
    return Piece(
        entry["number"],
        shard,
        entry["epoch"],
        entry["offset"],
        entry["attempt"],
        list(entry["failures"]),
    )


def _check_same(before: tuple[Source, ...], now: tuple[Source, ...]) -> None:
    # Compare the common sources first: naming the changed one helps more than a count.
    for old, new in zip(before, now, strict=False):
        if not same_data(old, new):
            raise UserError(
                f"the training data changed since the checkpoint: {old.name} had {old.records}"
                f" records (fingerprint {old.fingerprint or 'none'}), now {new.name} has"
                f" {new.records} ({new.fingerprint or 'none'})",
                hint="resume with the same data, or start a new job with --checkpoint-dir-for-init",
            )
    if len(before) != len(now):
        raise UserError(
            f"the training data changed since the checkpoint: {len(before)} sources then,"
            f" {len(now)} now",
            hint="resume with the same data, or start a new job with --checkpoint-dir-for-init",
        )
