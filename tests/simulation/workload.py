"""Random jobs: their flags, their data, how fast everything is, and what goes wrong."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.shard import Source
from tests.simulation.defects import old_seeds_of
from tests.simulation.network import Weather

RING, SERVERS, STEPS = "ring", "ps", "sync"
ALL_KEPT = 1 << 30
"""Room for more pushes than any job makes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something happens to a process that `draw` chooses, at `at_s`; with `after_steps`, so long
    after that many steps were done.
    """

    kind: str
    at_s: float
    draw: float
    seconds: float = 0.0
    after_steps: int | None = None

    @property
    def away_s(self) -> float:
        """How long there is no master after it was killed: mostly about a second."""
        return 60.0 * self.draw if self.seconds > 13 else 0.3 + self.draw


@dataclass(frozen=True, slots=True)
class Plan:
    """One job. Durations are at most, and drawn anew each time."""

    strategy: str
    number: int
    flags: dict[str, Any]
    spec: JobSpec
    training: tuple[Source, ...]
    validation: tuple[Source, ...]
    start_s: float
    build_s: float
    step_s: float
    feed_s: float
    save_s: float
    gives_way: float
    bad_every: int
    """Of so many training records the last cannot be read; 0: all can."""
    weather: Weather
    kept_pushes: int
    """How many pushes to each server a worker has room for."""
    keeps_memory: bool
    """Whether the memory of servers outlives their processes, mostly."""
    copies_s: float
    """For how long a complete checkpoint is copied before the master is told."""
    faults: tuple[Fault, ...] = field(default=())

    @property
    def on_ring(self) -> bool:
        return not self.servers

    @property
    def may_end_early(self) -> bool:
        """Somebody asks for it."""
        return any(fault.kind in STOPS for fault in self.faults)

    def bad(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which training records cannot be read."""
        if not self.bad_every:
            return np.zeros(len(numbers), np.bool_)
        return numbers % self.bad_every == self.bad_every - 1

    @property
    def bad_records(self) -> int:
        """In one epoch."""
        records = sum(one.records for one in self.training)
        return int(self.bad(np.arange(records, dtype=np.int64)).sum())

    @property
    def servers(self) -> int:
        return self.spec.servers

    @property
    def stall_s(self) -> float:
        """How long the job may be quiet, at least."""
        return self.spec.cluster.stall_seconds

    @property
    def minibatch_size(self) -> int:
        return self.spec.data.minibatch_size

    def __str__(self) -> str:
        flags = " ".join(
            f"--{name.replace('_', '-')} {value}" for name, value in self.flags.items()
        )
        rows = "+".join(str(one.records) for one in self.training)
        faults = "".join(f"\n  {fault}" for fault in self.faults)
        bad = f", each {self.bad_every}th bad" if self.bad_every else ""
        return f"{flags}\n  {rows} rows{bad}; {self.weather}{faults}"


def _spread(draw: random.Random, low: float, high: float) -> float:
    """Evenly by orders of magnitude."""
    return math.exp(draw.uniform(math.log(low), math.log(high)))


@dataclass(frozen=True, slots=True)
class _Size:
    """How much a job has to do, and by how many."""

    large: bool
    batch: int
    epochs: int
    rows: int
    training: tuple[Source, ...]
    validation: tuple[Source, ...]
    low: int
    high: int

    @property
    def steps(self) -> int:
        """Of all epochs, about."""
        return self.rows * self.epochs // self.batch

    @classmethod
    def drawn(cls, draw: random.Random) -> _Size:
        large = draw.random() < 0.1
        batch = int(_spread(draw, 1, 301))
        epochs = draw.choice([1, 1, 1, 2, 3])
        steps = int(_spread(draw, 1, 120 if large else 40))
        rows = max(1, min(5000, int(steps * batch / epochs * draw.uniform(0.7, 1.3))))
        training = _split(draw, rows)
        validation = _split(draw, int(_spread(draw, 1, 200 if large else 40)))
        low = draw.choice([1, 2, 3] if large else [1, 1, 2, 3])
        return cls(
            large,
            batch,
            epochs,
            rows,
            tuple(Source(f"t{i}", part) for i, part in enumerate(training)),
            tuple(Source(f"v{i}", part) for i, part in enumerate(validation)),
            low,
            high=low + draw.choice([0, 0, 1, 2]),
        )


def plan_of(seed: int, strategy: str) -> Plan:
    """The job of this seed.

    What is drawn in another order, or from the same generator besides, gives every seed another
    job. Later additions therefore have generators of their own.
    """
    draw = random.Random(f"plan {strategy} {seed}")
    size = _Size.drawn(draw)
    stragglers = _stragglers(seed, strategy, size.steps)
    flags = _common_flags(draw, size)
    by_time = random.Random(f"checkpoint seconds {strategy} {seed}")
    flags["checkpoint_seconds"] = by_time.choice([0, 0, 1, 5, round(_spread(by_time, 0.1, 60), 2)])
    validation = size.validation if draw.random() >= 0.4 else ()
    if validation:
        flags["validation_data"] = "v"
        flags["evaluation_steps"] = draw.choice([0, int(_spread(draw, 1, 60))])
    if draw.random() < 0.3:
        flags["output"] = "out"
        by_time = random.Random(f"export seconds {strategy} {seed}")
        if strategy != RING and seed not in old_seeds_of(strategy):
            flags["export_seconds"] = by_time.choice(
                [0, 1, 10, round(_spread(by_time, 0.1, 60), 2)]
            )
    flags |= _ring_flags(draw, seed, size) if strategy == RING else _server_flags(draw)
    if strategy == STEPS:
        flags |= _step_flags(draw, seed, size)
    calm = draw.random() < 0.5
    slow = bool(stragglers) and not calm
    autoscale = _autoscales(seed, strategy, size)
    far = autoscale and strategy == SERVERS and random.Random(f"far servers {seed}").random() < 0.5
    if autoscale:
        flags["autoscale"] = True
    if far:
        # Their answers take long, so more of them may pay.
        flags["num_ps_pods"] = f"{flags['num_ps_pods']}:{flags['num_ps_pods'] + 2}"
    if strategy == SERVERS and seed not in old_seeds_of(strategy):
        flags |= _cluster_flags(seed, exports="output" in flags)
    longer = 12 if autoscale else 4 if slow else 1
    spec = spec_of(flags)
    bad_every = random.Random(f"bad {strategy} {seed}").choice([0, 0, 0, 2, 7, 50])
    return Plan(
        strategy,
        seed,
        flags,
        spec,
        # What is slow shows after a while only, and so does what more workers add.
        tuple(Source(one.name, longer * one.records) for one in size.training),
        validation,
        start_s=draw.choice([0.1, 1.0, 3.0]),
        build_s=draw.choice([0.1, 1.0, 3.0]),
        step_s=max(draw.choice([0.0, 0.01, 0.1, 0.5]), 1.0 if slow or autoscale else 0.0),
        feed_s=draw.choice([0.0, 0.0, 0.01, 0.2]),
        save_s=draw.choice([0.01, 0.5, 3.0]),
        gives_way=draw.choice([0.0, 0.02, 0.2]),
        bad_every=bad_every,
        weather=replace(
            Weather() if calm else _weather(draw),
            **({"latency_s": 0.3, "spread": 1.0} if far else {}),
        ),
        kept_pushes=_kept_pushes(seed) if spec.keeps_pushes else 0,
        keeps_memory=_keeps_memory(seed, strategy),
        copies_s=_copies_s(seed, strategy),
        faults=(
            *(() if calm else _faults(draw, strategy, size.steps)),
            *(stragglers if slow else ()),
            *_master_faults(strategy, seed, size.steps),
            *_resizes(strategy, seed, size.steps),
            *_losses(strategy, seed, size.steps),
        ),
    )


def _kept_pushes(seed: int) -> int:
    # Drawn apart, so that seeds keep the rest of their jobs.
    return random.Random(f"kept pushes {seed}").choice([ALL_KEPT, ALL_KEPT, 1, 5, 30])


def _keeps_memory(seed: int, strategy: str) -> bool:
    """Whether servers find the memory of the process before: with steps, all depends on it."""
    if strategy != STEPS or seed in old_seeds_of(strategy):
        return False
    return random.Random(f"kept memory {seed}").random() < 0.5


def _copies_s(seed: int, strategy: str) -> float:
    if strategy != STEPS or seed in old_seeds_of(strategy):
        return 0.0
    return random.Random(f"copies {seed}").choice([0.0, 0.0, 1.0, 10.0])


def _autoscales(seed: int, strategy: str, size: _Size) -> bool:
    """Whether the master chooses the number of workers: not in jobs that found a defect before."""
    if size.low == size.high or seed in old_seeds_of(strategy):
        return False
    # Drawn apart, so that seeds keep the rest of their jobs.
    return random.Random(f"autoscale {strategy} {seed}").random() < 0.1


def _common_flags(draw: random.Random, size: _Size) -> dict[str, Any]:
    least = 1 if size.large else max(1, size.rows // 30)
    return {
        "minibatch_size": size.batch,
        "num_epochs": size.epochs,
        "num_workers": f"{size.low}:{size.high}",
        "records_per_task": draw.choice([0, 0, int(_spread(draw, least, 2 * size.rows + 1))]),
        "shuffle": draw.choice(["none", "shards", "records"]),
        "checkpoint_steps": draw.choice([0, 0, int(_spread(draw, 1, 50))]),
        "max_relaunches": 0,
        "keep_checkpoint_max": draw.choice([0, 1, 3]),
        "max_bad_records": 1 << 30,
    }


def _ring_flags(draw: random.Random, seed: int, size: _Size) -> dict[str, Any]:
    flags: dict[str, Any] = {"distribution_strategy": "AllreduceStrategy"}
    if draw.random() < 0.3:
        flags["global_batch"] = "scaled"
        flags["lr_scaling"] = draw.choice(["none", "linear", "sqrt"])
    elif random.Random(f"virtual {seed}").random() < 0.3:
        flags["virtual_workers"] = size.high + 1
    return flags


def _server_flags(draw: random.Random) -> dict[str, Any]:
    return {"num_ps_pods": draw.choice([1, 2, 3]), "max_staleness": draw.choice([0, 1, "auto", 3])}


def _cluster_flags(seed: int, *, exports: bool) -> dict[str, Any]:
    """Flags of pods, whose memory goes with them: checkpoints are due earlier."""
    if random.Random(f"on a cluster {seed}").random() < 0.5:
        return {}
    return {
        "image_name": "zoo:1",
        "job_dir": "/data/job",
        "volume": "claim_name=c,mount_path=/data",
        **({"output": "/data/out"} if exports else {}),
    }


def _step_flags(draw: random.Random, seed: int, size: _Size) -> dict[str, Any]:
    """Flags of parameter servers with synchronous steps."""
    backups = draw.choice([0, 0, min(1, size.high - 1)])
    to_wait = draw.choice([0, size.high - backups, 1])
    if not backups:
        to_wait = draw.choice([0, 1, int(_spread(draw, 1, 8))])
    return {
        "sync": True,
        "max_staleness": "auto",
        "backup_workers": backups,
        "grads_to_wait": to_wait,
        "global_batch": random.Random(f"global batch {seed}").choice(["fixed", "scaled"]),
    }


def spec_of(flags: dict[str, Any]) -> JobSpec:
    """The job with these flags, and what is the same for all."""
    return JobSpec.from_flags(
        Action.TRAIN, {"model_zoo": "z", "model_def": "m", "training_data": "t", **flags}
    )


def _split(draw: random.Random, rows: int) -> list[int]:
    """Some sources, none of them empty."""
    cuts = (
        sorted({draw.randrange(1, rows) for _ in range(draw.choice([0, 0, 1, 3]))})
        if rows > 1
        else []
    )
    return [end - begin for begin, end in zip([0, *cuts], [*cuts, rows], strict=True)]


def _weather(draw: random.Random) -> Weather:
    return Weather(
        latency_s=draw.choice([0.001, 0.001, 0.02]),
        spread=draw.choice([1.0, 10.0]),
        loses=draw.choice([0.0, 0.01, 0.05]),
        breaks_streams=draw.choice([0.0, 0.05, 0.2]),
    )


STOPS = ("end early", "stop job")
"""Training ends with records left."""
_EVENTS = ("kill", "kill", "drain", "drain", "stop", "scale", "replace", "checkpoint")
_RING_EVENTS = (
    "kill in a step",
    "kill in a step",
    "kill in a step",
    "kill in a hand-over",
    "kill in a hand-over",
    "kill in a meeting",
    "break ring",
    "break ring",
)
_PUSH_EVENTS = ("kill in a push", "kill in a push", "kill in a push", "slow push", "slow push")
_SERVER_EVENTS = ("kill server",)
_MASTER_EVENTS = (
    "kill master",
    "kill master in its work",
    "kill master in its work",
    "kill master in a phase",
)


def _master_faults(strategy: str, seed: int, steps: int) -> list[Fault]:
    """Masters are killed, one after another."""
    # Drawn apart, so that seeds keep the jobs that they had before masters died.
    draw = random.Random(f"masters {strategy} {seed}")
    if draw.random() < 0.6:
        return []
    return [
        Fault(
            draw.choice(
                (*_MASTER_EVENTS, "kill master in a step") if strategy == STEPS else _MASTER_EVENTS
            ),
            round(draw.choice([0.0, 0.01, 0.2, 3.0]) * draw.random(), 4),
            draw.random(),
            round(_spread(draw, 0.3, 15), 3),
            draw.randint(0, steps) if draw.random() < 0.8 else None,
        )
        for _ in range(draw.choice([1, 1, 2, 4]))
    ]


def _resizes(strategy: str, seed: int, steps: int) -> tuple[Fault, ...]:
    """The number of servers changes, and servers and masters may be killed in the middle of it."""
    # Drawn apart, so that seeds keep the rest of their jobs.
    draw = random.Random(f"resizes {strategy} {seed}")
    if strategy == RING or draw.random() < 0.6:
        return ()
    found = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        after_steps = draw.randint(0, max(1, steps * 2 // 3))
        found.append(Fault("resize", 0.0, draw.random(), 0.0, after_steps))
        kind = draw.choice([None, None, "kill server", "kill master", "kill", "kill in a push"])
        if kind is not None:
            at_s = round(draw.choice([0.1, 1.0, 5.0]) * draw.random(), 4)
            seconds = round(_spread(draw, 0.3, 3.0), 3)
            found.append(Fault(kind, at_s, draw.random(), seconds, after_steps))
    return tuple(found)


def _losses(strategy: str, seed: int, steps: int) -> tuple[Fault, ...]:
    """Servers are lost after a checkpoint, which the next ones may be unable to read."""
    # Drawn apart, so that seeds keep the rest of their jobs.
    draw = random.Random(f"losses {strategy} {seed}")
    if strategy != STEPS or seed in old_seeds_of(strategy) or draw.random() < 0.5:
        return ()

    def fault(kind: str, after_steps: int) -> Fault:
        at_s = round(draw.choice([0.0, 0.01, 1.0, 5.0]) * draw.random(), 4)
        return Fault(kind, at_s, draw.random(), round(_spread(draw, 0.3, 15), 3), after_steps)

    found = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        after_steps = draw.randint(0, max(1, steps * 2 // 3))
        found.append(fault("checkpoint", after_steps))
        found += [
            fault(kind, draw.randint(after_steps, after_steps + max(1, steps // 3)))
            for kind in draw.choices(_LOSSES, k=draw.choice([1, 2, 2, 3]))
        ]
    return tuple(found)


_LOSSES = (
    *("kill server",) * 4,
    *("kill server in a step",) * 2,
    *("damage", "checkpoint", "kill", "kill master", "kill master in a step", "slow push"),
)
_STRAGGLERS = ("slow", "slow", "slow", "hang", "hang", "stop", "slow server", "stop server")


def _stragglers(seed: int, strategy: str, steps: int) -> tuple[Fault, ...]:
    """Workers and servers that are slow, stand still or hang."""
    # Drawn apart, so that seeds keep the rest of their jobs.
    draw = random.Random(f"stragglers {strategy} {seed}")
    if strategy == RING or draw.random() < 0.5:
        return ()
    return tuple(
        Fault(
            draw.choice(_STRAGGLERS),
            round(draw.random(), 4),
            draw.random(),
            round(_spread(draw, 2.0, 20.0), 3),
            draw.randint(0, max(1, steps // 2)),
        )
        for _ in range(draw.choice([1, 1, 2]))
    )


def _faults(draw: random.Random, strategy: str, steps: int) -> tuple[Fault, ...]:
    servers_die = strategy != RING and draw.random() < 0.3
    kinds = (
        *_EVENTS,
        *(_RING_EVENTS if strategy == RING else _PUSH_EVENTS),
        *(_SERVER_EVENTS if servers_die else ()),
    )
    end_s = _spread(draw, 2, 15)

    def fault(kind: str, after_steps: int | None = None) -> Fault:
        if after_steps is None and draw.random() < 0.7:
            after_steps = draw.randint(0, steps)
        at_s = (
            draw.uniform(0.2, end_s)
            if after_steps is None
            else draw.choice([0.0, 0.01, 0.2]) * draw.random()
        )
        return Fault(
            kind, round(at_s, 4), draw.random(), round(_spread(draw, 1.0, 15), 3), after_steps
        )

    found = [fault(draw.choice(kinds)) for _ in range(draw.choice([0, 1, 2, 3, 5, 8]))]
    if strategy == RING and draw.random() < 0.4:
        # Some lack a step, and then whoever gives it to them dies.
        after_steps = draw.randint(0, steps)
        found += [fault("kill in a step", after_steps), fault("kill in a hand-over", after_steps)]
    if strategy != RING and draw.random() < 0.3:
        # A cut comes while some servers have a push that others lack.
        after_steps = draw.randint(0, steps)
        found += [fault(draw.choice(_PUSH_EVENTS), after_steps), fault("checkpoint", after_steps)]
    if draw.random() < 0.15:
        found.append(fault(draw.choice(STOPS)))
    return tuple(found)
