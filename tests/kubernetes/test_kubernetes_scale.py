"""Many pods from one master; `python -m bench kubernetes` measures five hundred."""

from __future__ import annotations

import pytest

from tests.kubernetes import many_pods
from tests.kubernetes.jobs import Jobs
from tests.kubernetes.target_cluster import TargetCluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]
PODS, DELETED = 50, 10


@pytest.mark.usefixtures("fake_nodes")
def test_one_master_makes_fifty_pods_and_replaces_those_that_are_deleted(
    place: TargetCluster, jobs: Jobs
) -> None:
    job = many_pods.submit(place, jobs, PODS)
    many_pods.until_placed(place, job, PODS, started=PODS)
    gone = {pod["name"] for pod in many_pods.workers(place, job)[:DELETED]}
    many_pods.delete(place, jobs.namespace, sorted(gone))
    many_pods.until_placed(place, job, PODS, started=PODS + DELETED)
    live = {pod["name"] for pod in many_pods.workers(place, job)}
    assert len(live) == PODS and not live & gone
