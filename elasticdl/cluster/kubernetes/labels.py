"""Names of a job's objects, and the labels that select them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticdl.cluster.base import ProcessName, Role

DOMAIN = "elasticdl.org"
JOB_LABEL = "app.kubernetes.io/instance"
JOB_UID_LABEL = f"{DOMAIN}/job-uid"
ROLE_LABEL = f"{DOMAIN}/role"
INDEX_LABEL = f"{DOMAIN}/index"
INCARNATION_LABEL = f"{DOMAIN}/incarnation"
PLACE_LABEL = f"{DOMAIN}/place"
"""The k of worker k on the priority ladder."""
MASTER = ProcessName(Role.MASTER, 0)
CHECK = "check"
"""Stands for a role in the pod that checks model and data: it is no process of the job."""
_HIGHEST_PLACE = 100_000
"""Somebody may have changed a label: places below it that nobody holds are kept in mind."""
SECRET_SIZE = 64
"""Processes whose tokens share a Secret."""


def pod_name(job: str, name: ProcessName) -> str:
    """`digits-worker-3`, `digits-ps-0-1`: a unique name for each incarnation of a process."""
    return f"{job}-{name.role}-{name.index}" + (f"-{name.incarnation}" if name.incarnation else "")


def secret_name(job: str) -> str:
    """The name of the Secret with the job's token, for its master and its owner."""
    return f"{job}-token"


def viewer_secret_name(job: str) -> str:
    """The name of the Secret with the viewer's token, which opens the page for reading only."""
    return f"{job}-viewer"


def process_secret_name(job: str, job_uid: str, name: ProcessName) -> str:
    """The name of the Secret with the token of a process and of its neighbours by index.

    The uid distinguishes it from the Secret of an earlier job of the same name.
    """
    first = name.index - name.index % SECRET_SIZE
    whose = f"{name.role}-{first}" + (f"-{name.incarnation}" if name.incarnation else "")
    return f"{job}-tokens-{job_uid[:8]}-{whose}"


def selector(job: str) -> dict[str, str]:
    """Labels that all pods of a job share, including its master's."""
    return {"app.kubernetes.io/name": "elasticdl", JOB_LABEL: job}


def master_selector(job: str) -> str:
    """Selects the pods of a job's master: several after a replacement; the newest counts."""
    return ",".join(
        f"{key}={value}" for key, value in {**selector(job), ROLE_LABEL: str(Role.MASTER)}.items()
    )


def check_labels(job: str) -> dict[str, str]:
    """The labels of the pod that checks model and data."""
    return _of_role(job, CHECK)


def labels(job: str, name: ProcessName) -> dict[str, str]:
    """The recommended labels and our own."""
    return {
        **_of_role(job, str(name.role)),
        INDEX_LABEL: str(name.index),
        INCARNATION_LABEL: str(name.incarnation),
    }


def _of_role(job: str, role: str) -> dict[str, str]:
    return {
        **selector(job),
        "app.kubernetes.io/component": role,
        "app.kubernetes.io/managed-by": "elasticdl",
        ROLE_LABEL: role,
    }


def parse_labels(values: Mapping[str, str]) -> ProcessName:
    """The inverse of `labels`. Raises ValueError or KeyError for a foreign pod.

    A master of a Job that a person wrote may lack the numbers.
    """
    return ProcessName(
        Role(values[ROLE_LABEL]),
        int(values.get(INDEX_LABEL, 0)),
        int(values.get(INCARNATION_LABEL, 0)),
    )


def ladder_place(values: Mapping[str, Any]) -> int | None:
    """The place on the priority ladder that a pod's labels say; None: they say none."""
    try:
        place = int(values[PLACE_LABEL])
    except (KeyError, ValueError):
        return None
    return place if 1 <= place <= _HIGHEST_PLACE else None


def plural(kind: str) -> str:
    """The name of a kind's collection: `networkpolicies`."""
    name = kind.lower()
    if name.endswith("y"):
        return f"{name.removesuffix('y')}ies"
    return f"{name}es" if name.endswith("s") else f"{name}s"


def collection(manifest: Mapping[str, Any], namespace: str) -> str:
    """The path of an object's collection on the API server; '': it is in no namespace."""
    version = str(manifest["apiVersion"])
    root = f"/api/{version}" if version == "v1" else f"/apis/{version}"
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{within}/{plural(manifest['kind'])}"
