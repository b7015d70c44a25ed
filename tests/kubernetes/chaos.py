"""Whole jobs with random flags on the tests' own cluster, while their pods are taken away.

`python -m tests.kubernetes.chaos --jobs 20 --seed 1`

Masters, workers and servers are deleted by force, killed and evicted. Every fifth job loses the
node that its master runs on. What a job leaves must agree with the weights of its model, which
count the records. The exit code is 1 if one of them failed.

`--sync`: only synchronous jobs, each with a server's pod deleted by force.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasticdl.errors import ElasticDLError
from tests.fuzz_jobs.chaos import Role
from tests.fuzz_jobs.chaos import prepare as prepare_for_chaos
from tests.fuzz_jobs.command import Prepared, prepared
from tests.fuzz_jobs.flags import Draft, Strategy, draw
from tests.fuzz_jobs.running import Run, problems
from tests.kubernetes import image, many_pods, target_cluster
from tests.kubernetes.faults import (
    delete_by_force,
    evict_pod,
    kill,
    kill_master,
    lose_node,
    masters,
    name_of,
    processes,
)
from tests.kubernetes.jobs import DATA, Job, jobs_in
from tests.kubernetes.target_cluster import TargetCluster

_LEAST_STEPS = 40
_TRAINS_S, _TRAINS_WITHOUT_NODE_S = 40.0, 240.0
"""Roughly how long a job trains, so that strikes come during training."""
_LONGEST_PAUSE_S = 6.0
_MOST_STRIKES = 4
_JOB_LIMIT_S = 600.0
_VICTIM_LIMIT_S = 60.0
_NAME = "job"
_OF_ONE_MACHINE = ("job_name", "status_port", "tls")
"""Flags of a draft that mean something else on a cluster."""

_MISSED = ("(NotFound)", "not found", "not running", "completed pod")
"""What kubectl says of a pod or container that has just ended, or does not run yet."""

Blow = Callable[[Job, str], None]


def _kill_worker(job: Job, pod: str) -> None:
    kill(job, pod, "worker")


def _kill_server(job: Job, pod: str) -> None:
    kill(job, pod, "ps")


_BLOWS: Mapping[Role, tuple[Blow, ...]] = {
    Role.MASTER: (delete_by_force, kill_master, evict_pod),
    Role.WORKER: (delete_by_force, _kill_worker, evict_pod),
    # Twice: it is the hardest of them.
    Role.SERVER: (_kill_server, evict_pod, delete_by_force, delete_by_force),
}
_CUT_S = 0.5
"""How long a cut may take. One that was ordered before a worker's end may lack its last pushes."""
_MANY_JOBS = 10
"""Among so many some server is deleted by force."""


@dataclass(frozen=True)
class Strike:
    """What happens to one process of a role. `after_s`: since the strike before."""

    role: Role
    blow: Blow
    after_s: float


@dataclass
class Verdict:
    """What is wrong with a job: nothing, if `problems` is empty."""

    draft: Draft
    story: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    servers_by_force: int = 0
    """How many servers' pods were deleted by force."""

    def __str__(self) -> str:
        draft = self.draft
        return (
            f"{draft.strategy} seed {draft.seed}: {draft.rows} x {draft.epochs} records by"
            f" {draft.batch}, {draft.workers} workers, {', '.join(self.story) or 'undisturbed'},"
            f" {self.seconds:.0f} s"
        )


def drafted(seed: int, strategy: Strategy, *, sync: bool = False) -> Draft:
    """A job of enough steps to be struck. The same for the same numbers.

    `sync`: one of synchronous steps, with checkpoints that it can return to.
    """
    drafts = (draw(seed * 1000 + more, strategy) for more in itertools.count())
    draft = next(
        draft
        for draft in drafts
        if draft.steps >= _LEAST_STEPS
        and not draft.most_steps
        and (not sync or (draft.in_steps and draft.flags.get("checkpoint_seconds") != 0))
    )
    draft.seed, draft.in_file = seed, ()
    prepare_for_chaos(draft)
    trains_s = _TRAINS_WITHOUT_NODE_S if loses_node(draft) else _TRAINS_S
    draft.pause_s = min(_LONGEST_PAUSE_S, trains_s * _at_a_time(draft) / draft.steps)
    for name in _OF_ONE_MACHINE:
        draft.flags.pop(name, None)
    pause = f"COUNTING_PAUSE_S={draft.pause_s}"
    given = draft.flags.get("envs")
    draft.flags["envs"] = f"{given};{pause}" if given else pause
    draft.spelling = dict.fromkeys(draft.flags, "-")
    return draft


def _at_a_time(draft: Draft) -> int:
    """How many of the steps its workers make at a time: they may share each one."""
    shared = draft.on_ring or draft.in_steps
    return 1 if shared and draft.flags.get("global_batch") != "scaled" else draft.workers


def loses_node(draft: Draft) -> bool:
    """Whether the node that its master runs on stops."""
    return draft.seed % 5 == 0


def strikes(draft: Draft, *, by_force: bool = False) -> list[Strike]:
    """The same for the same draft. `by_force`: a server's pod is deleted by force, too."""
    choose = random.Random(f"strikes {draft.strategy} {draft.seed}")
    roles = [role for role in Role if not (role is Role.SERVER and draft.on_ring)]
    found = [Strike(Role.MASTER, lose_node, 0.0)] if loses_node(draft) else []
    for _ in range(choose.randint(1, _MOST_STRIKES)):
        role = choose.choice(roles)
        among = _BLOWS[role]
        if role is Role.SERVER and draft.flags.get("checkpoint_seconds") == 0:
            among = (_kill_server, evict_pod)
        after_s = choose.choice((0.0, choose.uniform(0, 4), choose.uniform(0, 15)))
        found.append(Strike(role, choose.choice(among), after_s))
    if by_force and delete_by_force not in [one.blow for one in found if one.role is Role.SERVER]:
        # A node is lost before all else: by then workers train.
        place = choose.randint(int(loses_node(draft)), len(found))
        found.insert(place, Strike(Role.SERVER, delete_by_force, choose.uniform(0, 8)))
    return found


class Striker:
    """Carries the strikes out while a job trains."""

    def __init__(self, job: Job, draft: Draft, strikes: Sequence[Strike]) -> None:
        self._job, self._draft, self._strikes = job, draft, strikes
        self._choose = random.Random(draft.seed)
        self._had: set[tuple[str, str]] = set()
        self.story: list[str] = []
        self.landed = self.struck = 0
        self._hits: Counter[Role] = Counter()
        self.servers_by_force = 0
        self.too_late = False
        """The job had ended before all was done."""

    @property
    def killed_workers(self) -> int:
        return self._hits[Role.WORKER]

    def carry_out(self) -> None:
        """Until all are done, or the job has ended."""
        self._job.until(
            "training has begun",
            lambda _: self._job.progress() > 0 or self._over(),
            limit_s=_JOB_LIMIT_S,
        )
        for strike in self._strikes:
            time.sleep(strike.after_s)
            end_s = time.monotonic() + _VICTIM_LIMIT_S
            while not self._over() and not self._strike(strike):
                if time.monotonic() > end_s:
                    why = "no checkpoint yet" if self._costs_updates(strike) else "nobody"
                    self.story.append(f"{why} to {_words(strike.blow)} a {strike.role}")
                    break
                time.sleep(0.5)
        self.too_late = self._over()

    def _over(self) -> bool:
        return (self._job.directory / "receipt.json").exists()

    def _strike(self, strike: Strike) -> bool:
        victims = self._victims(strike.role)
        if not victims or self._costs_updates(strike):
            return False
        victim = pod, _ = self._choose.choice(victims)
        try:
            strike.blow(self._job, pod)
        except RuntimeError as error:
            if strike.blow is lose_node or not any(words in str(error) for words in _MISSED):
                raise
            self.story.append(f"missed {pod}: {str(error)[-80:]}")
            return False
        self._had.add(victim)
        self.story.append(f"{_words(strike.blow)} {pod.removeprefix(f'{_NAME}-')}")
        self.landed += 1
        self.struck += strike.role is not Role.MASTER
        self._hits[strike.role] += 1
        by_force = strike.role is Role.SERVER and strike.blow is delete_by_force
        self.servers_by_force += by_force
        return True

    def _costs_updates(self, strike: Strike) -> bool:
        """Whether it would take the pushes of a worker with both the worker and a server.

        docs/how-to/kubernetes.md says so: there is no checkpoint since one of them was struck. A
        synchronous job needs no push: any checkpoint is one that it can return to.
        """
        if self._draft.in_steps:
            needs = strike.role is Role.SERVER and strike.blow is delete_by_force
            return needs and not self._cuts()
        if strike.role is Role.SERVER and strike.blow is delete_by_force:
            other = Role.WORKER
        elif strike.role is Role.WORKER and self.servers_by_force:
            other = Role.SERVER
        else:
            return False
        ends = [
            row["at"]
            for row in self._job.events()
            if row["details"].get("step") in ("ended", "lost")
            and row["process"].startswith(f"{other}-")
        ]
        cuts = self._cuts()
        return (
            len(ends) < self._hits[other] or not cuts or max(cuts) < max(ends, default=0.0) + _CUT_S
        )

    def _cuts(self) -> list[float]:
        """When the checkpoints that are complete were cut."""
        return [
            row["at"] - row["details"]["seconds"]
            for row in self._job.events()
            if row["kind"] == "checkpoint" and row["details"].get("step") == "saved"
        ]

    def _victims(self, role: Role) -> list[tuple[str, str]]:
        """Pods, each with what tells one process in it from the next; none: look again soon."""
        if role is Role.MASTER:
            # None while the Job has yet to replace one that was deleted.
            newest = [pod for pod in masters(self._job)[-1:] if _runs(pod)]
            found = [(name_of(pod), str(pod["metadata"]["uid"])) for pod in newest]
            return [one for one in found if one not in self._had]
        if role is Role.WORKER and self._draft.on_ring and not self._spare():
            return []
        begin = f"{_NAME}-{role}-"
        running = [(pod, "".join(process)) for pod, process in processes(self._job).items()]
        return sorted(one for one in running if one[0].startswith(begin) and one not in self._had)

    def _spare(self) -> bool:
        """Whether a ring has two members: the weights of the last one would go with it."""
        asked = self._job.jobs.elasticdl("status", _NAME, "-o", "json")
        ring = json.loads(asked.stdout).get("ring") if asked.returncode == 0 else None
        if not ring or ring["generation"] != ring["formed"]:
            return False
        had = {pod for pod, _ in self._had}
        there = {pod.removeprefix(f"{_NAME}-") for pod in set(processes(self._job)) - had}
        members = {name.partition(".")[0] for name in ring["members"]}
        return len(members) > 1 and members <= there


def _runs(pod: Mapping[str, Any]) -> bool:
    states = [one["state"] for one in pod["status"].get("containerStatuses", ())]
    return "deletionTimestamp" not in pod["metadata"] and any(
        "running" in state for state in states
    )


def _words(blow: Blow) -> str:
    return blow.__name__.strip("_").replace("_", " ")


_FAILURES = (
    AssertionError,
    RuntimeError,
    OSError,
    ValueError,
    subprocess.SubprocessError,
    ElasticDLError,
)


def run_job(place: TargetCluster, draft: Draft, strikes: Sequence[Strike], folder: Path) -> Verdict:
    """Run it in a namespace of its own, in an empty folder, and look at what it left."""
    namespace = f"elasticdl-chaos-{uuid.uuid4().hex[:8]}"
    verdict, begin_s = Verdict(draft), time.monotonic()
    place.make_namespace(namespace)
    try:
        with jobs_in(place, namespace, image.ZOO, folder / "volume") as jobs:
            files = prepared(draft, jobs.folder)
            arguments = [argument.replace(str(jobs.folder), DATA) for argument in files.arguments]
            job: Job | None = None
            try:
                job = jobs.submit(_NAME, *arguments)
                striker = Striker(job, draft, strikes)
                verdict.story = striker.story
                striker.carry_out()
                verdict.servers_by_force = striker.servers_by_force
                code, said = job.wait(_JOB_LIMIT_S)
                verdict.problems += _found(files, striker, code, said)
            except _FAILURES as error:
                verdict.problems.append(f"{type(error).__name__}: {error}")
            if verdict.problems and job is not None:
                verdict.problems.append(job.story())
    finally:
        place.delete("namespaces", namespace)
    verdict.seconds = time.monotonic() - begin_s
    return verdict


def _found(files: Prepared, striker: Striker, code: int, said: str) -> list[str]:
    if code != 0:
        return [f"exit code {code}: {said}"]
    if not striker.landed and not striker.too_late:
        return ["nothing happened to its pods"]
    run = Run(code, said, 0.0, kills=striker.killed_workers, struck=striker.struck)
    return problems(files, run, None)


def _one(place: TargetCluster, strategy: Strategy, seed: int, *, sync: bool) -> Verdict:
    """Run a job, and say how it went."""
    draft = drafted(seed, strategy, sync=sync)
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{strategy}-{seed}-"))
    folder.chmod(0o755)  # Pods are other users.
    verdict = run_job(place, draft, strikes(draft, by_force=sync), folder)
    if not verdict.problems:
        shutil.rmtree(folder)
        print(f"ok {verdict}", flush=True)
        return verdict
    print(
        f"FAILED {verdict}\nagain: python -m tests.kubernetes.chaos --strategy {strategy} --seed"
        f" {seed} --jobs 1{' --sync' * sync}\nleft in {folder}\n" + "\n".join(verdict.problems),
        flush=True,
    )
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20, help="number of jobs (default: 20)")
    parser.add_argument("--seed", type=int, default=None, help="of the first (default: by time)")
    parser.add_argument("--strategy", choices=[*Strategy, "both"], default="both")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="start no job after this many seconds"
    )
    parser.add_argument(
        "--sync",
        action="store_true",
        help="synchronous jobs through servers, each with a server deleted by force",
    )
    given = parser.parse_args()
    if reason := target_cluster.why_not():
        sys.exit(reason)
    first = int(time.time()) if given.seed is None else given.seed
    strategies = list(Strategy) if given.strategy == "both" else [Strategy(given.strategy)]
    if given.sync:
        if given.strategy == Strategy.RING:
            parser.error("--sync is about jobs through servers")
        strategies = [Strategy.PS]
    begin_s = time.monotonic()
    ended: list[Verdict] = []
    built = image.project_zoo()
    with target_cluster.found() as place, place.entered():
        if place.own is None:
            sys.exit("only the tests' own cluster may lose its node, unset KUBECONFIG")
        place.own.import_image(built)
        with many_pods.fake_nodes(place):
            for number in range(given.jobs):
                if time.monotonic() - begin_s > given.seconds:
                    break
                strategy = strategies[number % len(strategies)]
                ended.append(
                    _one(place, strategy, first + number // len(strategies), sync=given.sync)
                )
    failed = sum(bool(verdict.problems) for verdict in ended)
    by_force = sum(verdict.servers_by_force for verdict in ended)
    print(
        f"{len(ended)} jobs in {time.monotonic() - begin_s:.0f} s, {failed} failed;"
        f" {by_force} servers deleted by force"
    )
    missed = given.strategy != Strategy.RING and len(ended) >= _MANY_JOBS and not by_force
    return int(failed > 0 or missed)


if __name__ == "__main__":
    raise SystemExit(main())
