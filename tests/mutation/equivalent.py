"""Mutants that change nothing that anybody could notice, each with the reason. Reviewed by hand."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutation.mutants import Mutant


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A change of a line of a function, `module:qualified name`."""

    where: str
    text: str
    change: str
    why: str


EQUIVALENT = (
    Equivalent(
        "master.core.data.lease_limits:LeaseLimits.limit_s",
        "limits += [self._lease_limit_s(ledger, lease, compiles) for lease in held if ledger]",
        "an if less",
        "without a ledger nothing is held: the condition is for the type checker",
    ),
    Equivalent(
        "master.core.data.lease_limits:LeaseLimits.singleton_limit_s",
        "return self._paces.limit_s(Task.SUMMARY, 0, warm=True) if summary else 0.0",
        "0 becomes 1",
        "the limit of a summary does not depend on a number of records",
    ),
    Equivalent(
        "master.core.data.lease_limits:LeaseLimits.singleton_limit_s",
        "return self._paces.limit_s(Task.SUMMARY, 0, warm=True) if summary else 0.0",
        "True becomes False",
        "the limit of a summary does not depend on an earlier one either",
    ),
    Equivalent(
        "master.core.data.backup_leases:BackupLeases._lease_again",
        'details = {"saved_s": round(late.gain_s, 3), "shards": len(shards), "records": rest}',
        "3 becomes 4",
        "one more decimal in a detail of the event log",
    ),
    Equivalent(
        "master.core.data.leasing:Leasing._tell_first_progress",
        'details["first_s"] = round(self._context.now_s - max(ready_s, process.busy_since_s), 3)',
        "3 becomes 4",
        "one more decimal in a detail of the event log",
    ),
    Equivalent(
        "master.core.data.pieces:reached",
        "return [",
        "True becomes False",
        "both have one item for each holding",
    ),
    Equivalent(
        "master.journal.recovery:_from_image",
        "if image.offset > ends.get(image.segment, -1):",
        "1 becomes 2",
        "no offset is negative",
    ),
    Equivalent(
        "master.driver:Driver._handle",
        "for entry, commands in zip(entries, decided, strict=True):",
        "True becomes False",
        "both have the same length",
    ),
    Equivalent(
        "master.executor.executor:Executor._stamp",
        'return {"at": round(self._queue.clock.wall_s(), 3), "at_s": round(self._queue.at_s(), 3)}',
        "3 becomes 4",
        "one more decimal in the times of the event log, which are for people",
    ),
    Equivalent(
        "master.core.data.revocation:Revocation.tick",
        "if now_s - self._asked_s.get(worker, 0.0) >= _ASK_AGAIN_S:",
        "0.0 becomes 1.0",
        "whoever holds a revoked shard was asked when it was revoked",
    ),
    Equivalent(
        "master.core.image:_Decoder._compared",
        "if key is not None:",
        "IsNot becomes Is",
        "the same is computed again for each instance: only the speed differs",
    ),
    Equivalent(
        "master.journal.recovery:Recovery._begin",
        "return False",
        "False becomes True",
        "no event is read, so the job has not begun and `recovered` is None",
    ),
)


def why_equivalent(mutant: Mutant) -> str | None:
    """The reason; None if it must be noticed."""
    where = f"{mutant.module}:{mutant.function}"
    for one in EQUIVALENT:
        if (one.where, one.text, one.change) == (where, mutant.text, mutant.change):
            return one.why
    return None
