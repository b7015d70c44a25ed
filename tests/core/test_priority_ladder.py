"""The ladder as pure functions, and what strict priorities make of it: the bounds that
docs/explanation/sharing.md proves.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.cli.main import run
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.cluster.kubernetes.labels import PLACE_LABEL
from elasticdl.cluster.kubernetes.planning import pod_plan
from elasticdl.cluster.kubernetes.setup_objects import cluster_objects, namespace_objects
from elasticdl.cluster.kubernetes.worker_places import WorkerPlaces
from elasticdl.cluster.priority_ladder import (
    LAST_LEVELS,
    RUNGS,
    class_of,
    classes_of,
    ladder_classes,
    rung_of,
    share_of,
)
from elasticdl.errors import SpecError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_status import ClusterShare

pytestmark = pytest.mark.core
VALUES = {priority_class.name: priority_class.value for priority_class in ladder_classes()}
RBAC = Path(__file__).parents[2] / "docker/rbac.yaml"


def job(**flags: Any) -> JobSpec:
    needed = {"model_def": "m", "training_data": "t", "image_name": "i", "job_name": "j"}
    return JobSpec.from_flags(Action.TRAIN, {**needed, "priority_ladder": "on", **flags})


def test_a_higher_rung_gives_way_to_every_lower_one_and_all_to_masters_and_servers() -> None:
    names = ["elasticdl-master", "elasticdl-guaranteed"]
    assert list(VALUES) == [*names, *(f"elasticdl-rung-{rung}" for rung in range(1, RUNGS + 1))]
    values = list(VALUES.values())
    assert values == sorted(set(values), reverse=True)


def test_training_gives_way_to_whatever_has_no_class_and_buys_no_nodes() -> None:
    assert max(VALUES.values()) < -10, (
        "the cluster autoscaler's default cutoff for pods that are not worth a node"
    )
    classes = [one for one in cluster_objects() if one["kind"] == "PriorityClass"]
    assert {
        priority_class["metadata"]["name"]: priority_class["value"] for priority_class in classes
    } == VALUES
    assert not any(priority_class.get("globalDefault") for priority_class in classes)
    assert {priority_class["preemptionPolicy"] for priority_class in classes} == {
        "PreemptLowerPriority"
    }


def test_rungs_are_exact_up_to_32_workers_and_then_a_sixteenth_longer_each() -> None:
    assert [rung_of(k) for k in (1, 2, 32, 33, 34, 35)] == [1, 2, 32, 33, 33, 34]
    assert LAST_LEVELS[-1] >= 16_384 and RUNGS < 160
    assert rung_of(10**9) == RUNGS == rung_of(LAST_LEVELS[-1])


@given(st.integers(1, LAST_LEVELS[-1]), st.integers(1, 1000))
def test_a_rung_spans_one_level_or_a_sixteenth_of_those_below(level: int, weight: int) -> None:
    worker = level * weight
    rung = rung_of(worker, weight)
    assert rung == rung_of(level) == rung_of(worker - weight + 1, weight)
    below = LAST_LEVELS[rung - 2] if rung > 1 else 0
    assert below < level <= LAST_LEVELS[rung - 1] <= below + max(1, below / 16)


@pytest.mark.parametrize(
    ("workers", "weight", "rungs"),
    [("4", 1, ["", 2, 3, 4]), ("2:5", 1, ["", "", 3, 4, 5]), ("1:5", 2, ["", 1, 2, 2, 3])],
)
def test_the_first_worker_or_min_workers_are_guaranteed_and_the_others_stand_on_rungs(
    workers: str, weight: int, rungs: list[Any]
) -> None:
    spec = job(num_workers=workers, weight=weight)
    expected = [f"elasticdl-rung-{rung}" if rung else "elasticdl-guaranteed" for rung in rungs]
    places = range(1, len(rungs) + 1)
    assert [class_of(spec, Role.WORKER, place) for place in places] == expected
    assert pod_plan(spec, Role.MASTER).placement.priority_class == "elasticdl-master"
    assert pod_plan(spec, Role.PS, 2).placement.priority_class == "elasticdl-guaranteed"
    named = ("elasticdl-master", "elasticdl-guaranteed", *expected)
    assert classes_of(spec) == tuple(dict.fromkeys(named))


def test_a_class_that_the_user_names_takes_precedence_and_off_means_none() -> None:
    mine = job(worker_pod_priority="team-{rung}", master_pod_priority="high", num_workers="2:99")
    assert [class_of(mine, Role.WORKER, place) for place in (1, 2, 99)] == [
        "team-1",
        "team-2",
        "team-32",
    ]
    assert class_of(mine, Role.MASTER, 1) == "high"
    for use in ("off", "auto"):
        assert classes_of(job(priority_ladder=use)) == (), "auto is settled before it is used"


@pytest.mark.parametrize(
    ("flags", "placed", "guaranteed", "rung"),
    [
        ({"num_workers": "2:20"}, 2, 2, None),
        ({"num_workers": "2:20"}, 7, 2, 7),
        ({"num_workers": "2:20", "weight": 3}, 7, 2, 3),
        ({"num_workers": "2:20", "priority_ladder": "off"}, 7, None, None),
        ({"num_workers": "2:20", "worker_pod_priority": "spot"}, 7, None, None),
        ({"num_workers": "2:20", "worker_pod_priority": "own-{rung}"}, 7, 0, 7),
    ],
)
def test_a_share_is_what_the_jobs_own_pods_tell(
    flags: dict[str, Any], placed: int, guaranteed: int | None, rung: int | None
) -> None:
    share = share_of(job(**flags), placed)
    assert share == ClusterShare(flags.get("weight", 1), placed, 2, 20, guaranteed, rung)


@pytest.mark.parametrize(
    "flags", [{"priority_ladder": "off"}, {"worker_pod_priority": "high"}], ids=str
)
def test_a_weight_without_rungs_is_refused(flags: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="--weight 2, but the workers have no rungs"):
        job(weight=2, **flags)
    assert job(**flags).kubernetes.weight == 1


def test_a_weight_counts_on_rungs_that_the_user_names_or_the_cluster_may_have() -> None:
    for flags in ({"priority_ladder": "auto"}, {"worker_pod_priority": "high-{rung}"}):
        assert job(weight=2, **flags).kubernetes.weight == 2


def test_processes_take_the_lowest_free_places_and_keep_them() -> None:
    places = WorkerPlaces()
    workers = [ProcessName(Role.WORKER, index) for index in range(40)]
    assert [places.of(worker) for worker in workers[:4]] == [1, 2, 3, 4]
    places.ended(workers[1])
    places.ended(workers[0])
    assert [places.of(workers[index]) for index in (4, 3, 5, 6)] == [1, 4, 2, 5]
    assert places.of(ProcessName(Role.PS, 0)) == 1


def test_the_next_master_finds_the_places_of_pods_on_their_labels() -> None:
    places = WorkerPlaces()
    for index, place in ((7, "2"), (8, "4"), (9, "no"), (10, ""), (11, "-1"), (12, "9" * 12)):
        places.observed(ProcessName(Role.WORKER, index), {PLACE_LABEL: place})
    places.observed(ProcessName(Role.WORKER, 13), {})
    assert [places.of(ProcessName(Role.WORKER, index)) for index in (20, 21, 22, 7)] == [1, 3, 5, 2]
    places.ended(ProcessName(Role.WORKER, 8))
    assert places.of(ProcessName(Role.WORKER, 23)) == 4
    assert pod_plan(job(), Role.WORKER, 3).labels == {PLACE_LABEL: "3"}


@dataclass
class Jobs:
    """Workers of equal size that compete for slots, as strict priorities have it."""

    wishes: list[int]
    weights: list[int]
    slots: int

    def __post_init__(self) -> None:
        self.running: list[tuple[int, int, int]] = []
        """(rung, job, place) of each."""
        self.preemptions = 0

    def settle(self, arrived: int, random_: random.Random) -> None:
        """Pending workers of the first jobs take free slots or preempt any lower priority."""
        while waiting := [one for one in self._pending(arrived) if self._victims(one)]:
            newcomer = random_.choice(waiting)
            victims = self._victims(newcomer)
            if len(self.running) == self.slots:
                self.running.remove(random_.choice(victims))
                self.preemptions += 1
            self.running.append(newcomer)

    def _pending(self, arrived: int) -> list[tuple[int, int, int]]:
        every = [
            (rung_of(place, self.weights[job]), job, place)
            for job in range(arrived)
            for place in range(1, self.wishes[job] + 1)
        ]
        return [one for one in every if one not in self.running]

    def _victims(self, newcomer: tuple[int, int, int]) -> list[Any]:
        """[None]: there is a free slot."""
        if len(self.running) < self.slots:
            return [None]
        return [one for one in self.running if one[0] > newcomer[0]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3)), min_size=2, max_size=5),
    st.integers(1, 24),
    st.randoms(use_true_random=False),
)
def test_strict_priorities_share_fairly_and_come_to_rest_whomever_they_preempt(
    wanted: list[tuple[int, int]], slots: int, random_: random.Random
) -> None:
    jobs = Jobs([wish for wish, _ in wanted], [weight for _, weight in wanted], slots)
    for arrived in range(1, len(wanted) + 1):
        # It returns: two jobs that preempted each other in turn would never end.
        jobs.settle(arrived, random_)
    rungs = {rung for rung, _, _ in jobs.running}
    assert jobs.preemptions <= slots * max(12, *rungs), "each raises the priority in one slot"
    assert len(jobs.running) == min(slots, sum(jobs.wishes)), "full"
    held = Counter(job for _, job, _ in jobs.running)
    for one, (wish, weight) in enumerate(wanted):
        for other in range(len(wanted)):
            if held[one] < wish:
                share, others = held[one] / weight, held[other] / jobs.weights[other]
                assert others <= share + 1, "within one rung"


def test_bases_for_kustomize_have_the_objects_of_the_setup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["cluster", "setup", "--kustomize", str(tmp_path / "bases")]
    assert run([*command, "--guaranteed-pods", "3", "--namespace", "a"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert sorted(listed) == sorted(map(str, (tmp_path / "bases").rglob("*.yaml")))
    bases = {
        path.parent.name: yaml.safe_load(path.read_text())
        for path in map(Path, listed)
        if path.stem == "kustomization"
    }
    objects = {
        name: [
            one
            for file in base["resources"]
            for one in yaml.safe_load_all((tmp_path / "bases" / name / file).read_text())
        ]
        for name, base in bases.items()
    }
    *account, quota = namespace_objects("", 3)
    assert objects == {"cluster": list(cluster_objects()), "namespace": account, "quota": [quota]}
    assert bases["namespace"]["namespace"] == "a"
    assert run(["cluster", "setup", "--dry-run", "--guaranteed-pods", "3"]) == 0
    printed = yaml.safe_load_all(capsys.readouterr().out)
    assert list(printed) == [one for base in objects.values() for one in base]


def test_bases_replace_earlier_ones_and_no_other_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["cluster", "setup", "--kustomize", str(tmp_path)]
    assert run(command) == run([*command, "--namespace", "b"]) == 0
    account = tmp_path / "namespace/kustomization.yaml"
    assert yaml.safe_load(account.read_text())["namespace"] == "b"
    own = tmp_path / "cluster/kustomization.yaml"
    account.unlink()
    for text in (b"resources: [mine.yaml]", b"\xff is no UTF-8"):
        own.write_bytes(text)
        assert run(command) == 2
        assert f"{own} exists" in capsys.readouterr().err
        assert own.read_bytes() == text
    assert not account.exists()


@pytest.mark.parametrize(
    ("more", "words"), [([], "cannot write"), (["--dry-run"], "--kustomize writes")]
)
def test_bases_that_cannot_be_written_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    (tmp_path / "cluster").write_text("")
    assert run(["cluster", "setup", "--kustomize", str(tmp_path), *more]) == 2
    assert words in capsys.readouterr().err


def test_the_roles_of_the_setup_are_those_of_the_file_for_kubectl() -> None:
    _, expected, _ = yaml.safe_load_all(RBAC.read_text())
    (role,) = (one for one in namespace_objects("team-a") if one["kind"] == "Role")

    def rights(found: Any) -> set[tuple[str, str, str]]:
        return {
            (group, resource, verb)
            for rule in found["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    assert rights(role) == rights(expected)
