"""Where the Kubernetes tests run: in a cluster of their own in namespaces of this machine, or in
one that KUBECONFIG names.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import http.client
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.cluster.kubernetes.apiserver import ApiServer, connect
from elasticdl.cluster.kubernetes.plans import Owner
from tests.kubernetes import image
from tests.kubernetes.cluster import cluster as own
from tests.kubernetes.cluster import node
from tests.waiting import until

BUSYBOX = "localhost/busybox:test"
CALL_LIMIT_S = 60.0
_CLONE_NEWNET = 0x40000000
_GROUPS = {
    "jobs": "batch/v1",
    "leases": "coordination.k8s.io/v1",
    "networkpolicies": "networking.k8s.io/v1",
    "podgroups": "scheduling.k8s.io/v1beta1",
    "priorityclasses": "scheduling.k8s.io/v1",
}
"""Kinds that are not of the core API."""


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

    def read(
        self,
        kind: str,
        name: str = "",
        *,
        namespace: str = "",
        selector: str = "",
        fields: str = "",
    ) -> Any:
        """An object, or without a name the list of a kind ("pods"), of a namespace or of all.

        `selector` and `fields` choose by labels and fields. Raises RuntimeError.
        """
        query = urllib.parse.urlencode({"labelSelector": selector, "fieldSelector": fields})
        path = _path(_GROUPS.get(kind, "v1"), kind, namespace)
        return json.loads(self.call("GET", f"{path}/{name}" if name else f"{path}?{query}"))

    def create(self, body: dict[str, Any], namespace: str = "") -> Any:
        """Make an object, in its own namespace if none is given; what became of it.

        Raises RuntimeError.
        """
        kind = body["kind"].lower()
        kinds = f"{kind}es" if kind.endswith("s") else f"{kind}s"
        path = _path(body["apiVersion"], kinds, namespace or body["metadata"].get("namespace", ""))
        # As kubectl does: an unknown field is an error.
        return json.loads(self.call("POST", f"{path}?fieldValidation=Strict", json.dumps(body)))

    def delete(self, kind: str, name: str, *, namespace: str = "") -> None:
        """Delete an object, and do not wait for its end. Raises RuntimeError."""
        self.call("DELETE", f"{_path(_GROUPS.get(kind, 'v1'), kind, namespace)}/{name}")

    def call(self, method: str, path: str, body: str = "") -> str:
        """What the API server answers. Raises RuntimeError."""
        if self.own is None:
            verb = {"GET": "get", "POST": "create", "PUT": "replace", "DELETE": "delete"}[method]
            given = ("-f", "-") if body else ()
            return self.kubectl(verb, "--raw", path, *given, text=body or None)
        # A process of kubectl takes a tenth of a second of CPU time, and tests look often.
        try:
            status, said = self._exchange(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            raise RuntimeError(f"{method} {path}: {error}") from error
        if status >= http.HTTPStatus.BAD_REQUEST:
            raise RuntimeError(f"{method} {path}: HTTP error {status}: {said}")
        return said

    def _exchange(self, method: str, path: str, body: str) -> tuple[int, str]:
        """The status and the answer. Raises OSError and HTTPException."""
        server, authority, token = _access(self.kubeconfig)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

        def ask(connection: http.client.HTTPSConnection) -> tuple[int, str]:
            with contextlib.ExitStack() as ending, self.entered():
                ending.callback(connection.close)
                connection.request(method, path, body.encode() or None, headers)
                answer = connection.getresponse()
                said = answer.read().decode(errors="replace")
                if method == "GET":
                    ending.pop_all()
                    _idle[self.kubeconfig].append(connection)
                return answer.status, said

        # A handshake takes 2 ms of CPU time, here and in the API server.
        if method == "GET" and (kept := _idle_connection(self.kubeconfig)) is not None:
            # The API server may have closed it meanwhile. Only what changes nothing is asked again.
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                return ask(kept)
        address = urllib.parse.urlsplit(server).netloc
        return ask(http.client.HTTPSConnection(address, context=authority, timeout=CALL_LIMIT_S))

    def make_namespace(self, name: str) -> None:
        """One that enforces the restricted Pod Security standard, ready for pods: it has its
        service account.
        """
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": name, "labels": labels}
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        # By a controller, which on a busy machine takes its time.
        until(
            f"namespace {name} has its service account",
            lambda: self.read("serviceaccounts", namespace=name)["items"],
            150.0,
            every_s=0.1,
        )

    def wait_until_reachable(self, limit_s: float = 60) -> None:
        """Until the API server answers (again).

        Raises RuntimeError with what was last said instead.
        """
        _insist(lambda: self.call("GET", "/readyz"), limit_s)

    def wait_until_node_is_back(self, limit_s: float = 90) -> None:
        """Until the kubelet answers again, which logs and connections to pods go through, and pods
        are placed on its node again.
        """
        _insist(lambda: self.call("GET", f"/api/v1/nodes/{node.NODE}/proxy/healthz"), limit_s)
        deadline_s = time.monotonic() + limit_s
        # A controller takes away what it tainted the node with while that was silent.
        while taints := self.read("nodes", node.NODE)["spec"].get("taints"):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"after {limit_s:g} s the node still has the taints {taints}")
            time.sleep(0.2)

    def insist(self, body: dict[str, Any], namespace: str = "", limit_s: float = 10) -> None:
        """Make an object, again until it succeeds: what it names (a priority class) may be so new
        that the API server's own checks have not heard of it.

        Raises RuntimeError with what was last said.
        """
        _insist(lambda: self.create(body, namespace), limit_s)

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
        return Owner(namespace, name, self.create(job)["metadata"]["uid"])


def _insist(call: Callable[[], object], limit_s: float) -> None:
    """Call again until it succeeds. Raises RuntimeError with what was last said instead."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            call()
            return
        except RuntimeError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


def _path(version: str, kind: str, namespace: str) -> str:
    """Of the objects of a kind in an API server."""
    group = f"/api/{version}" if version == "v1" else f"/apis/{version}"
    return f"{group}/namespaces/{namespace}/{kind}" if namespace else f"{group}/{kind}"


_idle: defaultdict[Path, list[http.client.HTTPSConnection]] = defaultdict(list)
"""To the API servers of our own clusters, by kubeconfig: for the next call of any thread."""


def _idle_connection(kubeconfig: Path) -> http.client.HTTPSConnection | None:
    try:
        return _idle[kubeconfig].pop()
    except IndexError:
        return None


@functools.cache
def _access(kubeconfig: Path) -> tuple[str, ssl.SSLContext, str]:
    """The address of the API server of our own cluster, the certificates to trust, the token."""
    config = json.loads(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = ssl.create_default_context(cafile=cluster["certificate-authority"])
    return cluster["server"], authority, user["token"]


def _set_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def why_not() -> str:
    """Why there is no cluster to test in; empty if there is."""
    return "" if os.environ.get("KUBECONFIG") else own.why_not()


@contextlib.contextmanager
def found(*, gangs: bool = False) -> Iterator[TargetCluster]:
    """The cluster of KUBECONFIG, or one of our own with the images that tests need.

    `gangs`: if it is ours, it is one that can schedule gangs.
    """
    if given := os.environ.get("KUBECONFIG"):
        yield TargetCluster(
            Path(given), None, os.environ.get("ELASTICDL_TEST_BUSYBOX", "busybox:1.36")
        )
        return
    with own.running(image.store_folder(), gangs=gangs) as cluster:
        place = TargetCluster(cluster.kubeconfig, cluster, BUSYBOX)
        _import_busybox(cluster)
        try:
            yield place
        finally:
            for kubeconfig in _idle:
                while (connection := _idle_connection(kubeconfig)) is not None:
                    connection.close()


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
