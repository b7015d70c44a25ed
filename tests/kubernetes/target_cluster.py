"""Where the Kubernetes tests run: in a cluster of their own in namespaces of this machine, or in
one that KUBECONFIG names.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.cluster.kubernetes.apiserver import ApiServer, connect
from elasticdl.cluster.kubernetes.plans import Owner
from tests.kubernetes import image
from tests.kubernetes.cluster import cluster as own
from tests.kubernetes.cluster import node

BUSYBOX = "localhost/busybox:test"
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class TargetCluster:
    """A cluster to test in. `own` is None where KUBECONFIG names it."""

    kubeconfig: Path
    own: own.Cluster | None
    busybox: str

    def kubectl(self, *arguments: str, text: str | None = None, timeout_s: float = 60) -> str:
        """As the administrator; its standard output. Raises RuntimeError."""
        if self.own is not None:
            return self.own.kubectl(*arguments, text=text, timeout_s=timeout_s)
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=timeout_s
        )
        if done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def read(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def make_namespace(self, name: str) -> None:
        """One that enforces the restricted Pod Security standard, ready for pods: it has its
        service account.
        """
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": name, "labels": labels}
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        self.kubectl("create", "-f", "-", text=json.dumps(made))
        # By a controller, which on a busy machine takes its time.
        account = ("serviceaccount/default", "--timeout=150s")
        self.kubectl("-n", name, "wait", "--for=create", *account, timeout_s=160)

    def wait_until_reachable(self, limit_s: float = 60) -> None:
        """Until the API server answers (again).

        Raises RuntimeError with what was last said instead.
        """
        self.insist("get", "--raw", "/readyz", limit_s=limit_s)

    def wait_until_node_is_back(self, limit_s: float = 90) -> None:
        """Until the kubelet answers again, which logs and connections to pods go through, and pods
        are placed on its node again.
        """
        self.insist("get", "--raw", f"/api/v1/nodes/{node.NODE}/proxy/healthz", limit_s=limit_s)
        deadline_s = time.monotonic() + limit_s
        # A controller takes away what it tainted the node with while that was silent.
        while taints := self.read("node", node.NODE)["spec"].get("taints"):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"after {limit_s:g} s the node still has the taints {taints}")
            time.sleep(0.5)

    def insist(self, *arguments: str, text: str | None = None, limit_s: float = 60) -> str:
        """kubectl, again until it succeeds: what it needs may come a moment later.

        Raises RuntimeError with what was last said.
        """
        deadline_s = time.monotonic() + limit_s
        while True:
            try:
                return self.kubectl(*arguments, text=text)
            except RuntimeError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.5)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This thread, and what it starts, is in the cluster's network for as long as the context
        lasts.
        """
        if self.own is None:
            yield
            return
        with (
            open("/proc/thread-self/ns/net") as before,
            open(f"/proc/{self.own.pid}/ns/net") as within,
        ):
            _set_namespace(within.fileno())
            try:
                yield
            finally:
                _set_namespace(before.fileno())

    async def connect(self, kubeconfig: Path | None = None) -> ApiServer:
        return await connect(kubeconfig=str(kubeconfig or self.kubeconfig))

    def owner(self, namespace: str, name: str = "job") -> Owner:
        """A Job that never starts a pod: the owner of those that a test makes."""
        template = {
            "metadata": {"labels": {"test": "owner"}},
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "process", "image": self.busybox}],
            },
        }
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"suspend": True, "template": template},
        }
        made = json.loads(self.kubectl("create", "-f", "-", "-o", "json", text=json.dumps(job)))
        return Owner(namespace, name, made["metadata"]["uid"])


def _set_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def why_not() -> str:
    """Why there is no cluster to test in; empty if there is."""
    return "" if os.environ.get("KUBECONFIG") else own.why_not()


@contextlib.contextmanager
def found() -> Iterator[TargetCluster]:
    """The cluster of KUBECONFIG, or one of our own with the images that tests need."""
    if given := os.environ.get("KUBECONFIG"):
        yield TargetCluster(
            Path(given), None, os.environ.get("ELASTICDL_TEST_BUSYBOX", "busybox:1.36")
        )
        return
    with own.running(image.store_folder()) as cluster:
        place = TargetCluster(cluster.kubeconfig, cluster, BUSYBOX)
        _import_busybox(cluster)
        yield place


def _import_busybox(cluster: own.Cluster) -> None:
    with tempfile.TemporaryDirectory() as folder:
        layer, programs = Path(folder, "layer"), Path(folder, "layer/bin")
        programs.mkdir(parents=True)
        (layer / "tmp").mkdir()
        shutil.copy("/bin/busybox", programs / "busybox")
        for name in ("sh", "sleep", "cat", "kill", "test", "touch", "dd", "tail", "echo", "seq"):
            (programs / name).symlink_to("busybox")
        node.oci_image(layer, Path(folder, "busybox.tar"), BUSYBOX, ["/bin/sh"])
        cluster.ctr("import", str(Path(folder, "busybox.tar")))


if __name__ == "__main__":
    print(why_not())
