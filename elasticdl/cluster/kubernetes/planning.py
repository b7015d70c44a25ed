"""What a job's flags request from Kubernetes: `JobSpec` in, plans and a Job out. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from elasticdl.cluster.base import ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.gang import VOLCANO_SCHEDULER, gang_size
from elasticdl.cluster.kubernetes.job_objects import job, pod, pod_group
from elasticdl.cluster.kubernetes.labels import MASTER, PLACE_LABEL
from elasticdl.cluster.kubernetes.plans import (
    Gang,
    GangApi,
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
from elasticdl.cluster.kubernetes.submitted_job import annotations_of, args_of
from elasticdl.cluster.priority_ladder import class_of
from elasticdl.errors import SpecError
from elasticdl.formatting import amount
from elasticdl.job import JobSpec
from elasticdl.kubernetes_flags import Mount

SPEC_VARIABLE = "ELASTICDL_JOB"
"""Has the job as JSON in the pod that checks model and data."""
CHECK_AGAIN = "--again"
"""Tells the check that an earlier master of the job may have written results already."""
CHECK_MARK = "elasticdl check: "
"""Begins each message of a check in its pod's log, which has the output of the user's code, too."""
MASTER_COMMAND = ("python3", "-m", "elasticdl.master.main")
GRACE_S = {Role.MASTER: 60, Role.WORKER: 30, Role.PS: 60}
"""A leaving master or server takes a checkpoint first; a server takes 40 s at most for that."""
LONGEST_SPEC_BYTES = 96 << 10
"""The kernel allows environment variables of at most 128 KiB."""


def pod_plan(
    spec: JobSpec,
    role: Role,
    place: int = 0,
    gang: Gang | None = None,
    *,
    in_gang: bool = False,
) -> PodPlan:
    """Everything that the pods of a role share.

    `place` is the k of worker k on the priority ladder, from 1, which its pod's labels keep; 0: the
    pod is not kept account of, and is like that of worker 1. `gang` says how the cluster schedules
    the job's gang, and `in_gang` whether the pod belongs to it; None: the job has none.
    """
    section = spec.kubernetes
    volcano = gang is not None and gang.api is GangApi.VOLCANO
    mounts = tuple(_volumes(section.volume))
    return PodPlan(
        Image(section.image_name, str(section.image_pull_policy), section.image_pull_secrets),
        Resources(
            getattr(section, f"{role}_resource_request"), getattr(section, f"{role}_resource_limit")
        ),
        Placement(
            # The gang has one priority, whatever places its workers took.
            class_of(spec, role, 1 if in_gang else max(1, place)),
            section.node_selector,
            section.tolerations,
            section.affinity,
            section.scheduler_name or (VOLCANO_SCHEDULER if volcano else ""),
            Role.PS if spec.servers else Role.WORKER,
        ),
        Identity(
            section.service_account if role is Role.MASTER else "",
            section.run_as_user or None,
            (section.fs_group or None) if mounts else None,
        ),
        mounts,
        spec.cluster.envs,
        GRACE_S[role],
        {**section.labels, **({PLACE_LABEL: str(place)} if place else {})},
        gang if in_gang else None,
    )


def job_pod_group(spec: JobSpec, owner: Owner, gang: Gang) -> Json:
    """The PodGroup of a job with --gang. Its priority is that of its workers."""
    return pod_group(owner, gang, gang_size(spec), class_of(spec, Role.WORKER, 1))


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
    """The Job to submit; `spec` has a name and a directory. `spec_of` reads it.

    If the namespace is empty, the creator sets it. Raises SpecError if the job is too long for a
    pod's environment.
    """
    text = spec.model_dump_json()
    if len(text.encode()) > LONGEST_SPEC_BYTES:
        raise SpecError(
            f"the job has {amount(len(text.encode()), 'byte')} of JSON, at most"
            f" {LONGEST_SPEC_BYTES} fit into a pod's environment",
            hint=(
                "move long values of --model-params, --data-reader-params and --envs into files of"
                " the image"
            ),
        )
    plan = JobPlan(
        namespace,
        spec.cluster.job_name,
        pod_plan(spec, Role.MASTER),
        ttl_s=spec.kubernetes.ttl_seconds,
        args=args_of(spec),
        annotations=annotations_of(spec),
        page_secret=spec.page_secret,
    )
    return job(plan, ProcessSpec(MASTER, MASTER_COMMAND))


def pod_objects(spec: JobSpec, namespace: str) -> tuple[Json, Json, Json]:
    """A pod of each role (master, worker, server) as it would be created, for dry runs."""
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
    worker, server = (dry_run_pod(spec, namespace, role) for role in (Role.WORKER, Role.PS))
    return master, worker, server


def dry_run_pod(spec: JobSpec, namespace: str, role: Role, place: int = 0) -> Json:
    """The first pod of a role without an owner, for dry runs. `place`: see `pod_plan`."""
    owner = Owner(namespace, spec.cluster.job_name, "00000000-0000-0000-0000-000000000000")
    manifest = pod(owner, pod_plan(spec, role, place), ProcessSpec(ProcessName(role, 0), ()))
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": []}}
