"""Decides on the members of the ring: a pure function of the workers' known states.

A generation is a fixed list of members. `decide` returns the generation to form, why, and when to
look again if time alone can change that. Generation numbers only grow. Members of a generation meet
at a rendezvous where early ones wait. So a new generation may be published while some members are
still in a step. A member that sends nothing while the others wait for it is left out of the next
generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elasticdl.cluster.base import ProcessName
from elasticdl.formatting import amount

QUORUM_S = 30.0
"""How long the first ready workers wait for the minimum that the user wants."""
SETTLE_S = 0.3
"""Workers that become ready within this time of one another join together."""
LONGEST_SETTLE_S = 1.0
UNHEARD_S = 3.0
"""A member that is due at a rendezvous and silent for this long is left out.

Every worker reports every two seconds.
"""


@dataclass(frozen=True, slots=True)
class MemberState:
    """What is known of a worker that has not ended.

    `entered`: the newest generation that it reported to be in. `broken`: the newest that it
    reported to have fallen out of. `free_since_s`: since when it is warm and in no generation; None
    while it is not. `cut_off`: its connection broke and did not come back.
    """

    name: ProcessName
    heard_s: float
    entered: int = 0
    broken: int = 0
    free_since_s: float | None = None
    leaving: bool = False
    cut_off: bool = False
    holds_state: bool = False
    """It has the current weights of the ring: all that the ring counts as trained is in them."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A published generation."""

    number: int
    members: tuple[ProcessName, ...]
    since_s: float


@dataclass(frozen=True, slots=True)
class RingTarget:
    """The wanted size of the ring.

    `coming`: workers that are starting and may be ready soon. `anew`: why a new generation is due
    in any case; '' if it is not.
    """

    low: int
    high: int
    coming: int
    anew: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next generation, with `members` by rank.

    `generation` is the present number if nothing changes. `look_again_s`: when time alone may
    change that; None if it cannot.
    """

    members: tuple[ProcessName, ...]
    generation: int
    reason: str
    look_again_s: float | None = None


def decide(
    now_s: float, present: Generation | None, workers: Sequence[MemberState], wanted: RingTarget
) -> Decision:
    """Decide on the next generation. `workers`: all that have not ended, in any order."""
    known = {worker.name: worker for worker in workers}
    if present is None or not any(name in known for name in present.members):
        return _first(now_s, present, workers, wanted)
    survivors, why, look_again_s = _survivors(now_s, present, known)
    joiners = _joiners(present, workers)
    # A leaving member takes no place: it only hands its weights over.
    room = max(0, wanted.high - sum(not known[name].leaving for name in survivors))
    joining = joiners[:room]
    if not survivors:
        return _first(
            now_s,
            present,
            [worker for worker in workers if worker.name not in present.members],
            wanted,
        )
    if why or wanted.anew:
        return _next(present, survivors, joining, why or wanted.anew)
    entered = all(known[name].entered >= present.number for name in present.members)
    if not joining:
        return _stay(present, "complete" if entered else "its members are joining", look_again_s)
    if not entered:
        reason = f"{_names(joining)} may join when the present generation is complete"
        return _stay(present, reason, look_again_s)
    urgent = any(known[name].leaving for name in survivors)
    at_s = now_s if urgent else _settled_s(joiners, wanted, enough=len(joiners) >= room)
    if now_s < at_s:
        return _stay(present, f"{_names(joining)} may join; waiting briefly for others", at_s)
    return _next(
        present, survivors, joining, f"{_names(joining)} {'take over' if urgent else 'joined'}"
    )


def _first(
    now_s: float, present: Generation | None, workers: Sequence[MemberState], wanted: RingTarget
) -> Decision:
    """No ring exists: wait for enough workers, but not forever."""
    free = _in_order(
        worker
        for worker in workers
        if worker.free_since_s is not None and not worker.leaving and not worker.cut_off
    )
    number = present.number if present else 0
    if not free:
        return Decision((), number, "no worker is ready yet")
    since_s = min(worker.free_since_s or 0.0 for worker in free)
    at_s = since_s + QUORUM_S
    if len(free) >= wanted.low or not wanted.coming:
        at_s = min(at_s, _settled_s(free, wanted, enough=len(free) >= wanted.high))
    if now_s < at_s:
        few = (
            f"{len(free)} of {amount(wanted.low, 'worker')} ready; waiting for the others for at"
            f" most {QUORUM_S:.0f} s"
        )
        enough = f"{amount(len(free), 'worker')} ready; waiting briefly for others"
        return Decision((), number, few if len(free) < wanted.low else enough, at_s)
    members = tuple(worker.name for worker in free[: wanted.high])
    few = "" if len(members) >= wanted.low else f", though {wanted.low} are wanted"
    return Decision(members, number + 1, f"{amount(len(members), 'worker')} ready{few}")


def _survivors(
    now_s: float, present: Generation, known: dict[ProcessName, MemberState]
) -> tuple[tuple[ProcessName, ...], str, float | None]:
    """Members that stay, by rank; why a new generation is due; when to look again.

    The reason ignores joiners. A leaving member stays while no other member has the weights.
    """
    here = [known[name] for name in present.members if name in known]
    # Without weights to lose, anybody may leave.
    spare = any(worker.holds_state and not worker.leaving for worker in here) or not any(
        worker.holds_state for worker in here
    )
    reasons, look_again_s = [], None
    gone = [name for name in present.members if name not in known]
    if gone:
        reasons.append(f"{_listed(gone)} ended")
    leaving = [worker for worker in here if worker.leaving and spare]
    if leaving:
        reasons.append(f"{_names(leaving)} {'leaves' if len(leaving) == 1 else 'leave'}")
    staying = [worker for worker in here if worker not in leaving]
    broken = [worker for worker in staying if worker.broken >= present.number]
    awaited = [
        worker
        for worker in staying
        if worker.broken < present.number and (broken or worker.entered < present.number)
    ]
    if broken or len(awaited) < len(staying):
        # The other members have stopped and wait for these.
        lost = [
            worker for worker in awaited if worker.cut_off or now_s - worker.heard_s >= UNHEARD_S
        ]
        # A silent member with the only weights may still answer; without it the job would go back
        # to its last checkpoint. Wait for it until the cluster reports its end.
        if lost and not any(worker.holds_state for worker in staying if worker not in lost):
            lost = [worker for worker in lost if not worker.holds_state]
        staying = [worker for worker in staying if worker not in lost]
        unsure = [worker for worker in awaited if worker not in lost]
        if lost:
            reasons.append(f"{_names(lost)} {'does' if len(lost) == 1 else 'do'} not answer")
        look_again_s = _unheard_s(now_s, unsure)
    if reasons:
        # A new generation comes anyway: leave out possibly dead members if that loses no weights.
        sure = [worker for worker in staying if not worker.cut_off]
        if any(worker.holds_state for worker in sure) or not any(
            worker.holds_state for worker in staying
        ):
            staying = sure
    elif broken:
        reasons, look_again_s = _broken(now_s, present, broken, awaited, look_again_s)
    return tuple(worker.name for worker in staying), "; ".join(reasons), look_again_s


def _broken(
    now_s: float,
    present: Generation,
    broken: list[MemberState],
    awaited: list[MemberState],
    look_again_s: float | None,
) -> tuple[list[str], float | None]:
    """Decide after some members fell out and none is known to be gone.

    Members that reported it, or were heard of since, continue.
    """
    told_s = min(
        worker.free_since_s if worker.free_since_s is not None else worker.heard_s
        for worker in broken
    )
    unsure = [worker for worker in awaited if worker.heard_s <= told_s]
    if unsure:
        return [], _unheard_s(now_s, unsure)
    return [f"generation {present.number} broke for {_names(broken)}"], look_again_s


def _unheard_s(now_s: float, unsure: Sequence[MemberState]) -> float | None:
    """When the next of these members is left out unless it reports; None if none will be.

    The last member that has the weights is never left out.
    """
    return min(
        (at_s for worker in unsure if (at_s := worker.heard_s + UNHEARD_S) > now_s), default=None
    )


def _joiners(present: Generation, workers: Sequence[MemberState]) -> list[MemberState]:
    return _in_order(
        worker
        for worker in workers
        if worker.name not in present.members
        and worker.free_since_s is not None
        and not worker.leaving
        and not worker.cut_off
    )


def _next(
    present: Generation, survivors: Sequence[ProcessName], joining: Sequence[MemberState], why: str
) -> Decision:
    # Survivors keep their order and come first: rank 0 stays while it can, and with it the
    # callbacks.
    return Decision((*survivors, *(worker.name for worker in joining)), present.number + 1, why)


def _stay(present: Generation, reason: str, look_again_s: float | None) -> Decision:
    return Decision(present.members, present.number, reason, look_again_s)


def _settled_s(free: Sequence[MemberState], wanted: RingTarget, *, enough: bool) -> float:
    """When the free workers may begin without waiting for others."""
    times = [worker.free_since_s or 0.0 for worker in free]
    if enough or not wanted.coming:
        return min(times)
    # Wait for the last arrival to settle, but never let a stream of arrivals delay the first.
    return min(max(times) + SETTLE_S, min(times) + LONGEST_SETTLE_S)


def _in_order(workers: Iterable[MemberState]) -> list[MemberState]:
    # The name breaks ties, so that a replay forms the same generation.
    return sorted(workers, key=lambda worker: (worker.free_since_s or 0.0, worker.name))


def _names(workers: Sequence[MemberState]) -> str:
    return _listed([worker.name for worker in workers])


def _listed(names: Sequence[ProcessName]) -> str:
    return ", ".join(map(str, names))
