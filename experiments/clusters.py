"""A cluster of simulated nodes for an experiment: a control plane, and nothing that runs
containers.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, Protocol

from elasticdl.cluster.kubernetes.cluster_setup import set_up
from elasticdl.cluster.kubernetes.setup_objects import cluster_objects
from experiments.cluster_experiment import Lab
from experiments.figures import Figures
from tests.kubernetes import gang_control_plane, many_pods, target_cluster
from tests.kubernetes.cluster import cluster
from tests.kubernetes.jobs import RBAC
from tests.kubernetes.target_cluster import TargetCluster

NAMESPACE = "elasticdl-experiment"
DRAIN = Path(__file__).parent / "pod-drain.yaml"


class Run(Protocol):
    def __call__(self, lab: Lab, *, small: bool) -> Awaitable[Figures]: ...


def on_cluster(
    run: Run, *, small: bool, gangs: bool = False, scheduler: Mapping[str, Any] | None = None
) -> Figures:
    """Run an experiment on a control plane of its own, in a network of its own.

    `scheduler`: see `gang_control_plane.running`.
    """
    if os.environ.get("KUBECONFIG"):
        sys.exit("unset KUBECONFIG: simulated nodes need a cluster of the experiment's own")
    if reason := target_cluster.why_not():
        sys.exit(reason)
    with cluster.running(bare=True) as own:
        network = TargetCluster(own.kubeconfig, own, "")
        with (
            network.entered(),
            gang_control_plane.running(network, gangs=gangs, scheduler=scheduler) as place,
            many_pods.fake_nodes(place, DRAIN),
        ):
            place.kubectl("create", "namespace", NAMESPACE)
            return measured(place, NAMESPACE, run, small=small)


def measured(place: TargetCluster, namespace: str, run: Run, *, small: bool) -> Figures:
    """Run an experiment in a namespace of a cluster with simulated nodes."""

    async def main(folder: Path) -> Figures:
        api = await place.connect()
        try:
            await set_up(api, cluster_objects(), namespace)
            return await run(Lab(api, place, namespace, folder), small=small)
        finally:
            await api.close()

    place.kubectl("-n", namespace, "apply", "-f", "-", text=RBAC)
    with tempfile.TemporaryDirectory(prefix="elasticdl-experiment-") as folder:
        return asyncio.run(main(Path(folder)))
