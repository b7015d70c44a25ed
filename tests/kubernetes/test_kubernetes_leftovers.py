"""A cluster leaves nothing on the machine: not when it is stopped, and not for long when whoever
ran it was killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kubernetes import target_cluster
from tests.kubernetes.cluster import cluster, leftovers
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]
LIMIT_S = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def killed() -> Iterator[str]:
    """The name of a cluster with a running pod, whose test run was ended by SIGKILL."""
    program = (
        "import time; from tests.kubernetes import target_cluster\n"
        "with target_cluster.found() as p:\n  print(p.own.state, flush=True); time.sleep(600)"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    state = Path(run.stdout.readline().strip())
    started = cluster.Cluster(_first_process(state.name), state, _programs(), run)
    try:
        _run_a_pod(started.kubectl)
        assert {"process", "cgroup", "folder"} <= _kinds(state.name)
    finally:
        run.kill()
        run.wait()
        run.stdout.close()
    yield state.name


def _programs() -> Path:
    built = subprocess.run(
        [cluster.HERE / "programs/build"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return Path(built.stdout.strip())


def _first_process(name: str) -> int:
    """The one that is PID 1 of the cluster's namespaces."""
    found = [
        pid
        for pid in leftovers.processes(name)
        if f"NSpid:\t{pid}\t1\n" in Path(f"/proc/{pid}/status").read_text()
    ]
    assert len(found) == 1, found
    return found[0]


def _kinds(name: str) -> set[str]:
    return {line.split()[0] for line in leftovers.found(name)}


def _run_a_pod(kubectl: Callable[..., str]) -> None:
    container = {
        "name": "process",
        "image": target_cluster.BUSYBOX,
        "command": ["sleep", "600"],
        "imagePullPolicy": "Never",
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "sleeper"},
        "spec": {"containers": [container]},
    }
    kubectl("wait", "--for=create", "serviceaccount/default", f"--timeout={LIMIT_S:g}s")
    kubectl("create", "-f", "-", text=json.dumps(pod))
    kubectl("wait", "--for=condition=Ready", "pod/sleeper", f"--timeout={LIMIT_S:g}s")


def test_what_a_killed_cluster_left_is_removed_and_what_has_an_owner_stays(
    request: pytest.FixtureRequest,
) -> None:
    """That a cluster which is stopped leaves nothing is seen at the end of each test run:
    `conftest.py`.
    """
    if os.environ.get("KUBECONFIG"):
        pytest.skip("the cluster that KUBECONFIG names is not ours to kill")
    if reason := target_cluster.why_not():
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    place = request.getfixturevalue("whole_cluster")
    before = leftovers.elsewhere()
    name = request.getfixturevalue("killed")
    until("the kernel ends its processes", lambda: not leftovers.processes(name))
    assert _kinds(name) == {"cgroup", "folder"}
    # As each start does first. Other runs' clusters beside us may be faster.
    leftovers.clean_up()
    assert leftovers.found(name) == []
    assert "process" in _kinds(place.own.state.name)
    place.call("GET", "/readyz")
    assert leftovers.elsewhere() == before
