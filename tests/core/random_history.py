"""Random histories of a job: events that are likely to matter, and a state as plain values."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from elasticdl.cluster.base import ExitStatus, ProcessName, Role
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.shard import Applied, ShardId, SnapshotId, Source, Task
from tests.present import present


def is_frozen(value: Any) -> bool:
    """Whether a value cannot change, so that it does not matter whether it is one object or two."""
    kind = type(value)
    return kind is tuple or (is_dataclass(kind) and kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def canonical(value: Any, seen: dict[int, int] | None = None) -> Any:
    """All that a state consists of, as plain values; `now_s`, the story of recent events and
    measured waits are for people only.
    """
    seen = {} if seen is None else seen
    if value is None or isinstance(value, (str, int, float, bool, Enum, JobSpec)):
        return value
    if isinstance(value, ProcessName):
        return str(value)
    if callable(value):
        return "function"
    if not is_frozen(value):
        # Equal values that cannot change may be one object or two.
        if id(value) in seen:
            return f"object {seen[id(value)]}"
        seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return {str(key): canonical(item, seen) for key, item in value.items()}
    if isinstance(value, set):
        value = sorted(value)
    if isinstance(value, (list, tuple, deque, range)):
        return [canonical(item, seen) for item in value]
    state = (
        {field.name: getattr(value, field.name) for field in fields(value)}
        if is_dataclass(value)
        else vars(value)
    )
    return {
        name: canonical(item, seen)
        for name, item in state.items()
        if name not in ("now_s", "_story", "_waits", "waits", "_period")
    }


SPEC = JobSpec.from_flags(
    Action.TRAIN,
    {
        "model_zoo": "z",
        "model_def": "m",
        "training_data": "t",
        "validation_data": "v",
        "minibatch_size": 4,
        "num_workers": "1:3",
        "num_ps_pods": 2,
        "evaluation_steps": 3,
        "checkpoint_steps": 4,
        "output": "o",
        "export_seconds": 5,
        "num_epochs": 2,
        "max_failed_shards": 50,
        "max_relaunches": 50,
    },
)


class Script:
    """Draws events that are likely to matter: it follows the commands, and now and then makes
    something up.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.t = rng, 0.0
        self.first = beginning()
        self.likely: list[e.Event] = []
        self.granted: list[c.GrantLease] = []

    def heard(self, commands: list[Any]) -> None:
        for command in commands:
            match command:
                case c.StartProcess(name):
                    self.likely += [
                        e.ProcessAttached(0, name, "c", str(name), 0),
                        e.ProcessSeen(0, name, True, "n"),
                    ]
                    self.likely += [e.LeaseRequested(0, name)] * 5
                case c.GrantLease():
                    self.granted.append(command)
                case c.FenceWorker(name):
                    told = [
                        Applied(grant.lease.shard.id, grant.lease.attempt, 4)
                        for grant in self.granted
                        if grant.lease.shard
                    ]
                    self.likely.append(
                        e.WorkerFenced(0, name, (self.rng.choice([None, *told]),) * 2)
                    )
                case c.TakeSnapshot(snapshot):
                    self.likely.append(e.SnapshotCut(0, snapshot, 3, {}))
                case c.SaveSnapshot(snapshot):
                    self.likely.append(e.SnapshotSaved(0, snapshot, 3, f"p{snapshot}", 5))

    def next(self) -> e.Event:
        if self.first:
            return self.first.popleft()
        rng, self.t = self.rng, self.t + self.rng.choice([0.0, 0.1, 1.0, 20.0])
        name = ProcessName(rng.choice([Role.WORKER, Role.WORKER, Role.PS]), rng.randint(0, 4))
        roll = rng.random()
        if roll < 0.4 and self.likely:
            return self.at(self.likely.pop(rng.randrange(len(self.likely))))
        if roll < 0.7 and self.granted:
            return self.of_lease(rng.choice(self.granted[-4:]))
        return self.at(
            rng.choice(
                [
                    e.Tick(0),
                    e.Tick(0),
                    e.LeaseRequested(0, name),
                    e.ProcessSilent(0, name, 10.0),
                    e.ProcessEnded(0, name, ExitStatus(signal=9)),
                    e.ProcessEnded(0, name, ExitStatus(exit_code=64, log_tail="ValueError: x")),
                    e.CreateFailed(0, name, "quota", True),
                    e.VersionAdvanced(0, rng.randint(0, 30)),
                    e.SnapshotFailed(0, SnapshotId(rng.randint(0, 9)), "disk full"),
                    e.ScaleRequested(0, 1, rng.randint(1, 4)),
                    e.ReplaceRequested(0, name),
                    e.CheckpointRequested(0),
                    e.TaskFailed(0, name, Task.TRAINING, ShardId(rng.randint(0, 9)), 0, "boom"),
                    *(
                        [e.StopRequested(0, "enough"), e.WorkerStopRequested(0, name, "max steps")]
                        if self.t > 400
                        else []
                    ),
                ]
            )
        )

    def of_lease(self, grant: c.GrantLease) -> e.Event:
        lease, worker = grant.lease, grant.worker
        if lease.task is Task.SUMMARY:
            return e.SummaryReported(self.t, worker, present(lease.round), {"auc": 0.5})
        if lease.shard is None:
            problem = "disk full" if self.rng.random() < 0.3 else ""
            return e.ExportFinished(self.t, worker, f"o/{lease.round}", problem)
        applied = Applied(lease.shard.id, lease.attempt, self.rng.randint(0, lease.shard.records))
        if self.rng.random() < 0.1:
            return e.LeaseReturned(self.t, worker, applied, self.rng.random() < 0.5)
        done = self.rng.random() < 0.5
        offset = lease.shard.records if done else applied.offset
        metrics: dict[str, Any] = (
            {"auc": ((1.0, 2.0),)} if done and lease.task is Task.EVALUATION else {}
        )
        return e.ProgressReported(
            self.t,
            worker,
            lease.task,
            Applied(lease.shard.id, lease.attempt, offset),
            1,
            0.5,
            done=done,
            metrics=metrics,
        )

    def at(self, event: e.Event) -> e.Event:
        return type(event)(
            self.t,
            **{
                field.name: getattr(event, field.name)
                for field in fields(event)
                if field.name != "at_s"
            },
        )


def beginning() -> deque[e.Event]:
    """The first events of a job."""
    return deque[e.Event](
        (
            e.MasterStarted(0.0),
            e.Tick(0.0),
            e.PreflightProgressed(0.0, "counting records: 1 of 2 files"),
            e.JobStarted(0.0, (Source("a", 30), Source("b", 17)), (Source("v", 9),)),
        )
    )
