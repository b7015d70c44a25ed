"""A master's core on a bench: events go in by hand, commands are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from hypothesis import settings

from elasticdl.cluster.base import ExitStatus, ProcessName, Role
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_status import UpdateCounts
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.state import JobState
from elasticdl.shard import Applied, Lease, SnapshotId, Source, Task
from tests.present import present

# How long an example takes says how busy the machine is.
settings.register_profile("any machine", settings.default, deadline=None)
settings.load_profile("any machine")

TRAINING = (Source("a", 64),)
VALIDATION = (Source("v", 16),)
KILLED = ExitStatus(signal=9)


def worker(index: int) -> ProcessName:
    return ProcessName(Role.WORKER, index)


def ps(index: int, incarnation: int = 0) -> ProcessName:
    return ProcessName(Role.PS, index, incarnation)


class Bench:
    """Time stands still unless a test moves it. `given` has every command so far.

    `Bench(num_workers="1:3")` and `Bench(Action.EVALUATE)` make one.
    """

    worker, ps, KILLED = staticmethod(worker), staticmethod(ps), KILLED
    done: Lease
    held: Lease
    """Leases that a fixture took, for its tests."""

    def __init__(self, action: Action = Action.TRAIN, **flags: Any) -> None:
        base = {
            "model_zoo": "z",
            "model_def": "m",
            "minibatch_size": 8,
            "records_per_task": 16,
            "shuffle": "none",
        }
        base |= (
            {"training_data": "t"} if action is Action.TRAIN else {"checkpoint_dir_for_init": "c"}
        )
        base |= {"validation_data": "v"} if action is Action.EVALUATE else {}
        base |= {"prediction_data": "p", "output": "o"} if action is Action.PREDICT else {}
        self.spec = JobSpec.from_flags(action, base | flags)
        self.state, self.t = JobState(self.spec), 0.0
        self.given: list[c.Command] = []

    @classmethod
    def running(cls, workers: int = 1, action: Action = Action.TRAIN, **flags: Any) -> Bench:
        """A job whose servers and first `workers` have attached."""
        job = cls(action, **flags)
        job.up(workers)
        return job

    def put(self, event: e.Event) -> list[c.Command]:
        """Hand in an event at the present time, whatever time it names."""
        values = {
            field.name: getattr(event, field.name)
            for field in fields(event)
            if field.name != "at_s"
        }
        commands = self.state.handle(type(event)(self.t, **values))
        self.given += commands
        return commands

    def tick(self, seconds: float = 0.0) -> list[c.Command]:
        self.t += seconds
        return self.put(e.Tick(0))

    def start(
        self,
        *,
        ledger: str = "",
        version: int = 0,
        training: tuple[Source, ...] = TRAINING,
        **more: Any,
    ) -> list[c.Command]:
        return self.put(
            e.JobStarted(
                0,
                training,
                VALIDATION if self.spec.data.validation_data else (),
                (Source("p", 32),),
                ledger,
                version,
                **more,
            )
        )

    def attach(self, *names: ProcessName, restored: int | None = None) -> list[c.Command]:
        return [
            command
            for name in names
            for command in self.put(e.ProcessAttached(0, name, "c", f"at-{name}", restored))
        ]

    def up(self, workers: int = 1, **start: Any) -> None:
        """Start, and let all servers and the first `workers` attach."""
        self.start(**start)
        self.attach(*(ps(index) for index in range(self.spec.servers)))
        self.attach(*(worker(index) for index in range(workers)))

    def lease(self, index: int = 0) -> Lease:
        """Ask for a lease and get one."""
        commands = self.put(e.LeaseRequested(0, worker(index)))
        granted = [command.lease for command in commands if isinstance(command, c.GrantLease)]
        assert granted, commands
        return granted[0]

    def refused(self, index: int = 0) -> str:
        """Ask for a lease and be told why there is none."""
        commands = self.put(e.LeaseRequested(0, worker(index)))
        reasons = [command.reason for command in commands if isinstance(command, c.NoLeaseNow)]
        assert reasons, commands
        return reasons[0]

    def progress(self, index: int, lease: Lease, offset: int, **more: Any) -> list[c.Command]:
        applied = Applied(present(lease.shard).id, lease.attempt, offset)
        return self.put(e.ProgressReported(0, worker(index), lease.task, applied, **more))

    def pushed(
        self, index: int, pushes: int, met: Mapping[ProcessName, int] | None = None
    ) -> list[c.Command]:
        """A worker tells how many pushes all servers have, and before which it met a server."""
        addresses = {f"at-{name}": before for name, before in (met or {}).items()}
        return self.put(e.PushesReported(0, worker(index), pushes, addresses))

    def finish(self, index: int, lease: Lease, **more: Any) -> list[c.Command]:
        return self.progress(index, lease, present(lease.shard).records, done=True, **more)

    def train_all(self, index: int = 0) -> None:
        """One worker trains whatever is left."""
        while self.state.status().phase == "working":
            lease = self.lease(index)
            assert lease.task is Task.TRAINING
            self.finish(index, lease)

    def cut(
        self, version: int, applied: Any = None, pushes: dict[str, int] | None = None
    ) -> SnapshotId:
        """The cut that was ordered last is taken, at that version."""
        snapshot: SnapshotId = self.of(c.TakeSnapshot)[-1].snapshot
        self.put(e.SnapshotCut(0, snapshot, version, applied or {}, pushes or {}))
        return snapshot

    def saved(self, snapshot: SnapshotId, version: int) -> list[c.Command]:
        return self.put(e.SnapshotSaved(0, snapshot, version, f"version-{version}", 1000))

    def die(self, name: ProcessName, status: ExitStatus = KILLED) -> list[c.Command]:
        return self.put(e.ProcessEnded(0, name, status))

    def fenced(self, index: int, *told: Applied | None) -> list[c.Command]:
        return self.put(e.WorkerFenced(0, worker(index), told))

    def of(self, kind: type[c.Command], commands: list[c.Command] | None = None) -> list[Any]:
        return [
            command
            for command in (self.given if commands is None else commands)
            if isinstance(command, kind)
        ]

    def said(self, part: str) -> bool:
        """Whether people were told a line with that in it."""
        return any(part in command.text for command in self.of(c.Announce))

    @property
    def total(self) -> dict[str, int]:
        return asdict(self.state.receipt().total)

    @property
    def updates(self) -> UpdateCounts:
        """The receipt's updates, which the status has, too."""
        status, receipt = self.state.status(), self.state.receipt()
        assert status.updates == receipt.updates
        return present(status.updates)

    @property
    def finished(self) -> c.FinishJob | None:
        found = self.of(c.FinishJob)
        return found[0] if found else None

    @property
    def end(self) -> c.FinishJob:
        """The end of a job that has finished."""
        return present(self.finished)
