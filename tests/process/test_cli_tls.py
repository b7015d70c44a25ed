"""The command line verifies the master of a job on a cluster, through the port forwarding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl.cluster.kubernetes.plans import MASTER_PORT
from elasticdl.tls import MASTER_NAME
from elasticdl.tls.authority import Authority
from tests.contract import driver_stage
from tests.process.cluster_of_one import NAMESPACE, ClusterOfOne, cluster_of_one, encoded
from tests.process.test_cli_dashboard import LIMIT_S, start

pytestmark = pytest.mark.process
AUTHORITY = Authority.new("ads")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ClusterOfOne]:
    """With a job whose master serves its calls with TLS."""
    stage = driver_stage.Stage(tmp_path, certified=AUTHORITY.certified_key([MASTER_NAME]))
    with cluster_of_one() as found:
        monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig(tmp_path)))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        found.ports[MASTER_PORT] = int(stage.address.rpartition(":")[2])
        yield found
    stage.close()


def status(cluster: ClusterOfOne, folder: Path, authority: str | None) -> tuple[str, str]:
    """State and message of the job, for a command line that trusts this authority."""
    cluster.add_job("ads", authority)
    secret = cluster.objects.objects[f"/api/v1/namespaces/{NAMESPACE}/secrets/ads-token"]
    secret["data"]["ELASTICDL_TOKEN"] = encoded(driver_stage.TOKEN)
    process = start(folder, "status", "ads", "--namespace", NAMESPACE, "-o", "json")
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    found = json.loads(output)
    return found["state"], found["message"]


def test_a_master_that_the_secret_vouches_for_is_asked(
    cluster: ClusterOfOne, tmp_path: Path
) -> None:
    assert status(cluster, tmp_path, AUTHORITY.certificate)[1] == "fine"


@pytest.mark.parametrize(
    "authority,words",
    [
        (Authority.new("ads").certificate, "its TLS certificate is refused"),
        # The Secret says that the job has no TLS. That is no reason to send a token.
        (None, "does not answer"),
    ],
)
def test_another_master_is_not_asked_and_the_status_says_why(
    cluster: ClusterOfOne, tmp_path: Path, authority: str | None, words: str
) -> None:
    assert words in status(cluster, tmp_path, authority)[1]
