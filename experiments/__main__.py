"""`python -m experiments NAME [--small] [-o json]`: the last line of JSON has the figures.

Needs what `make test-kubernetes` needs: Linux, root and Go.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from dataclasses import replace

from elasticdl.cluster.kubernetes.cluster_setup import set_up
from elasticdl.cluster.kubernetes.setup_objects import cluster_objects
from experiments import edl1, elasticdl1
from experiments.figures import Figures
from tests.kubernetes import many_pods, target_cluster
from tests.kubernetes.target_cluster import TargetCluster

EXPERIMENTS = {"elasticdl1": elasticdl1.run, "edl1": edl1.run}
NAMESPACE = "elasticdl-experiment"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("name", choices=sorted(EXPERIMENTS))
    parser.add_argument("--small", action="store_true", help="In seconds instead of minutes.")
    parser.add_argument("-o", dest="form", choices=("table", "json"), default="table")
    given = parser.parse_args()
    if os.environ.get("KUBECONFIG"):
        sys.exit("unset KUBECONFIG: simulated nodes need a cluster of the experiment's own")
    if reason := target_cluster.why_not():
        sys.exit(reason)
    with target_cluster.found() as place, place.entered(), many_pods.fake_nodes(place):
        place.make_namespace(NAMESPACE)
        found = asyncio.run(run(place, given.name, small=given.small))
    _print(found, given.form)


async def run(place: TargetCluster, name: str, *, small: bool) -> Figures:
    """Run an experiment on a cluster with simulated nodes."""
    api = await place.connect()
    try:
        await set_up(api, cluster_objects(), NAMESPACE)
        found = await EXPERIMENTS[name](api, place, NAMESPACE, small=small)
        return replace(found, settings={"experiment": name, "small": small})
    finally:
        await api.close()


def _print(found: Figures, form: str) -> None:
    row = found.as_row()
    if form == "json":
        print(json.dumps({key: _rounded(value) for key, value in row.items()}))
        return
    for key, value in row.items():
        print(f"{key:<16} {_rounded(value)}")


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
