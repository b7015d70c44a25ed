"""Defects put into the code on purpose: a simulation that is worth anything finds them.

`python -m tests.simulation.mutants` tries all, or those whose names contain an argument, and says
how long each was not found. The exit code is 1 if one was missed or no longer fits the code.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import itertools
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.simulation.mutant import RING, SERVERS, Mutant
from tests.simulation.resize_mutants import RESIZE_MUTANTS
from tests.simulation.return_mutants import RETURN_MUTANTS
from tests.simulation.runner import Seen, run_jobs
from tests.simulation.takeover_mutants import TAKEOVER_MUTANTS
from tests.simulation.update_mutants import UPDATE_MUTANTS

DONE_AT_ITEM_END = Mutant(
    "a shard is told done at the end of an item",
    RING,
    "worker.ring.trainer:RingTrainer._one_step",
    "done = part.end == records",
    "done = part.end == lease.end",
)

NO_ROOM = Mutant(
    "room for leases is never given back",
    SERVERS,
    "worker.pipeline.leases:LeaseKeeper.worked_through",
    "self._ahead.discard(held)",
    "pass",
)
SILENT_STALL = Mutant(
    "a stall is not announced",
    SERVERS,
    "master.core.stalls:Stalls._begin",
    "self._announce(",
    "(lambda *_: None)(",
    beside=NO_ROOM,
    shows="does not announce it",
)
STALL_TOO_SOON = Mutant(
    "a stall is announced while the job moves",
    "both",
    "master.core.stalls:Stalls._due_s",
    "clock.moved_s + bound_s",
    "clock.moved_s",
    shows="announced after",
)

MUTANTS = (
    *TAKEOVER_MUTANTS,
    *RESIZE_MUTANTS,
    *RETURN_MUTANTS,
    *UPDATE_MUTANTS,
    DONE_AT_ITEM_END,
    NO_ROOM,
    SILENT_STALL,
    STALL_TOO_SOON,
    Mutant(
        "the last step is not confirmed at a pause",
        RING,
        "worker.ring.trainer:RingTrainer._confirm",
        "self._tell_safe()",
        "pass",
    ),
    Mutant(
        "the wrong rank tells",
        RING,
        "worker.ring.trainer:RingTrainer._tell_safe",
        "self._rank == 0",
        "self._rank == 1",
    ),
    Mutant(
        "a step is told before it is safe",
        RING,
        "worker.ring.trainer:RingTrainer._one_step",
        "self._context.gauges.count_records(part.mine)",
        "self._tell_safe()",
    ),
    Mutant(
        "weights are taken in halves",
        RING,
        "worker.ring.trainer:RingTrainer._elect",
        "whole=behind",
        "whole=False",
    ),
    Mutant(
        "no state is handed over",
        RING,
        "worker.ring.trainer:RingTrainer._elect",
        "if not same:",
        "if not same and not self._has_state:",
    ),
    Mutant(
        "ended shards are not handed over",
        RING,
        "worker.ring.position:Position.of",
        "if ended_shard.shard >= 0",
        "if False",
    ),
    Mutant(
        "void items are trained",
        RING,
        "worker.ring.position:Position.from_first",
        "self.number >= generation.first_item",
        "True",
    ),
    Mutant(
        "the elected state is not told",
        RING,
        "worker.ring.trainer:RingTrainer._tell_state",
        "if position.shard >= 0:",
        "if False:",
    ),
    Mutant(
        "a mark is skipped when a newer ring waits",
        RING,
        "worker.ring.trainer:RingTrainer._worked_at_mark",
        "newer):\n        return False",
        "newer):\n        pass",
    ),
    Mutant(
        "the old plan's parts stay",
        RING,
        "worker.ring.reading:RingReading.begin",
        "self._ready.clear()",
        "pass",
    ),
    Mutant(
        "parts of an old plan are put",
        RING,
        "worker.ring.reading:RingReading._put",
        "if self._turn != turn:\n            return False",
        "pass",
    ),
    Mutant(
        "slices overlap",
        RING,
        "worker.ring.reading:slice_of",
        "length * (rank + 1) // size",
        "(length * (rank + 1) + size - 1) // size",
    ),
    Mutant(
        "a read gives way to a plan that waits for the reader",
        RING,
        "worker.ring.reading:RingReading._gives_way",
        "early and all(earlier in self._items for earlier in range(self._wanted, number))",
        "early",
    ),
    Mutant(
        "a plan goes on at the item's beginning",
        RING,
        "worker.ring.reading:RingReading._made",
        "item.lease.offset if offset is None else offset",
        "item.lease.offset",
    ),
    Mutant(
        "an old generation replaces a newer one",
        RING,
        "worker.ring.generations:Generations.put",
        "if generation.number <= self.newest:",
        "if generation.number < 0:",
    ),
    Mutant(
        "a broken ring is not told",
        RING,
        "worker.ring.generations:MemberReporter.broken",
        "broken=generation, problem=problem",
        "problem=problem",
    ),
    Mutant(
        "entering is not told",
        RING,
        "worker.ring.generations:MemberReporter.entered",
        'entered=generation, problem=""',
        'problem=""',
    ),
    Mutant(
        "copies are made by the wrong rank",
        RING,
        "worker.ring.barriers:RingListener.at_mark",
        "rank == 0",
        "rank == 1",
    ),
    Mutant(
        "a mark is over at once",
        RING,
        "worker.ring.barriers:BarrierTasks.work",
        "case Wait(reason):",
        "case Wait(reason):\n                return True",
    ),
    Mutant(
        "a failed save is not told",
        RING,
        "worker.ring.barriers:Copies._save",
        "self._context.outbox.saved(\n",
        "bool(\n",
    ),
    Mutant(
        "an item's last records are left out",
        RING,
        "master.core.ring.work:RingWork._as_work_item",
        "limit = item.end",
        "limit = item.end - 1",
    ),
    Mutant(
        "items end past the boundary",
        RING,
        "master.core.ring.work:RingWork._training_item",
        "self._steps_to_boundary() * batch",
        "(self._steps_to_boundary() + 1) * batch",
    ),
    Mutant(
        "shards before the one told of are not booked",
        RING,
        "master.core.ring.work:RingWork.progressed",
        "for held in self._open[:at]:",
        "for held in self._open[:0]:",
    ),
    Mutant(
        "what a halted ring holds does not go back",
        RING,
        "master.core.ring.work:RingWork._drop_items",
        "work.give_back(held)",
        "pass",
    ),
    Mutant(
        "the ledger of a mark is that of the item's beginning",
        RING,
        "master.core.ring.work:RingWork.offsets_at",
        "= item.end",
        "= item.begin",
    ),
    Mutant(
        "a missed copy is waited for",
        RING,
        "master.core.ring.work:RingWork._missed_cut",
        "if passed and",
        "if False and",
    ),
    Mutant(
        "rolled back, items are not void",
        RING,
        "master.core.ring.work:RingWork.roll_back",
        "self.first_item, self.halting = self.next_number",
        "_, self.halting = self.next_number",
    ),
    Mutant(
        "everybody counts as a holder",
        RING,
        "master.core.ring.generation_publisher:GenerationPublisher._publish",
        "for name in self._holders if name in decision.members}",
        "for name in decision.members}",
    ),
    Mutant(
        "those out of the ring keep their leases",
        RING,
        "master.core.ring.generation_publisher:GenerationPublisher._publish",
        'self._leasing.revocation.revoke(name, "the ring continues without it")',
        "pass",
    ),
    Mutant(
        "a new stream lacks the newest generation",
        RING,
        "master.gateway.order_streams:OrderStreams._orders",
        "if name in self._generations:",
        "if False:",
    ),
    Mutant(
        "a copy of a worker that is gone is waited for",
        RING,
        "master.executor.ring_coordinator:RingCoordinator.leave",
        "self.saved(",
        "str(",
    ),
    Mutant(
        "bad records in a copy are told later",
        RING,
        "worker.ring.trainer:RingTrainer._foretell_bad",
        "self._rank != 0",
        "True",
    ),
    Mutant(
        "the end of a shard with bad records is not remembered",
        RING,
        "worker.ring.position:Position.ended_by_now",
        "not self.bad or",
        "True or",
    ),
    # Both ways
    Mutant(
        "what was taken is forgotten",
        "both",
        "worker.pipeline.outbox:Outbox._let_go",
        "if not held.done and not held.closed\n",
        "if held.changed\n",
    ),
    Mutant(
        "done is told of nothing",
        "both",
        "worker.pipeline.outbox:_Held._progress",
        "done=self.done",
        "done=False",
    ),
    Mutant(
        "summaries are lost",
        "both",
        "worker.pipeline.outbox:Outbox.take",
        "summaries=tuple(self._summaries)",
        "summaries=()",
    ),
    Mutant(
        "an offset stays",
        "both",
        "worker.pipeline.outbox:_Held.add",
        "self.offset = advance.offset",
        "pass",
    ),
    Mutant(
        "an answer that was lost is not given again",
        "both",
        "master.gateway.lease_polls:LeasePolls.poll",
        "if last is not None and last.sequence == sequence:",
        "if False:",
    ),
    Mutant(
        "a lease that reached nobody is lost",
        "both",
        "master.gateway.lease_polls:LeasePolls._abandon",
        "if last is not None and last.taker is poll:",
        "if False:",
    ),
    Mutant(
        "a broken stream loses its orders",
        "both",
        "master.gateway.order_streams:OrderStreams._orders",
        "order = waiting[0]",
        "order = waiting.popleft()",
    ),
    # Servers
    Mutant(
        "nothing is ever void",
        SERVERS,
        "worker.pipeline.leases:LeaseKeeper.is_void",
        "held.lease.revocation < self._revocation",
        "False",
    ),
    Mutant(
        "a revocation is not passed on",
        SERVERS,
        "worker.process.order_receiver:OrderReceiver._follow",
        "self._revoke(revocation)",
        "pass",
    ),
    Mutant(
        "a lease that is void is accepted",
        SERVERS,
        "worker.pipeline.leases:LeaseKeeper._accept",
        "if self.is_void(held):",
        "if False:",
    ),
    Mutant(
        "void batches are pushed",
        SERVERS,
        "worker.ps.pusher:Pusher._settle_one",
        "if not self._context.keeper.is_void(held):",
        "if True:",
    ),
    Mutant(
        "pushes have one number",
        SERVERS,
        "worker.ps.pusher:Pusher._push",
        "self._sequence += 1",
        "pass",
    ),
    Mutant(
        "a push is not told",
        SERVERS,
        "worker.ps.pusher:Pusher._settle_one",
        "self._tell(trained)",
        "trained.loaded.batch.last and self._tell(trained)",
    ),
    Mutant(
        "the end of a shard is not told",
        SERVERS,
        "worker.ps.pusher:Pusher._tell",
        "done=batch.last",
        "done=False",
    ),
    Mutant(
        "bad records are told after their push",
        SERVERS,
        "worker.ps.pusher:Pusher._settle_one",
        "if batch.bad:",
        "if False:",
    ),
    Mutant(
        "a push is told before it is made",
        SERVERS,
        "worker.ps.pusher:Pusher._settle_one",
        "if trained.outcome is not None:\n                self._push",
        "self._tell(trained)\n            if trained.outcome is not None:\n               "
        " self._push",
    ),
    Mutant(
        "updates stay on their way",
        SERVERS,
        "worker.ps.pusher:Pusher._settle_one",
        "self._staleness_limit.leave()",
        "pass",
    ),
    Mutant(
        "revoked leases are forgotten at once",
        SERVERS,
        "worker.pipeline.prefetch:Prefetch._forget",
        "self._trainer.after_all(partial(self._context.outbox.forget, void))",
        "self._context.outbox.forget(void)",
    ),
    Mutant(
        "the last window is left out",
        SERVERS,
        "worker.pipeline.reading:Feeding._feed",
        "last = window.end == shard.records",
        "last = window.end >= shard.records - 1\n        if last and window.end - window.begin == 1"
        " and window.begin:\n            continue",
    ),
    Mutant(
        "a shard is begun anew",
        SERVERS,
        "worker.pipeline.reading:Feeding._feed",
        "lease.offset,",
        "0,",
    ),
    Mutant(
        "a returned lease stays leased",
        SERVERS,
        "master.core.data.lease_reconciliation:LeaseReconciliation.returned",
        "work.advance(held, offset, 0)",
        "return work.advance(held, offset, 0)",
    ),
    Mutant(
        "a server that comes up knows nobody who is fenced",
        SERVERS,
        "master.executor.fencing:Fences.catch_up",
        "tuple(self._fenced)",
        "()",
    ),
    Mutant(
        "a cut lets in what only all have",
        SERVERS,
        "master.executor.snapshots:highest",
        "max(gate.get(worker, 0)",
        "min(gate.get(worker, 0)",
    ),
    Mutant(
        "a cut counts what any server has",
        SERVERS,
        "master.executor.snapshots:agreed",
        "min(cuts, key",
        "max(cuts, key",
    ),
    Mutant(
        "more workers start than --autoscale chose",
        SERVERS,
        "master.core.processes.scaling:Scaling.desired_workers",
        "min(self._context.most_workers, max",
        "min(self._context.workers.high, max",
        shows="were chosen",
    ),
    Mutant(
        "gates stay closed",
        SERVERS,
        "master.executor.snapshots:Snapshots.cut",
        "await self._open(servers)",
        "pass",
    ),
)


@contextmanager
def put_in(mutant: Mutant) -> Iterator[None]:
    """The code has this defect in the block."""
    module_name, _, path = mutant.where.partition(":")
    module = importlib.import_module(f"elasticdl.{module_name}")
    *owners, name = path.removesuffix(".fget").split(".")
    owner = functools.reduce(getattr, owners, module)
    before = inspect.getattr_static(owner, name)
    inner: Any = (
        before.fget
        if isinstance(before, property)
        else inspect.unwrap(getattr(before, "__func__", before))
    )
    source = textwrap.dedent(inspect.getsource(inner))
    if mutant.old not in source:
        raise LookupError(f"{mutant.where} has no {mutant.old!r}")
    space: dict[str, object] = {}
    code = compile(
        "from __future__ import annotations\n" + source.replace(mutant.old, mutant.new),
        f"<{mutant.name}>",
        "exec",
    )
    exec(code, module.__dict__, space)
    made = space[name]
    setattr(owner, name, made)
    patched = [(owner, name, before)]
    if not owners:  # others have it by name
        for other in list(sys.modules.values()):
            if (
                getattr(other, "__name__", "").startswith("elasticdl.")
                and other.__dict__.get(name) is before
            ):
                patched.append((other, name, before))
                setattr(other, name, made)
    try:
        yield
    finally:
        for place, attribute, value in patched:
            setattr(place, attribute, value)


def look_for(mutant: Mutant, seconds: float, first_seed: int = 0) -> Seen:
    """Simulate until the defect is found, or for so long."""
    strategies = (RING, SERVERS) if mutant.strategy == "both" else (mutant.strategy,)
    with ExitStack() as defects:
        for one in (mutant, mutant.beside):
            if one is not None:
                defects.enter_context(put_in(one))
        return run_jobs(itertools.count(first_seed), strategies, seconds=seconds, most_failures=1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="words of the names of those to try")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each, at most")
    given = parser.parse_args()
    missed = 0
    for mutant in MUTANTS:
        if given.names and not any(word in mutant.name for word in given.names):
            continue
        begin_s = time.process_time()
        try:
            seen = look_for(mutant, given.seconds)
        except LookupError as error:
            print(f"STALE   {mutant.name}: {error}", flush=True)
            missed += 1
            continue
        took_s = time.process_time() - begin_s
        shown = any(mutant.shows in failure.what for failure in seen.failures)
        found = (
            f"found  {took_s:5.1f} s, {seen.jobs:5} jobs"
            if shown
            else f"MISSED {took_s:5.1f} s, {seen.jobs:5} jobs"
        )
        what = seen.failures[0].what[:110] if seen.failures else ""
        missed += not shown
        print(f"{found}  {mutant.name}: {what}", flush=True)
    print(f"{missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
