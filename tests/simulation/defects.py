"""The defects that the simulation has found, with seeds whose jobs failed by them.

docs/testing.md has the same as a table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Defect:
    """A job of each of the seeds failed once."""

    strategy: str
    """"ring", "ps" or "sync"."""
    seeds: tuple[int, ...]
    what: str
    any_flags: bool = False
    """Whether its jobs have whatever flags they are drawn with.

    Other defects were found before jobs were drawn with --autoscale, for example, and need their
    jobs as they were.
    """


RING = (
    Defect(
        "ring",
        (18, 52, 115, 149),
        "A read ahead of its time gave way to a plan that waited for the reader.",
    ),
    Defect(
        "ring",
        (3005961, 3006038),
        "A member that joined did not know the bad records of a shard that had ended. A step of bad"
        " records alone was reported as the step before it.",
    ),
    Defect(
        "ring",
        (21018117,),
        "Of the simulation: what a stopped member restored for an old generation counted as the"
        " newest weights.",
    ),
    Defect(
        "ring",
        (20004157, 20006730, 20007173, 20016280),
        "Of the simulation: a killed worker was heard while its threads unwound.",
    ),
    Defect(
        "ring", (503771,), "After a takeover the master decided before it had heard all members."
    ),
)
SERVERS = (
    Defect(
        "ps",
        (49,),
        "Training ended before the first step, and a last checkpoint of nothing was waited for.",
    ),
    Defect(
        "ps",
        (3005936,),
        "Of the simulation: a first push came to a server that had not met the worker.",
    ),
    Defect(
        "ps",
        (20017477, 21032880),
        "A worker dropped a revoked lease and was killed. Its push of a later lease was taken to"
        " include the dropped one.",
    ),
    Defect(
        "ps",
        (70005278,),
        "A server ended after it had frozen its part of a view, and before the master confirmed the"
        " view.",
    ),
    Defect(
        "ps",
        (739, 1400),
        "The holder of the export hung in `feed`, with the half hour that an export may take.",
    ),
    Defect(
        "ps",
        (10329,),
        "A push that began with a batch of bad records alone was torn. Its other bad records"
        " counted as repeated.",
    ),
    Defect(
        "ps",
        (267,),
        "A cut waited for a worker's pushes on a server that had lost them, though the worker could"
        " not push them again.",
    ),
    Defect(
        "ps",
        (5122,),
        "Of the simulation: a push reached a server that was still getting earlier ones again,"
        " which it then took for repeated.",
    ),
    Defect(
        "ps",
        (991146,),
        "Of the simulation: a worker met a server in the middle of a push that its predecessor had"
        " taken along, and did not say so.",
        any_flags=True,
    ),
)
STEPS = (
    Defect(
        "sync",
        (3, 161, 241, 264, 1434),
        "Bad records of several batches had no outcome. Workers got new leases while revoked ones"
        " were not back. A dead process gave up a turn.",
    ),
    Defect(
        "sync",
        (30000662, 41000119, 41001184, 42000190, 42000440, 42000651),
        "A late gradient hid the outcome of an earlier one of its lease. A step counted as trained"
        " though a server had ended before it applied it.",
    ),
    Defect(
        "sync", (60004538,), "A step waited for a worker whose leases all waited for that step."
    ),
    Defect(
        "sync",
        (100008756,),
        "A stopped job waited for its last checkpoint after a server had taken all that was trained"
        " with it.",
    ),
    Defect(
        "sync",
        (501094, 503638, 503781, 504566),
        "After a takeover a turn was given again, and the push of its first time did not count.",
    ),
    Defect(
        "sync",
        (82, 160, 269),
        "After a takeover steps got old numbers again if the servers had lost their memory.",
    ),
    Defect(
        "sync",
        (1620378,),
        "A checkpoint waited for a server that had ended after its next process attached.",
    ),
    Defect(
        "sync",
        (14511034,),
        "Of the simulation: a lease's first report of where it begins counted as a movement.",
        any_flags=True,
    ),
    Defect(
        "sync",
        (900245,),
        "A worker came to the next master with leases that were revoked, and no ledger had"
        " them any more: its gradients counted.",
        any_flags=True,
    ),
    Defect(
        "sync",
        (910669, 911387),
        "A server that had lost its memory applied a step of an earlier master, which then counted"
        " as complete.",
        any_flags=True,
    ),
    Defect(
        "sync",
        (911580,),
        "A server lost its memory while the next master asked for the last step, and was taken"
        " for the one that had answered.",
        any_flags=True,
    ),
    Defect(
        "sync",
        (194,),
        "A step was torn while the first checkpoint was written. Nobody went back to it when it"
        " was complete.",
        any_flags=True,
    ),
    Defect(
        "sync",
        (43, 920276),
        "A job that went back in its last phase took no last checkpoint.",
        any_flags=True,
    ),
    Defect(
        "sync",
        (911449,),
        "The next master learned what a hung worker did, and counted that as ended. So the"
        " worker's limit grew.",
        any_flags=True,
    ),
    Defect(
        "sync",
        (2090,),
        "Of the simulation: the newer of two checkpoints of one version was damaged, though on"
        " disk it has the place of the other one.",
        any_flags=True,
    ),
    Defect(
        "sync",
        (9200648,),
        "A server was lost while the first checkpoint was written, and read it when it was"
        " complete. The steps in it counted as lost all the same.",
        any_flags=True,
    ),
)
DEFECTS = (*RING, *SERVERS, *STEPS)


def seeds_of(strategy: str) -> tuple[int, ...]:
    """All seeds of the defects of a strategy."""
    return tuple(seed for defect in DEFECTS if defect.strategy == strategy for seed in defect.seeds)


def old_seeds_of(strategy: str) -> frozenset[int]:
    """Those whose jobs have only flags that jobs were drawn with from the beginning."""
    return frozenset(
        seed
        for defect in DEFECTS
        if defect.strategy == strategy and not defect.any_flags
        for seed in defect.seeds
    )
