"""What a job's flags ask of Kubernetes: `JobSpec` in, plans and the one object to submit out.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from elasticdl.cluster.base import ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.labels import MASTER
from elasticdl.cluster.kubernetes.manifests import job, pod
from elasticdl.cluster.kubernetes.plans import (
    Identity,
    Image,
    JobPlan,
    Json,
    Owner,
    Placement,
    PodPlan,
    Resources,
    Volume,
)
from elasticdl.cluster.kubernetes.pod_spec import CONTAINER
from elasticdl.cluster.kubernetes.priority_ladder import PLACEHOLDER
from elasticdl.cluster.kubernetes.submit_command import with_commands
from elasticdl.errors import SpecError, UserError
from elasticdl.formatting import amount
from elasticdl.job import JobSpec
from elasticdl.kubernetes_section import Mount

SPEC_VARIABLE = "ELASTICDL_JOB"
MASTER_COMMAND = ("python3", "-m", "elasticdl.master.main")
GRACE_S = {Role.MASTER: 60, Role.WORKER: 30, Role.PS: 30}
"""A master that has to leave takes a checkpoint first."""
LONGEST_SPEC_BYTES = 96 << 10
"""The kernel gives a process no variable of more than 128 KiB."""


def pod_plan(spec: JobSpec, role: Role, rung: int = 1) -> PodPlan:
    """All that the pods of a role have in common, and their rung of the priority ladder where the
    job asks for one.
    """
    asked = spec.kubernetes
    mounts = tuple(_volumes(asked.volume))
    return PodPlan(
        Image(asked.image_name, str(asked.image_pull_policy), asked.image_pull_secrets),
        Resources(
            getattr(asked, f"{role}_resource_request"), getattr(asked, f"{role}_resource_limit")
        ),
        Placement(
            getattr(asked, f"{role}_pod_priority").replace(PLACEHOLDER, str(rung)),
            asked.node_selector,
            asked.tolerations,
            asked.affinity,
        ),
        Identity(
            asked.service_account if role is Role.MASTER else "",
            asked.run_as_user or None,
            (asked.fs_group or None) if mounts else None,
        ),
        mounts,
        spec.cluster.envs,
        GRACE_S[role],
    )


def _volumes(mounts: tuple[Mount, ...]) -> Iterator[Volume]:
    """A source that is mounted at several places is one volume."""
    sources: list[Json] = []
    for mount in mounts:
        source = _source(mount)
        if source not in sources:
            sources.append(source)
        yield Volume(
            f"volume-{sources.index(source)}",
            source,
            mount.mount_path,
            mount.sub_path,
            mount.read_only,
        )


def _source(mount: Mount) -> Json:
    if mount.claim_name:
        return {"persistentVolumeClaim": {"claimName": mount.claim_name}}
    if mount.host_path:
        return {
            "hostPath": {"path": mount.host_path, **({"type": mount.type} if mount.type else {})}
        }
    return dict(mount.source)


def job_object(spec: JobSpec, namespace: str) -> Json:
    """The Job to submit.

    `spec` has a name and a directory. An empty namespace is left to whoever creates it.

    Raises SpecError for a job that is too long to be told to a pod.
    """
    text = with_commands(spec).model_dump_json()
    if len(text.encode()) > LONGEST_SPEC_BYTES:
        raise SpecError(
            f"the job is {amount(len(text.encode()), 'byte')} of JSON, and a pod is told at most"
            f" {LONGEST_SPEC_BYTES}",
            hint=(
                "put long values of --model-params, --data-reader-params and --envs into files of"
                " the image"
            ),
        )
    plan = JobPlan(
        namespace,
        spec.cluster.job_name,
        pod_plan(spec, Role.MASTER),
        ttl_s=spec.kubernetes.ttl_seconds,
    )
    return job(plan, ProcessSpec(MASTER, MASTER_COMMAND, env={SPEC_VARIABLE: text}))


def spec_of(submitted: Json) -> JobSpec:
    """The inverse of `job_object` (with the commands that it adds), of a Job as an API server gives
    it. Raises UserError if it is none of ours.
    """
    try:
        variables: dict[str, Any] = {
            entry["name"]: entry.get("value")
            for container in submitted["spec"]["template"]["spec"]["containers"]
            if container["name"] == CONTAINER
            for entry in container.get("env") or ()
        }
        return JobSpec.model_validate_json(str(variables[SPEC_VARIABLE]).replace("$$", "$"))
    except (KeyError, ValueError) as error:
        name = submitted["metadata"]["name"]
        raise UserError(
            f"the Job {name} holds no job that this version can read: {error}"
        ) from error


def pod_objects(spec: JobSpec, namespace: str) -> tuple[Json, Json, Json]:
    """A pod of each role (master, worker, server) as it would be made, to ask a cluster whether it
    would have it.
    """
    submitted = job_object(spec, namespace)
    template = submitted["spec"]["template"]
    master = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{spec.cluster.job_name}-master-0",
            "namespace": namespace,
            **template["metadata"],
        },
        "spec": template["spec"],
    }
    owner = Owner(namespace, spec.cluster.job_name, "00000000-0000-0000-0000-000000000000")
    made = (
        pod(owner, pod_plan(spec, role), ProcessSpec(ProcessName(role, 0), ()))
        for role in (Role.WORKER, Role.PS)
    )
    worker, server = (
        {**one, "metadata": {**one["metadata"], "ownerReferences": []}} for one in made
    )
    return master, worker, server
