"""A control plane of a Kubernetes with gangs of its own, for experiments with simulated nodes.

It has an API server and a scheduler, and nothing that runs processes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster import cluster, node
from tests.kubernetes.target_cluster import TargetCluster

API_PORT, ETCD_PORT, ETCD_PEER_PORT, SCHEDULER_PORT = 6543, 2479, 2480, 10359
START_LIMIT_S = 120


@contextlib.contextmanager
def running(
    place: TargetCluster, *, gangs: bool = True, scheduler: Mapping[str, Any] | None = None
) -> Iterator[TargetCluster]:
    """The control plane, while the context lasts. This thread has `entered` the cluster.

    Without `gangs` it has the features that its version has by default. `scheduler`: fields of its
    scheduler's KubeSchedulerConfiguration.
    """
    assert place.own is not None, "it runs in the network of the tests' own cluster"
    programs = cluster.built("gang_programs")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        state = Path(folder)
        _copy_identities(place.own.state, state)
        for command in _api_server(state, place.own.programs, programs, gangs):
            stack.enter_context(_child(command, state))
        made = replace(place.own, state=state)
        found = TargetCluster(made.kubeconfig, made, place.busybox)
        # A scheduler that asks too early gives up for good where the machine is busy.
        found.wait_until_reachable(START_LIMIT_S)
        command = _scheduler(state, programs, scheduler or {})
        more = node.GANGS["kube-scheduler"] if gangs else ()
        stack.enter_context(_child([*command, *more], state))
        yield found


def _copy_identities(own: Path, state: Path) -> None:
    """Keys and tokens of the tests' cluster; its certificate is for all ports of the address."""
    for name in ("ca.crt", "ca.key", "sa.key", "tokens.csv"):
        shutil.copy(own / name, state / name)
    for token in ("admin", "scheduler"):
        text = node.kubeconfig(token, state / "ca.crt")
        (state / f"{token}.kubeconfig").write_text(text.replace(":6443", f":{API_PORT}"))


def _api_server(state: Path, common: Path, programs: Path, gangs: bool) -> Iterator[list[str]]:
    client, peer = (f"http://127.0.0.1:{port}" for port in (ETCD_PORT, ETCD_PEER_PORT))
    yield [
        f"{common}/etcd", f"--data-dir={state}/etcd", "--unsafe-no-fsync", "--log-level=warn",
        f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]  # fmt: skip
    yield [
        f"{programs}/kube-apiserver", f"--etcd-servers={client}", f"--secure-port={API_PORT}",
        f"--advertise-address={node.NODE_ADDRESS}", "--authorization-mode=RBAC",
        f"--token-auth-file={state}/tokens.csv", f"--tls-cert-file={state}/ca.crt",
        f"--tls-private-key-file={state}/ca.key", f"--cert-dir={state}/certs",
        f"--service-account-key-file={state}/sa.key",
        f"--service-account-signing-key-file={state}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={node.SERVICES}",
        # No controller makes service accounts here, or takes the taints of new nodes away.
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        *(node.GANGS["kube-apiserver"] if gangs else ()),
    ]  # fmt: skip


def _scheduler(state: Path, programs: Path, given: Mapping[str, Any]) -> list[str]:
    client = {**given.get("clientConnection", {}), "kubeconfig": f"{state}/scheduler.kubeconfig"}
    settings = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        **given,
        "clientConnection": client,
        "leaderElection": {"leaderElect": False},
    }
    (state / "scheduler.json").write_text(json.dumps(settings))
    return [
        f"{programs}/kube-scheduler", f"--config={state}/scheduler.json",
        f"--secure-port={SCHEDULER_PORT}", f"--cert-dir={state}/certs",
    ]  # fmt: skip


@contextlib.contextmanager
def _child(command: list[str], state: Path) -> Iterator[None]:
    """A program that ends with the context, or with this process."""
    with (state / f"{Path(command[0]).name}.log").open("ab") as log:
        # It is not in the namespaces that end with the cluster.
        child = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        child.kill()
        child.wait()
