"""One cluster for all tests of a session, a namespace for each test or for each file of short ones:
it enforces the restricted Pod Security standard.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl.cluster.kubernetes.plans import Owner
from tests.kubernetes import image, many_pods, target_cluster
from tests.kubernetes.cluster import leftovers
from tests.kubernetes.jobs import Jobs, jobs_in
from tests.kubernetes.target_cluster import TargetCluster

LONGEST_FIRST = (
    "takeover",
    "job_faults",
    "verbs",
    "training",
    "faults",
    "servers",
    "ring",
    "scale",
    "sharing",
    "gang",
    "placement",
    "contract",
    "image",
    "rights",
    "stop",
    "leftovers",
)
"""Files that take minutes, so that none of them is begun when the other processes have ended."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [index for index, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    names = {f"test_kubernetes_{name}": place for place, name in enumerate(LONGEST_FIRST)}
    ordered = sorted(
        (items[index] for index in ours), key=lambda item: names.get(item.path.stem, len(names))
    )
    for index, item in zip(ours, ordered, strict=True):
        items[index] = item


@contextlib.contextmanager
def _cluster(*, gangs: bool = False) -> Iterator[TargetCluster]:
    if reason := target_cluster.why_not():
        if os.environ.get("CI"):
            pytest.fail(f"in CI the Kubernetes tests must run, but {reason}")
        pytest.skip(reason)
    before = leftovers.elsewhere()
    with target_cluster.found(gangs=gangs) as place:
        yield place
    if place.own is not None:
        assert leftovers.found(place.own.state.name) == []
        assert leftovers.elsewhere() == before


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[TargetCluster]:
    with _cluster() as place:
        yield place


@pytest.fixture(scope="module")
def gang_cluster() -> Iterator[TargetCluster]:
    """A cluster whose control plane is newer and schedules gangs. The thread has entered it."""
    with _cluster(gangs=True) as place:
        if place.own is None:
            pytest.skip("a control plane with gangs needs the tests' own cluster")
        place.own.import_image(image.project_zoo())
        with place.entered():
            yield place


@pytest.fixture
def place(whole_cluster: TargetCluster) -> Iterator[TargetCluster]:
    with whole_cluster.entered():
        yield whole_cluster


@contextlib.contextmanager
def _namespace(place: TargetCluster) -> Iterator[str]:
    name = f"elasticdl-test-{uuid.uuid4().hex[:8]}"
    place.make_namespace(name)
    yield name
    place.delete("namespaces", name)


@pytest.fixture
def namespace(place: TargetCluster) -> Iterator[str]:
    with _namespace(place) as name:
        yield name


@pytest.fixture(scope="module")
def shared_namespace(whole_cluster: TargetCluster) -> Iterator[str]:
    """For files of many short tests: to make one takes seconds. Each test has its own job."""
    with _namespace(whole_cluster) as name:
        yield name


@pytest.fixture
def owner(place: TargetCluster, namespace: str) -> Owner:
    return place.owner(namespace, f"job-{uuid.uuid4().hex[:8]}")


@pytest.fixture(scope="session")
def elasticdl_image(whole_cluster: TargetCluster) -> str:
    """The project's image with a model zoo on top: the project's own modules, and those of
    `zoo/`.
    """
    if given := os.environ.get("ELASTICDL_TEST_IMAGE"):
        return given
    if whole_cluster.own is None:
        pytest.skip(
            "a cluster that KUBECONFIG names needs ELASTICDL_TEST_IMAGE, an image that it can pull"
        )
    whole_cluster.own.import_image(image.project_zoo())
    return image.ZOO


@pytest.fixture
def jobs(
    place: TargetCluster, namespace: str, elasticdl_image: str, tmp_path: Path
) -> Iterator[Jobs]:
    """Jobs in a namespace with docker/rbac.yaml and a volume."""
    if place.own is None:
        pytest.skip("only the tests' own cluster has a volume in a folder of this machine")
    with jobs_in(place, namespace, elasticdl_image, tmp_path / "volume") as made:
        yield made


@pytest.fixture
def fake_nodes(place: TargetCluster) -> Iterator[None]:
    if place.own is None:
        pytest.skip("simulated nodes need the tests' own cluster")
    with many_pods.fake_nodes(place):
        yield


@pytest.fixture
def two_fake_nodes(place: TargetCluster) -> Iterator[None]:
    """Kubernetes takes no node for lost if all are. With these, it may lose the real one."""
    if place.own is None:
        pytest.skip("simulated nodes need the tests' own cluster")
    with many_pods.fake_nodes(place, count=2):
        yield
