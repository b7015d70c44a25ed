"""Bases for kustomize with the objects of `setup_objects`, as files. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl.cluster.kubernetes.plans import Json
from elasticdl.cluster.kubernetes.setup_objects import (
    cluster_objects,
    guaranteed_quota,
    namespace_objects,
)
from elasticdl.yaml_documents import as_yaml

FIRST_LINE = "# Made by `elasticdl cluster setup --kustomize`, which writes it anew.\n"
_API = "kustomize.config.k8s.io"


def kustomize_files(namespace: str, guaranteed_pods: int | None) -> dict[str, str]:
    """Return the text of each file, by its path within the folder of the bases.

    Each begins with FIRST_LINE, which distinguishes it from files of other origin.

    `cluster` is applied once. `namespace` is the base of each team; '' leaves the namespace to its
    overlay. `quota` is a component: not every team has one. Without `guaranteed_pods` it is left
    out.
    """
    ladder, roles = _by_kind(cluster_objects())
    files = {
        "cluster/kustomization.yaml": _kustomization("ladder.yaml", "roles.yaml"),
        "cluster/ladder.yaml": _documents(ladder),
        "cluster/roles.yaml": _documents(roles),
        "namespace/kustomization.yaml": _kustomization("account.yaml", namespace=namespace),
        "namespace/account.yaml": _documents(namespace_objects("")),
    }
    if guaranteed_pods is not None:
        files["quota/kustomization.yaml"] = as_yaml(
            {"apiVersion": f"{_API}/v1alpha1", "kind": "Component", "resources": ["quota.yaml"]}
        )
        files["quota/quota.yaml"] = _documents([guaranteed_quota("", guaranteed_pods)])
    return {path: FIRST_LINE + text for path, text in files.items()}


def _by_kind(objects: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    classes = [manifest for manifest in objects if manifest["kind"] == "PriorityClass"]
    return classes, [manifest for manifest in objects if manifest["kind"] != "PriorityClass"]


def _documents(objects: Sequence[Json]) -> str:
    return "---\n".join(as_yaml(manifest) for manifest in objects)


def _kustomization(*resources: str, namespace: str = "") -> str:
    within = {"namespace": namespace} if namespace else {}
    kustomization = {"apiVersion": f"{_API}/v1beta1", "kind": "Kustomization", **within}
    return as_yaml({**kustomization, "resources": list(resources)})
