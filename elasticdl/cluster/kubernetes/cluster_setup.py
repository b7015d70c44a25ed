"""Create what a cluster lacks of the objects that jobs need; again, it changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import final

from elasticdl.cluster.kubernetes.apiserver import ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.labels import collection, plural
from elasticdl.cluster.kubernetes.plans import Json
from elasticdl.errors import ClusterRefused

_AT_ONCE = 16
_CLUSTER_WIDE = ("PriorityClass", "ClusterRole", "ClusterRoleBinding")
_COMPARED = ("value", "preemptionPolicy", "rules", "roleRef", "subjects", "spec")
_FIXED = {"PriorityClass": ("value", "preemptionPolicy"), "RoleBinding": ("roleRef",)}
_FIXED["ClusterRoleBinding"] = _FIXED["RoleBinding"]
"""Fields that the API server does not change."""


class SetupResult(StrEnum):
    """What became of an object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@final
@dataclass(frozen=True, slots=True)
class SetUp:
    """An object, and what became of it."""

    kind: str
    name: str
    result: SetupResult


async def set_up(api: ApiServer, objects: Sequence[Json], namespace: str) -> tuple[SetUp, ...]:
    """Create or update the objects, those of namespaces in `namespace`.

    The first one goes alone, so that a user without the rights changes nothing.

    Raises ClusterRefused without the rights, or if an object exists that cannot be changed, and
    ApiAway.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(manifest: Json) -> SetUp:
        async with turns:
            return await _one(api, manifest, namespace)

    first = [await in_turn(manifest) for manifest in objects[:1]]
    return (*first, *await asyncio.gather(*(in_turn(manifest) for manifest in objects[1:])))


async def _one(api: ApiServer, manifest: Json, namespace: str) -> SetUp:
    kind, name = str(manifest["kind"]), str(manifest["metadata"]["name"])
    within = manifest["metadata"].get("namespace") or namespace
    path = collection(manifest, "" if kind in _CLUSTER_WIDE else within)
    try:
        await api.create(path, manifest)
        return SetUp(kind, name, SetupResult.CREATED)
    except ApiRefused as refused:
        if refused.status.code != 409:
            raise _refused(refused, f"create {kind} {name}") from refused
    try:
        existing = await api.get(f"{path}/{name}")
        if _same(manifest, existing):
            return SetUp(kind, name, SetupResult.UNCHANGED)
        _refuse_fixed(manifest, existing)
        kept = {**manifest, "metadata": existing["metadata"]}
        await api.replace(f"{path}/{name}", kept)
        return SetUp(kind, name, SetupResult.CHANGED)
    except ApiRefused as refused:
        raise _refused(refused, f"update {kind} {name}") from refused


def _same(manifest: Json, existing: Json) -> bool:
    return all(existing.get(key) == manifest.get(key) for key in _COMPARED if key in manifest)


def _refuse_fixed(manifest: Json, existing: Json) -> None:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    space = manifest["metadata"].get("namespace", "")
    within = f" -n {space}" if space else ""
    after = "; existing pods keep their priority" if kind == "PriorityClass" else ""
    for key in _FIXED.get(kind, ()):
        if existing.get(key) != manifest[key]:
            raise ClusterRefused(
                f"{kind} {name} exists with {key} {existing.get(key)!r}, expected"
                f" {manifest[key]!r}, and Kubernetes does not change it",
                hint=f"kubectl delete {plural(kind)} {name}{within}, then run this again{after}",
            )


def _refused(refused: ApiRefused, what: str) -> ClusterRefused:
    if refused.status.code == 403:
        return ClusterRefused(
            f"you may not {what}: {refused.message}",
            hint=(
                "ask the cluster's administrator to run `elasticdl cluster setup`, or to apply what"
                " `elasticdl cluster setup --dry-run` prints"
            ),
        )
    return ClusterRefused(f"the cluster refuses to {what}: {refused.message}")
