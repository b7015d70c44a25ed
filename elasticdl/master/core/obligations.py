"""What the job waits for now, who owes it, since when, and the numbers that do not meet.

Reads only.

Every phase in which work is done owes at least one thing, so that a job that stands still can
always say what it waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.formatting import amount
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.checkpoint.snapshots import Snapshots
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.ledger import HeldShard, Ledger, Stage
from elasticdl.master.core.evaluation.rounds import Evaluation, Round
from elasticdl.master.core.evaluation.rounds import Stage as RoundStage
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.ring.membership import RingMembership
from elasticdl.master.core.ring.work import RingWork
from elasticdl.shard import Task

_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Obligation:
    """One thing that is waited for.

    `what` completes "waiting for …". `debtors` owe it, the most likely culprit first. `numbers`:
    what was reached and what is
    missing. `limited`: another part of the master ends this wait after a time of its own.
    """

    what: str
    debtors: tuple[ProcessName, ...]
    since_s: float
    numbers: str = ""
    limited: bool = False

    def text(self, now_s: float) -> str:
        """All of it in one sentence."""
        owed = f", owed by {listed(self.debtors)}" if self.debtors else ""
        numbers = f" ({self.numbers})" if self.numbers else ""
        return f"{self.what}{owed} for {max(0.0, now_s - self.since_s):.0f} s{numbers}"


@dataclass(frozen=True, slots=True, order=True)
class RingPosition:
    """Where a member of the ring says that it is: steps in its weights, then the item that it is
    at, and the offset in it.
    """

    version: int
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class Books:
    """The parts of the state machine that know what was promised by whom."""

    context: JobContext
    leasing: Leasing
    evaluation: Evaluation
    checkpointing: Checkpointing
    snapshots: Snapshots
    ring_work: RingWork
    ring: RingMembership
    positions: dict[ProcessName, RingPosition] = field(default_factory=dict)
    """As members last told."""


def listed(names: Iterable[ProcessName]) -> str:
    """`worker-0, worker-1 and 3 more`."""
    found = [str(name) for name in names]
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return ", ".join(found[:_MOST_NAMED]) + more


@final
class Obligations:
    """Asked when nothing has moved for a while, and by whoever looks at the job: it may cost a walk
    over all workers.
    """

    def __init__(self, books: Books) -> None:
        self._books = books
        self._context = books.context

    def now(self) -> list[Obligation]:
        """What is owed, the most important first.

        Empty where nothing is: before the work, and when the job ends.
        """
        match self._context.phase:
            case Phase.STARTING:
                return [
                    Obligation(
                        "the records to be counted", (), self._context.phase_since_s, limited=True
                    )
                ]
            case Phase.ENDING | Phase.ENDED:
                return []
            case _:
                return list(self._owed()) or [self._unexplained()]

    def _owed(self) -> Iterator[Obligation]:
        context = self._context
        if away := context.servers_away():
            names = [
                server.name
                for index in context.processes.away(context.servers)
                if (server := context.processes.server(index))
            ]
            yield Obligation(f"the parameter servers: {away}", tuple(names), self._since(names))
            return
        if context.on_ring:
            yield from self._ring()
        else:
            yield from self._leases(context.work)
        if self._books.evaluation.round is not None:
            yield from self._round(self._books.evaluation.round)
        yield from self._checkpoint()
        yield from self._export()
        if context.phase is Phase.DRAINING and not context.on_ring:
            leaving = [process.name for process in context.processes.workers()]
            if leaving:
                yield Obligation(
                    "workers to leave", tuple(leaving), context.phase_since_s, limited=True
                )
        yield from self._nobody()

    # leases

    def _leases(self, ledger: Ledger | None) -> Iterator[Obligation]:
        if ledger is None:
            return
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
            yield self._lease(ledger.task, worker, leases)
        if settling:
            servers = self._servers()
            of = listed(dict.fromkeys(held.worker for held in settling))
            what = f"the parameter servers to say which updates of {of} they have"
            owed = amount(len(settling), "shard")
            yield Obligation(
                what,
                servers,
                min(held.since_s for held in settling),
                f"{owed} cannot be given to others before",
            )
        if closing:
            since_s = min(held.since_s for held in closing)
            yield Obligation(
                f"{amount(len(closing), 'revoked shard')} to come back", (), since_s, limited=True
            )
        free = ledger.available or (ledger.plan.shards if ledger.epochs_left else 0)
        idle = self._idle() if free and self._takes(ledger) else []
        if idle:
            what = (
                f"a worker to ask for one of {amount(free, 'shard')} of {ledger.task} that"
                " nobody has"
            )
            yield Obligation(what, tuple(idle), self._since(idle), _booked(ledger))

    def _takes(self, ledger: Ledger) -> bool:
        return ledger.task is Task.EVALUATION or self._context.phase is Phase.WORKING

    def _lease(self, task: Task, worker: ProcessName, leases: list[HeldShard]) -> Obligation:
        first, process = leases[0], self._context.worker(worker)
        shard = first.piece.shard
        more = f" and {amount(len(leases) - 1, 'more shard')}" if len(leases) > 1 else ""
        numbers = f"it reported {first.offset:,} of {shard.records:,} records"
        since_s = max(first.since_s, process.busy_since_s if process else 0.0)
        return Obligation(f"{task} shard {shard.id}{more}", (worker,), since_s, numbers)

    def _idle(self) -> list[ProcessName]:
        workers = self._context.processes.live_workers()
        return [
            process.name
            for process in workers
            if process.up and not self._books.leasing.leases_of(process.name)
        ]

    def _nobody(self) -> Iterator[Obligation]:
        """Nobody is there who could do the work."""
        if self._context.phase in (Phase.DRAINING, Phase.CHECKPOINTING):
            return
        workers = self._context.processes.live_workers()
        if not any(process.up for process in workers):
            names = [process.name for process in workers]
            yield Obligation("a worker that is ready for work", tuple(names), self._since(names))

    # evaluation, checkpoints, export

    def _round(self, current: Round) -> Iterator[Obligation]:
        evaluation = self._books.evaluation
        match current.stage:
            case RoundStage.CUTTING:
                what = f"the frozen view of evaluation round {current.number}"
                yield Obligation(what, self._servers(), current.since_s)
            case RoundStage.LEASING:
                yield from self._leases(current.ledger)
            case RoundStage.SUMMARISING:
                holder = current.summary.holder or evaluation.summary_waits_for()
                owe = (holder,) if holder else tuple(self._idle())
                what = f"the summary of evaluation round {current.number}"
                held = "" if current.summary.holder else "nobody has taken it"
                yield Obligation(what, owe, current.added_up_s, held)

    def _checkpoint(self) -> Iterator[Obligation]:
        checkpointing, cutting = self._books.checkpointing, self._books.snapshots.cutting
        who = self._savers()
        if checkpointing.saving is not None:
            saving = checkpointing.saving
            yield Obligation(
                f"the checkpoint of version {saving.version} to be written",
                who,
                saving.since_s,
                limited=True,
            )
        elif checkpointing.under_way and cutting is not None:
            what = (
                "the copy of the weights for a checkpoint"
                if self._context.on_ring
                else "the frozen view for a checkpoint"
            )
            yield Obligation(what, who, cutting.since_s)
        elif self._context.phase is Phase.CHECKPOINTING:
            problem = checkpointing.last_problem
            numbers = f"the last try failed: {problem}" if problem else ""
            # Failed tries are repeated after a pause that grows, five times.
            limited = bool(problem) and not self._context.on_ring
            yield Obligation(
                "the last checkpoint to begin",
                who,
                self._context.phase_since_s,
                numbers,
                limited=limited,
            )

    def _export(self) -> Iterator[Obligation]:
        export = self._context.export
        if self._context.phase is not Phase.EXPORTING or export is None:
            return
        held = (export.holder,) if export.holder else tuple(self._idle())
        numbers = "" if export.holder else "nobody has taken it"
        yield Obligation("the model to be exported", held, self._context.phase_since_s, numbers)

    # the ring

    def _ring(self) -> Iterator[Obligation]:
        ring, work, context = self._books.ring, self._books.ring_work, self._context
        if reason := ring.waits_for():
            absent = ring.absent()
            numbers = f"generation {ring.present.number}" if ring.present else ""
            yield Obligation(f"a ring that trains: {reason}", absent, self._since(absent), numbers)
            return
        members = self._slowest_first()
        since_s = max(
            (one.busy_since_s for one in map(context.worker, members) if one),
            default=context.phase_since_s,
        )
        if work.halting:
            yield Obligation(
                f"the ring to stop where it is ({work.halting})",
                members,
                since_s,
                self._ring_numbers(),
                limited=True,
            )
            return
        item = next((item for item in work.items if item.steps_left), None)
        if item is not None and item.held is not None:
            begin = max(item.begin, item.held.offset)
            what = (
                f"records {begin:,} to {item.end:,} of shard {item.held.piece.shard.id} (item"
                f" {item.number}) to be booked"
            )
            yield Obligation(what, members, since_s, self._ring_numbers())
        elif self._members_ask():
            what = f"the members of the ring to ask for item {work.next_number}"
            yield Obligation(what, members, since_s, self._ring_numbers())

    def _members_ask(self) -> bool:
        """There is something that only the ring as a whole can take."""
        if self._context.phase is Phase.CHECKPOINTING:
            return not self._books.checkpointing.under_way
        evaluating = self._books.evaluation.round is not None
        return self._context.phase in (Phase.WORKING, Phase.EVALUATING) and not evaluating

    def _ring_numbers(self) -> str:
        """`booked 18,880 of 20,000 records, step 944; worker-0 is at step 1,000, item 9`."""
        context, told = self._context, [_booked(self._context.work)] if self._context.work else []
        told[:] = [f"{told[0]}, step {context.acknowledged_version:,}"] if told else []
        for name in self._books.ring.members:
            position = self._books.positions.get(name)
            if position is None:
                told.append(f"{name} did not say where it is")
            else:
                told.append(f"{name} is at step {position.version:,}, item {position.number}")
        return "; ".join(told[: 1 + _MOST_NAMED])

    def _slowest_first(self) -> tuple[ProcessName, ...]:
        """Members, whoever is behind the others first; all at the same step: in the order of their
        ranks, rank 0 reports.
        """
        members, at = self._books.ring.members, self._books.positions
        return tuple(
            sorted(
                members,
                key=lambda name: (at[name].version, at[name].number) if name in at else (0, 0),
            )
        )

    # words and names

    def _unexplained(self) -> Obligation:
        """The books know of nothing that is owed, and yet the job has not ended: whoever is up may
        know more.
        """
        context = self._context
        up = [process.name for process in context.processes.live_workers() if process.up]
        what = f"something that is not in the books: the job is {context.phase}"
        return Obligation(
            what, tuple(up), context.phase_since_s, _booked(context.work) if context.work else ""
        )

    def _servers(self) -> tuple[ProcessName, ...]:
        found = (self._context.processes.server(index) for index in range(self._context.servers))
        return tuple(server.name for server in found if server is not None)

    def _savers(self) -> tuple[ProcessName, ...]:
        return self._books.ring.members[:1] if self._context.on_ring else self._servers()

    def booked_all(self) -> bool:
        """Whether the books have all that is in the weights of a ring: a checkpoint of these is
        exact only then.
        """
        members, at = self._books.ring.members, self._books.positions
        return all(
            name in at and at[name].version == self._context.acknowledged_version
            for name in members
        )

    def _since(self, names: Iterable[ProcessName]) -> float:
        """Since when the first of these is in its present state."""
        known: Mapping[ProcessName, object] = self._context.processes.going
        going = self._context.processes.going
        return min(
            (going[name].since_s for name in names if name in known),
            default=self._context.phase_since_s,
        )


def _booked(ledger: Ledger) -> str:
    total = ledger.totals()
    expected = total.expected + ledger.epochs_left * ledger.plan.records
    return f"booked {total.trained + total.bad:,} of {expected:,} records"
