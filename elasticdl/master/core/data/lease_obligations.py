"""What the leases of a ledger wait for: workers, servers, or a request for free shards."""

from __future__ import annotations

from collections.abc import Iterator

from elasticdl.cluster.base import ProcessName
from elasticdl.formatting import amount
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.pieces import HeldShard, Stage
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.obligation import Obligation, booked, listed, since
from elasticdl.shard import Task


def lease_obligations(
    context: JobContext, leasing: Leasing, ledger: Ledger
) -> Iterator[Obligation]:
    """Yield what leased, settling, revoked and free shards wait for."""
    by_worker: dict[ProcessName, list[HeldShard]] = {}
    settling, closing = list[HeldShard](), list[HeldShard]()
    for held in ledger.held.values():
        match held.stage:
            case Stage.LEASED:
                by_worker.setdefault(held.worker, []).append(held)
            case Stage.SETTLING:
                settling.append(held)
            case Stage.CLOSING:
                closing.append(held)
    for worker, leases in by_worker.items():
        if ledger is context.work and context.waits_for_others(worker):
            continue
        yield _lease(context, ledger.task, worker, leases)
    if settling:
        servers = context.server_names()
        of = listed(dict.fromkeys(held.worker for held in settling))
        what = f"confirmation of the updates of {of}"
        owed = amount(len(settling), "shard")
        yield Obligation(
            what,
            servers,
            min(held.since_s for held in settling),
            f"{owed} blocked until then",
        )
    if closing:
        since_s = min(held.since_s for held in closing)
        yield Obligation(
            f"the return of {amount(len(closing), 'revoked shard')}", (), since_s, limited=True
        )
    free = ledger.available or (ledger.plan.shards if ledger.epochs_left else 0)
    takes = ledger.task is Task.EVALUATION or context.phase is Phase.WORKING
    idle = leasing.idle_workers() if free and takes else []
    if idle:
        what = f"a request for one of {amount(free, f'free {ledger.task} shard')}"
        yield Obligation(what, tuple(idle), since(context, idle), booked(ledger))


def _lease(
    context: JobContext, task: Task, worker: ProcessName, leases: list[HeldShard]
) -> Obligation:
    first, process = leases[0], context.worker(worker)
    shard = first.piece.shard
    more = f" and {amount(len(leases) - 1, 'more shard')}" if len(leases) > 1 else ""
    numbers = f"{first.offset:,} of {shard.records:,} records reported"
    since_s = max(first.since_s, process.busy_since_s if process else 0.0)
    return Obligation(f"{task} shard {shard.id}{more}", (worker,), since_s, numbers)
