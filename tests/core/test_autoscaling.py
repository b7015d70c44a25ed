"""A job with --autoscale: its reports are measured, and workers are started and sent away."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from elasticdl.cluster.base import ExitStatus, ProcessName, Role
from elasticdl.errors import SpecError
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.job_context import Limits
from elasticdl.master.core.state import JobState
from elasticdl.master.journal.rules import worth_keeping
from elasticdl.shard import Applied, Lease, Source
from tests.core.conftest import KILLED, Bench
from tests.core.random_history import canonical
from tests.present import present

pytestmark = pytest.mark.core

RECORDS = (Source("a", 10**7),)
FEW_RECORDS = (Source("a", 60_000),)
STEP_S, START_S = 0.5, 4.0


@dataclass
class Worker:
    """It reports every two seconds what it did, and leaves soon when it is asked to."""

    name: ProcessName
    attaches_s: float
    lease: Lease | None = None
    offset: int = 0
    attached: bool = False
    ends_s: float | None = None


@dataclass
class Running:
    """A job of which all workers share `limit` records a second, each at most 1,000."""

    job: Bench
    limit: float = 1e9
    per_server: float = 1e9
    """What a server holds, in records a second."""
    workers: dict[ProcessName, Worker] = field(default_factory=dict)
    journal: list[e.Event] = field(default_factory=list)
    begun: int = 0
    spent: dict[str, dict[str, float]] = field(default_factory=dict)
    new_servers: str = "start"
    """They `start`, `end` at once, or `never` start."""
    full: bool = False
    """Nothing more starts: the cluster has no room."""
    paced: list[c.SaveSnapshot] | None = None
    """Checkpoints that servers write with pauses; None: all are written at once."""

    def put(self, event: e.Event) -> list[c.Command]:
        commands = self.job.put(event)
        stored = type(event)(
            **{name: getattr(event, name) for name in event.__dataclass_fields__ if name != "at_s"},
            at_s=self.job.t,
        )
        if worth_keeping(stored, commands):
            self.journal.append(stored)
        for command in commands:
            self._carry_out(command)
        return commands

    def _serve(self, command: c.Command) -> None:
        """Servers start, load and restore as fast as they are told to."""
        match command:
            case c.StartProcess() if self.new_servers == "never":
                pass
            case c.StartProcess(name=name) if self.new_servers == "end":
                self.put(e.ProcessSeen(0, name, True))
                self.put(e.ProcessEnded(0, name, KILLED))
            case c.StartProcess(name=name):
                self.put(e.ProcessSeen(0, name, True))
                self.put(e.ServerStandsBy(0, name))
            case c.TakeSnapshot(snapshot=snapshot):
                self.put(e.SnapshotCut(0, snapshot, 1, {}))
            case c.SaveSnapshot(pause_s=pause_s) if pause_s and self.paced is not None:
                self.paced.append(command)
            case c.SaveSnapshot(snapshot=snapshot):
                self.put(e.SnapshotSaved(0, snapshot, 1, f"version-{snapshot}", 9))
            case c.LoadServers(servers=servers, directory=directory):
                for name in servers:
                    self.put(e.ServerStandsBy(0, name, directory))
            case c.RestoreServers(servers=servers):
                for name in servers:
                    self.put(e.ProcessAttached(0, name, str(name), f"at-{name}", 1))
            case c.FinishServers(servers=servers):
                for name in servers:
                    self.put(e.ProcessEnded(0, name, ExitStatus(exit_code=0)))
            case c.StopProcess(name=name):
                self.put(e.ProcessEnded(0, name, ExitStatus(exit_code=0)))

    def _tell_times(self) -> None:
        """Each worker's time: what servers that are too few keep it from doing is a wait."""
        able, held = 1000.0 * len(self.workers), self._held
        waited = max(0.0, 1.0 - held / able)
        attached = [worker.name for worker in self.workers.values() if worker.attached]
        for name in attached:
            account = self.spent.setdefault(str(name), {"pull.servers": 0.0, "compute.step": 0.0})
            account["pull.servers"] += 10.0 * waited
            account["compute.step"] += 10.0 * (1.0 - waited)
        self.put(e.TimeReported(0, {str(name): dict(self.spent[str(name)]) for name in attached}))

    @property
    def _held(self) -> float:
        return min(self.limit, self.per_server * self.job.state._context.servers)

    def begin(self, training: tuple[Source, ...] = RECORDS) -> Running:
        self.put(e.JobStarted(0, training))
        self.put(e.ProcessAttached(0, self.job.ps(0), "c", "at-ps-0", None))
        return self

    def run(self, seconds: float) -> Running:
        for _ in range(round(seconds / STEP_S)):
            self.job.t += STEP_S
            for worker in list(self.workers.values()):
                self._live(worker)
            if self.job.t % 1.0 == 0.0:
                self.put(e.Tick(0))
            if self.job.t % 10.0 == 0.0 and self.workers:
                self._tell_times()
        return self

    def run_until(self, over: Callable[[], bool], limit_s: float = 600.0) -> None:
        """Raises AssertionError after `limit_s` of the job's time."""
        end_s = self.job.t + limit_s
        while not over():
            assert self.job.t < end_s, self.decisions
            self.run(STEP_S)

    def take_over(self) -> None:
        """Another master continues from an image, and the journal leads to the same state."""
        twin, spec = JobState(self.job.spec), self.job.spec
        for event in self.journal:
            twin.handle(event)
        assert canonical(twin) == canonical(self.job.state)
        image = json.loads(json.dumps(self.job.state.image(spec)))
        started = present(self.job.state.started)
        self.job.state = JobState.from_image(spec, Limits(), started, image)

    def _carry_out(self, command: c.Command) -> None:
        match command:
            case c.StartProcess(name=name) if name.role is Role.WORKER:
                self.workers[name] = Worker(name, self.job.t + START_S)
            case c.StopProcess(name=name) if name in self.workers:
                self.workers[name].ends_s = self.job.t + 1.0
            case c.GrantLease(worker=name, lease=lease):
                self.workers[name].lease, self.workers[name].offset = lease, 0
            case c.StartProcess(name=name) | c.StopProcess(name=name) if name.role is Role.PS:
                if name != self.job.ps(0) or isinstance(command, c.StopProcess):
                    self._serve(command)
            case _:
                self._serve(command)

    def _live(self, worker: Worker) -> None:
        if worker.ends_s is not None and self.job.t >= worker.ends_s:
            self._leave(worker)
        elif not worker.attached and self.job.t >= worker.attaches_s and not self.full:
            worker.attached = True
            self.put(e.ProcessSeen(0, worker.name, True))
            self.put(e.ProcessAttached(0, worker.name, instance="1"))
        elif worker.attached and worker.lease is None:
            self.put(e.LeaseRequested(0, worker.name))
        elif worker.attached and (self.job.t + worker.name.index * STEP_S) % 2.0 == 0.0:
            self._report(worker)

    def _report(self, worker: Worker) -> None:
        assert worker.lease is not None
        shard = present(worker.lease.shard)
        at_work = sum(worker.lease is not None for worker in self.workers.values())
        rate = min(1000.0, self._held / at_work)
        worker.offset = min(shard.records, worker.offset + round(2.0 * rate))
        done = worker.offset == shard.records
        applied = Applied(shard.id, worker.lease.attempt, worker.offset)
        task = worker.lease.task
        self.put(e.ProgressReported(0, worker.name, task, applied, version=1, done=done))
        if done:
            worker.lease = None
            self.put(e.LeaseRequested(0, worker.name))

    def _leave(self, worker: Worker) -> None:
        del self.workers[worker.name]
        if worker.lease is not None:
            applied = Applied(present(worker.lease.shard).id, worker.lease.attempt, worker.offset)
            self.put(e.LeaseReturned(0, worker.name, applied))
        self.put(e.ProcessEnded(0, worker.name, ExitStatus(exit_code=0)))

    @property
    def scale(self) -> Any:
        return self.job.state.status().scale

    @property
    def decisions(self) -> list[str]:
        announced = self.job.of(c.Announce)
        return [one.details["decision"] for one in announced if "decision" in one.details]


def running(limit: float = 1e9, **flags: Any) -> Running:
    base = {"num_workers": "1:4", "autoscale": True, "records_per_task": 4000}
    return Running(Bench(**{**base, "checkpoint_seconds": 0, **flags}), limit)


def test_a_job_begins_with_the_fewest_workers_and_takes_more_while_they_pay() -> None:
    job = running().begin()
    assert (job.scale.autoscaled, job.scale.requested) == (1, 1)
    job.run(150.0)
    assert job.decisions == ["try_more", "keep", "try_more", "keep"]
    assert (job.scale.autoscaled, job.scale.observed) == (4, 4)
    assert "keeping 4 workers: the last 2 added 100" in present(job.scale.reason)


def test_checkpoints_that_servers_write_with_pauses_do_not_disturb_trials() -> None:
    """One is under way at nearly any time, and one ends in each interval."""
    job = running(checkpoint_steps=1).begin()
    job.paced, ended = [], 0
    for version in range(2, 150):
        job.put(e.VersionAdvanced(0, version))
        job.run(1.0)
        for save in job.paced:
            path = f"version-{version}"
            job.put(e.SnapshotSaved(0, save.snapshot, version, path, 9, paused_s=0.9))
        ended += len(job.paced)
        job.paced.clear()
    assert ended > 140
    assert job.decisions == ["try_more", "keep", "try_more", "keep"]


def test_a_worker_that_adds_nothing_is_given_back_within_a_minute() -> None:
    job = running(limit=1000.0).begin()
    job.run_until(lambda: len(job.workers) > 1)
    begun_s = job.job.t
    job.run_until(lambda: len(job.workers) < 2)
    assert job.job.t - begun_s - START_S < 60.0
    assert job.decisions == ["try_more", "give_back"]
    (end,) = (one for one in job.job.of(c.StopProcess) if one.name == job.job.worker(1))
    assert end.reason == "scaled down to 1 worker"
    (told,) = (one for one in job.job.of(c.Announce) if "give_back" in one.details.values())
    assert (told.kind, told.details["step"], told.details["workers"]) == ("scale", "autoscaled", 1)
    assert abs(told.details["gain"]) < 0.05
    assert job.job.state.receipt().total.repeated == 0


def test_without_the_flag_nothing_is_measured() -> None:
    job = running(autoscale=False, limit=1000.0).begin().run(100.0)
    assert (job.scale.autoscaled, job.scale.observed, job.decisions) == (None, 4, [])


def test_another_master_continues_where_its_predecessor_was() -> None:
    """At any moment: what the journal has leads to the same state, and so does an image."""
    job = running(limit=2000.0).begin()
    for _ in range(12):
        job.run(11.0)
        job.take_over()
    assert job.decisions[:4] == ["try_more", "keep", "try_more", "give_back"]


def test_a_worker_that_is_pending_is_not_judged() -> None:
    job = running().begin().run(8.0)
    job.full = True
    job.run(300.0)
    assert job.decisions == ["try_more"]
    job.full = False
    job.run(40.0)
    assert job.decisions[:2] == ["try_more", "keep"]


def test_a_user_who_scales_sets_other_bounds() -> None:
    job = running(limit=1000.0).begin().run(20.0)
    job.put(e.ScaleRequested(0, 3, 3))
    job.run(120.0)
    assert (job.scale.autoscaled, job.scale.observed) == (3, 3)
    assert job.decisions[-1] == "follow"
    job.put(e.ScaleRequested(0, 1, 2))
    job.run(20.0)
    assert job.scale.observed <= 2


def test_no_worker_is_tried_shortly_before_the_end() -> None:
    job = running().begin(FEW_RECORDS).run(100.0)
    assert job.decisions == []
    assert job.job.state.receipt().total.trained == 60_000


def test_a_stopped_job_decides_nothing_more() -> None:
    job = running().begin().run(16.0)
    job.put(e.StopRequested(0, "enough"))
    job.run(60.0)
    assert job.decisions in ([], ["try_more"])
    assert not job.workers


def on_servers(per_server: float, **flags: Any) -> Running:
    job = running(**{"num_workers": 4, "num_ps_pods": "1:4", **flags})
    job.per_server = per_server
    return job.begin()


def servers_of(job: Running) -> int:
    rows = job.job.state.status().processes
    return sum(row.role == "ps" and row.cause is None for row in rows)


def test_servers_are_added_while_workers_wait_for_them_and_they_pay() -> None:
    job = on_servers(per_server=1600.0).run(200.0)
    assert job.decisions == ["try_more", "keep", "try_more", "keep"]
    assert servers_of(job) == 3, "4 workers need no more"
    told = [one for one in job.job.of(c.Announce) if "decision" in one.details]
    assert told[0].details["servers"] == 2 and told[0].details["before_servers"] == 1
    assert "trying 2 parameter servers" in told[0].text
    assert "workers wait for servers 60 % of their time" in told[0].text
    assert not job.job.of(c.KeepServers), "a resumed job chooses again"
    assert job.job.state.receipt().total.repeated == 0


def test_no_server_is_tried_if_workers_hardly_wait() -> None:
    job = on_servers(per_server=3900.0).run(300.0)
    assert job.decisions == []


def test_workers_are_tried_first_and_then_again_with_more_servers() -> None:
    """Two workers are as fast as three while there is one server; with two, four pay."""
    job = on_servers(per_server=2000.0, num_workers="1:4", num_ps_pods="1:2").run(600.0)
    told = [one.details for one in job.job.of(c.Announce) if "decision" in one.details]
    kept = [(one.get("workers"), one.get("servers")) for one in told if one["decision"] == "keep"]
    assert (4, None) in kept and (None, 2) in kept
    assert (job.scale.observed, servers_of(job)) == (4, 2)


def test_servers_that_do_not_help_are_given_back() -> None:
    """Workers wait for them, but something that all servers share is the limit."""
    job = on_servers(per_server=2000.0, limit=2000.0).run(100.0)
    assert job.decisions == ["try_more", "give_back"]
    assert servers_of(job) == 1
    assert job.job.state.receipt().total.repeated == 0


def test_a_worker_that_leaves_does_not_count_against_servers() -> None:
    job = on_servers(per_server=1600.0)
    job.run_until(lambda: job.decisions == ["try_more"] and servers_of(job) == 2)
    job.full = True
    job._leave(next(iter(job.workers.values())))
    job.run(60.0)
    assert job.decisions == ["try_more"], "three workers are no measure"
    job.full = False
    job.run(60.0)
    assert job.decisions[:2] == ["try_more", "keep"]


def test_the_status_says_why_no_other_number_is_tried() -> None:
    job = on_servers(per_server=1e9)
    assert job.scale.holds_back is None
    job.run(24.0)
    assert job.scale.holds_back == "1 parameter server: being measured"
    job.run(16.0)
    assert job.scale.holds_back == (
        "1 parameter server: workers wait for servers 0 % of their time, too little for one more"
    )
    both = on_servers(per_server=1600.0, num_workers="4:5").run(40.0)
    assert both.scale.holds_back is None, "there is a trial"
    both.run(120.0)
    assert both.scale.holds_back == (
        "5 workers: the most that the range allows; 2 parameter servers: one more was tried and did"
        " not pay, so the next trial is later"
    )


def test_a_job_in_synchronous_steps_says_why_it_keeps_its_servers() -> None:
    job = on_servers(per_server=1000.0)
    job.job.state._context.spec = job.job.spec.replace(sync=True)
    job.run(100.0)
    told = [one.text for one in job.job.of(c.Announce) if "keeping" in one.text]
    assert len(told) == 1 and "keeping 1 parameter server: the job trains in synch" in told[0]
    assert "1 parameter server: the job trains in synch" in (job.scale.holds_back or "")


def test_a_person_who_changes_the_servers_ends_the_choice() -> None:
    job = on_servers(per_server=1000.0)
    job.put(e.ScaleServersRequested(0, 3))
    job.run(200.0)
    assert servers_of(job) == 3 and job.decisions == [], "nor is the person's number a decision"
    assert job.job.of(c.KeepServers) == [c.KeepServers(3)]


def test_a_person_may_ask_for_the_number_that_was_chosen() -> None:
    job = on_servers(per_server=1600.0).run(200.0)
    decisions = job.decisions
    job.put(e.ScaleServersRequested(0, 3))
    job.run(5.0)
    assert job.job.of(c.KeepServers) == [c.KeepServers(3)], "a resumed job begins with it"
    job.run(600.0)
    assert job.decisions == decisions


def test_a_person_ends_a_trial_of_servers_and_workers_are_tried_again() -> None:
    job = on_servers(per_server=1600.0, num_workers="2:4")
    job.put(e.ScaleRequested(0, 2, 2))
    job.run_until(lambda: job.decisions == ["try_more"] and servers_of(job) == 2)
    job.put(e.ScaleServersRequested(0, 2))
    job.put(e.ScaleRequested(0, 2, 4))
    job.run(200.0)
    assert job.scale.observed > 2 and servers_of(job) == 2


@pytest.mark.parametrize(
    "servers, why", [("never", "none came within 600 s"), ("end", "after 3 tries")]
)
def test_servers_that_do_not_start_cost_a_trial_and_no_more(servers: str, why: str) -> None:
    job = on_servers(per_server=1600.0, num_workers="1:2")
    job.new_servers = servers
    job.run_until(lambda: job.job.said(why), limit_s=900.0)
    assert (job.scale.observed, servers_of(job)) == (2, 1)
    tried = len(job.decisions)
    job.put(e.ScaleRequested(0, 1, 4))
    job.run(100.0)
    assert "try_more" in job.decisions[tried:], "workers are tried again"
    job.new_servers = "start"
    job.run_until(lambda: servers_of(job) > 1, limit_s=900.0)


def test_another_range_of_workers_ends_a_trial_of_servers() -> None:
    job = on_servers(per_server=1600.0)
    job.run_until(lambda: job.decisions == ["try_more"] and servers_of(job) == 2)
    job.put(e.ScaleRequested(0, 3, 3))
    job.run(5.0)
    assert job.decisions == ["try_more", "give_back", "follow"]
    assert job.job.said("another number of workers was requested")


def test_another_master_continues_a_trial_of_servers() -> None:
    job = on_servers(per_server=1600.0)
    for _ in range(18):
        job.run(11.0)
        job.take_over()
    assert job.decisions == ["try_more", "keep", "try_more", "keep"]


@pytest.mark.parametrize(
    "flags, why",
    [
        ({"autoscale": False}, "without --autoscale"),
        ({"sync": True}, "with --sync"),
        ({"num_ps_pods": "0:2"}, "from its start, or none"),
        ({"num_ps_pods": "1:2000"}, "at most 1000"),
        ({"num_ps_pods": "3:2"}, "MIN 3 is greater than MAX 2"),
        ({"image_name": "i", "model_zoo": "/z"}, "needs a place for checkpoints"),
    ],
)
def test_a_range_of_servers_that_cannot_be_used_is_refused(flags: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        Bench(**{"num_ps_pods": "1:4", "num_workers": 2, "autoscale": True, **flags})


@pytest.mark.parametrize("action", [Action.TRAIN, Action.PREDICT])
def test_a_range_is_needed(action: Action) -> None:
    with pytest.raises(SpecError, match="--autoscale with --num-workers 3") as refused:
        Bench(action, num_workers=3, autoscale=True)
    assert "--num-workers 1:4" in (refused.value.hint or "")
