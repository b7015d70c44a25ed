"""A job with random flags, made from a seed: `draw` decides everything, and touches no file.

`DRAWN` has a function for each flag of `elasticdl train` that does not need a cluster; `EXCLUDED`
says
of each other one why it is not drawn. A test holds both against what `train --help` offers.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from elasticdl.kubernetes_flags import KubernetesSection


class Strategy(StrEnum):
    """The two strategies, by the names that the command of this fuzzer has for them."""

    PS = "ps"
    RING = "ring"


MOST_STEPS = 500
MOST_CHECKPOINTS = 40
MOST_EVALUATIONS = 12
MOST_SHARDS = 400

STYLES: Mapping[str, tuple[str, str]] = {
    "csv": (".csv", ""),
    "csv-plain": (".csv", "header=false;column_names=id,note"),
    "tsv": (".txt", "format=csv;delimiter=tab"),
    "tfrecord": (".tfrecord", ""),
    "npz": (".npz", ""),
    "npz-packed": (".npz", "columns=id"),
    "npy": (".npy", ""),
    "parquet": (".parquet", "columns=id"),
    "lines": ("", "ignored=1"),
}
"""How records are written: names of files, and the reader's parameters.

`lines` is read by a reader of the module's own.
"""


class Placeholder(StrEnum):
    """Values that only whoever runs the job can know."""

    ZOO = "zoo"
    TRAINING = "training"
    VALIDATION = "validation"
    OUTPUT = "output"
    TENSORBOARD = "tensorboard"
    JOB = "job"
    FREE_PORT = "free port"


class Then(StrEnum):
    """What comes after the first run of a job."""

    NOTHING = "nothing"
    RESUME = "resume"
    """It is stopped in the middle, and resumed."""
    BEGIN_WITH = "begin with"
    """Another job begins with its newest checkpoint."""


Value = Placeholder | int | float | str


@dataclass
class Draft:
    """What a job is to be.

    `flags` without those that stay at their defaults, in the order of `DRAWN`.
    """

    seed: int
    strategy: Strategy
    choose: random.Random
    rows: int = 0
    style: str = "csv"
    files: tuple[int, ...] = ()
    """Records of each file."""
    as_glob: bool = False
    group: int = 128
    """Records in a row group of Parquet."""
    bad_rows: tuple[tuple[int, int], ...] = ()
    """(file, line) behind which a row of the wrong length stands."""
    bad_cells: tuple[tuple[int, int], ...] = ()
    """(file, line) behind which a row stands whose id is no number."""
    validation: int = 0
    kind: str = "keras"
    width: int = 1
    subclassed: bool = False
    by_batches: bool = True
    callbacks: tuple[str, ...] = ()
    most_steps: int = 0
    """The module's own `MaxStepsStopping`; 0: none."""
    then: Then = Then.NOTHING
    pause_s: float = 0.0
    """After each minibatch: a callback of the module sleeps."""
    changed: tuple[str, ...] = ()
    """Flags that are given anew where it is resumed."""
    flags: dict[str, Value] = field(default_factory=dict)
    in_file: tuple[str, ...] = ()
    """Flags that come from a YAML file."""
    spelling: dict[str, str] = field(default_factory=dict)
    """Of each flag `-` or `_`."""

    def number(self, name: str, default: int) -> int:
        """A flag's value as it will be."""
        value = self.flags.get(name, default)
        assert isinstance(value, int)
        return value

    @property
    def batch(self) -> int:
        return self.number("minibatch_size", 64)

    @property
    def epochs(self) -> int:
        return self.number("num_epochs", 1)

    @property
    def bad(self) -> int:
        return len(self.bad_rows) + len(self.bad_cells)

    @property
    def on_ring(self) -> bool:
        return self.strategy is Strategy.RING

    @property
    def in_steps(self) -> bool:
        """Whether its steps are synchronous. A job that does not say so may choose them."""
        return bool(self.flags.get("sync"))

    @property
    def steps(self) -> int:
        """About so many steps does a job make."""
        return self.epochs * -(-(self.rows + self.bad) // self.batch)

    @property
    def workers(self) -> int:
        """At most."""
        return int(str(self.flags.get("num_workers", 1)).rpartition(":")[2])


Draw = Callable[[Draft], Value | None]
"""The value of a flag, None where it is to stay at its default.

Later ones may look at what is there.
"""


def draw(seed: int, strategy: Strategy) -> Draft:
    """The same job for the same numbers."""
    draft = Draft(seed, strategy, random.Random(f"{strategy} {seed}"))
    _data(draft)
    for name, of in DRAWN.items():
        value = of(draft)
        if value is not None:
            draft.flags[name] = value
    choose = draft.choose
    if choose.random() < 0.3:
        movable = [name for name in draft.flags if name != "job_dir"]
        draft.in_file = tuple(name for name in movable if choose.random() < 0.6)
    _then(draft)
    draft.spelling = {name: "-_"[choose.random() < 0.2] for name in draft.flags}
    return draft


def draw_sync(seed: int) -> Draft:
    """A job of synchronous steps. The same for the same number."""
    drafts = (draw(seed * 1000 + more, Strategy.PS) for more in itertools.count())
    draft = next(draft for draft in drafts if draft.in_steps)
    draft.seed = seed
    return draft


def spread(choose: random.Random, low: int, high: int) -> int:
    """Between these, each order of magnitude alike."""
    return min(high, max(low, round(math.exp(choose.uniform(math.log(low), math.log(high + 0.5))))))


def near(choose: random.Random, value: int, low: int = 1) -> int:
    """That number, or one beside it."""
    return max(low, value + choose.choice((-1, 0, 1)))


def _data(draft: Draft) -> None:
    """How many records, in which files.

    Batches and epochs come first: together they bound the steps of a job.
    """
    choose = draft.choose
    batch, epochs = spread(choose, 1, 300), choose.choice((1, 1, 2, 3, 4))
    draft.flags["minibatch_size"], draft.flags["num_epochs"] = batch, epochs
    most = min(10_000, max(1, MOST_STEPS // epochs) * batch)
    draft.rows = (
        1
        if choose.random() < 0.03
        else spread(choose, 1, most)
        if choose.random() < 0.3
        else choose.randint(1, most)
    )
    if choose.random() < 0.2:
        draft.rows = min(most, near(choose, batch * choose.randint(1, 5)))
    draft.style = choose.choice(list(STYLES))
    count = 1 if draft.style == "npy" else min(draft.rows, choose.choice((1, 1, 2, 3, 5)))
    cuts = sorted(choose.sample(range(1, draft.rows), count - 1))
    draft.files = tuple(
        end - begin for begin, end in zip((0, *cuts), (*cuts, draft.rows), strict=True)
    )
    draft.as_glob = choose.random() < 0.3
    draft.group = spread(choose, 1, 500)
    if draft.style == "csv" and choose.random() < 0.3:
        _spoil(draft)
    if choose.random() < 0.65:
        draft.validation = min(
            draft.rows, spread(choose, 1, 1000)
        )  # the same ids: there are no others


def _spoil(draft: Draft) -> None:
    """A few bad rows.

    On a ring, a row that `feed` cannot take ends the job: docs/how-to/ring.md.
    """
    choose = draft.choose
    places = [
        (number, choose.randint(0, records))
        for number, records in enumerate(draft.files)
        for _ in range(choose.randint(0, 2))
    ]
    cells = 0 if draft.on_ring else choose.randint(0, len(places))
    draft.bad_cells, draft.bad_rows = tuple(places[:cells]), tuple(places[cells:])


def _then(draft: Draft) -> None:
    """Some jobs are stopped and resumed, maybe with other processes, and some begin where another
    one ended.
    """
    choose = draft.choose
    draft.then = choose.choices((Then.NOTHING, Then.RESUME, Then.BEGIN_WITH), (75, 15, 10))[0]
    if draft.most_steps:  # a job that ends by itself before its data does is no base to count from
        draft.then = Then.NOTHING
    # The one needs several workers, the other a range.
    fixed = bool(draft.flags.get("backup_workers") or draft.flags.get("autoscale"))
    if draft.then is Then.RESUME and not fixed and choose.random() < 0.5:
        draft.changed = ("--num-workers", choose.choice(("1", "2", "1:2")))
        if not draft.on_ring:
            draft.changed += ("--num-ps-pods", str(choose.choice((1, 2, 3))))


# A function for each flag


def _maybe(chance: float, of: Draw) -> Draw:
    return lambda draft: of(draft) if draft.choose.random() < chance else None


def _one_of(*values: Value | None) -> Draw:
    return lambda draft: draft.choose.choice(values)


def _not_on_rings(of: Draw) -> Draw:
    return lambda draft: None if draft.on_ring else of(draft)


def _model_def(draft: Draft) -> Value:
    draft.subclassed = draft.choose.random() < 0.3
    draft.by_batches = draft.choose.random() < 0.6
    return "parts.model.Subclassed" if draft.subclassed else "parts.model"


def _model_params(draft: Draft) -> Value:
    choose = draft.choose
    draft.kind = choose.choice(
        ("keras", "dense") if draft.on_ring else ("keras", "dense", "served", "unbounded")
    )
    draft.width = choose.choice((1, 1, 2, 16))
    found = {"rows": draft.rows, "kind": draft.kind, "width": draft.width}
    if draft.on_ring:
        found["dtype"] = choose.choice(("float32", "float64"))
    return ";".join(f"{name}={value}" for name, value in found.items())


def _reader_params(draft: Draft) -> Value | None:
    return STYLES[draft.style][1] or None


def _validation(draft: Draft) -> Value | None:
    return Placeholder.VALIDATION if draft.validation else None


def _records_per_task(draft: Draft) -> Value | None:
    """From one minibatch to more than there is; default and 0 are the same."""
    choose, least = draft.choose, -(-draft.rows * draft.epochs // MOST_SHARDS)
    kind = choose.random()
    if kind < 0.3:
        return None
    if kind < 0.4:
        return 0
    if kind < 0.6:
        return max(least, near(choose, draft.batch * choose.randint(1, 9)))
    return max(least, spread(choose, 1, 2 * draft.rows))


def _num_epochs(draft: Draft) -> Value | None:
    return draft.epochs


def _max_bad(draft: Draft) -> Value | None:
    """Enough, and no more: each epoch counts its own."""
    return (
        draft.bad + draft.choose.choice((0, 0, 3))
        if draft.bad
        else draft.choose.choice((None, 0, 5))
    )


def _evaluation_steps(draft: Draft) -> Value | None:
    if not draft.validation or draft.choose.random() < 0.35:
        return None
    return spread(draft.choose, max(1, draft.steps // MOST_EVALUATIONS), 2 * draft.steps + 1)


def _evaluation_seconds(draft: Draft) -> Value | None:
    return (
        round(draft.choose.uniform(0.3, 3), 2)
        if draft.validation and draft.choose.random() < 0.15
        else None
    )


def _checkpoint_steps(draft: Draft) -> Value | None:
    if draft.choose.random() < 0.35:
        return draft.choose.choice((None, 0))
    return spread(draft.choose, max(1, draft.steps // MOST_CHECKPOINTS), 2 * draft.steps + 1)


def _checkpoint_seconds(draft: Draft) -> Value | None:
    return draft.choose.choice((None, None, 0, 1, round(draft.choose.uniform(0.3, 3), 2)))


def _scaled(draft: Draft) -> Value | None:
    return (
        draft.choose.choice((None, "fixed", "scaled", "scaled"))
        if draft.on_ring
        else draft.choose.choice((None, "fixed"))
    )


def _lr_scaling(draft: Draft) -> Value | None:
    ways = (
        (None, "none", "linear", "sqrt")
        if draft.flags.get("global_batch") == "scaled"
        else (None, "none")
    )
    return draft.choose.choice(ways)


def _virtual_workers(draft: Draft) -> Value | None:
    if not draft.on_ring or draft.flags.get("global_batch") == "scaled":
        return None
    # At least as many as a job, or the one that resumes it, has workers.
    return draft.choose.choice((None, 0, 3, 4))


def _threshold(draft: Draft) -> Value | None:
    size = draft.rows * draft.width * 4
    return draft.choose.choice((None, None, 0, size, size + 1))


def _workers(draft: Draft) -> Value | None:
    return draft.choose.choice((None, "1", "2", "2", "2", "3", "1:2", "1:3", "2:3"))


def _autoscale(draft: Draft) -> Value | None:
    """Drawn apart, so that seeds keep the rest of their jobs."""
    has_range = ":" in str(draft.flags.get("num_workers", ""))
    return True if has_range and random.Random(f"autoscale {draft.seed}").random() < 0.3 else None


def _servers(draft: Draft) -> Value | None:
    if draft.on_ring:
        return draft.choose.choice((None, 0))
    number = draft.choose.choice((None, 1, 2, 3))
    chosen = draft.flags.get("autoscale") and not draft.in_steps
    # Drawn apart, so that seeds keep the rest of their jobs.
    if number and chosen and random.Random(f"server range {draft.seed}").random() < 0.5:
        return f"{number}:{number + 1}"
    return number


def _in_steps(of: Draw) -> Draw:
    return lambda draft: of(draft) if draft.in_steps else None


def _sync(draft: Draft) -> Value:
    """Never left to the job: a sum over several gradients does not count records."""
    return draft.choose.random() < 0.25


def _max_staleness(draft: Draft) -> Value | None:
    among = (None, "auto") if draft.in_steps else (None, "auto", 0, 1, 2, 8)
    return draft.choose.choice(among)


def _backup_workers(draft: Draft) -> Value | None:
    """A step is of one gradient: only then does the mean of gradients count records."""
    return draft.choose.choice((None, 0, min(1, draft.workers - 1)))


def _envs(draft: Draft) -> Value | None:
    """What the module's callbacks are, by the environment of its processes."""
    choose = draft.choose
    if choose.random() < 0.7:
        return "COUNTING_NOTE=none" if choose.random() < 0.2 else None
    # SGD's own rate is 1, too; a schedule of the module leaves it so.
    names = [name for name in ("rate", "log", "exporter") if choose.random() < 0.5]
    if choose.random() < 0.35:
        names.append("stop")
        draft.most_steps = choose.randint(1, max(1, 2 * draft.steps))
    draft.callbacks = tuple(names)
    return f"COUNTING_CALLBACKS={','.join(names)};COUNTING_STEPS={draft.most_steps}"


def _job_name(draft: Draft) -> Value | None:
    return draft.choose.choice((None, "j", "fuzz-" + "x" * 47, f"n{draft.seed}"))


DRAWN: Mapping[str, Draw] = {
    "model_zoo": lambda draft: Placeholder.ZOO,
    "model_def": _model_def,
    "model_params": _model_params,
    "training_data": lambda draft: Placeholder.TRAINING,
    "validation_data": _validation,
    "data_reader_params": _reader_params,
    "minibatch_size": lambda draft: draft.batch,
    "num_epochs": _num_epochs,
    "records_per_task": _records_per_task,
    "shuffle": _one_of(None, "none", "shards", "records"),
    "seed": _maybe(0.6, lambda draft: draft.choose.choice((0, 1, draft.choose.getrandbits(63)))),
    "max_bad_records": _max_bad,
    "distribution_strategy": lambda draft: (
        "AllreduceStrategy"
        if draft.on_ring
        else draft.choose.choice((None, "ParameterServerStrategy"))
    ),
    "evaluation_steps": _evaluation_steps,
    "evaluation_seconds": _evaluation_seconds,
    "sync": _not_on_rings(_sync),
    "grads_to_wait": _in_steps(lambda draft: 1),
    "max_staleness": _not_on_rings(_max_staleness),
    "embedding_threshold_bytes": _not_on_rings(_threshold),
    "global_batch": _scaled,
    "lr_scaling": _lr_scaling,
    "virtual_workers": _virtual_workers,
    "max_nonfinite_steps": _not_on_rings(_one_of(None, 1, 9)),
    "max_failed_shards": _one_of(None, None, 0, 2),
    "checkpoint_steps": _checkpoint_steps,
    "checkpoint_seconds": _checkpoint_seconds,
    "keep_checkpoint_max": _one_of(None, 0, 1, 2, 5),
    "output": _maybe(0.9, lambda draft: Placeholder.OUTPUT),
    "tensorboard_log_dir": _maybe(0.15, lambda draft: Placeholder.TENSORBOARD),
    "job_name": _job_name,
    "job_dir": lambda draft: Placeholder.JOB,
    "num_workers": _workers,
    "autoscale": _autoscale,
    "backup_workers": _in_steps(_backup_workers),
    "num_ps_pods": _servers,
    "max_relaunches": _one_of(None, None, 0, 5),
    "status_port": _one_of(None, None, 0, Placeholder.FREE_PORT),
    "envs": _envs,
    "tls": _one_of(None, None, "auto", "on", "off"),
    "stall_seconds": _one_of(None, None, 0, 30, 600.5),
}

_CLUSTER = "needs a Kubernetes cluster"
EXCLUDED: Mapping[str, str] = {
    **dict.fromkeys(KubernetesSection.model_fields, _CLUSTER),
    "detach": _CLUSTER,
    "prediction_data": "`train` refuses it",
    "dry_run": "starts no job",
    "file": "given where a draft has flags `in_file`",
    "form": "given by whoever runs the job: the results are read as JSON",
    "checkpoint_dir_for_init": (
        "given to the second job of a draft that begins with the first one's checkpoint"
    ),
    "export_seconds": "exports to numbered folders: tests/process/test_job_remote.py",
    "keep_export_max": "of numbered folders, see export_seconds",
    "checkpoint_dir": "takes an object store: tests/process/test_job_remote.py",
    "tracker": "needs a tracker: tests/contract/test_trackers.py",
    "resume": "given to the second run of a job that was stopped",
    "wire_precision": "rounded gradients do not count records exactly",
}
"""Flags that `draw` does not draw, and why."""
