"""The Kubernetes objects of a job, as plain dictionaries. Pure: no communication with a cluster.

Only the Job is submitted (`submitting.py`). Its uid owns everything else, so that a replaced
master finds its processes, and nothing outlives the job. The master creates pods in `cluster.py`,
Secrets of processes in `process_secrets.py`, its Lease in `master_lease.py`, and what the job needs
once in `master/platform/kubernetes_resources.py`. The rights for that are in `rights.py` and
`docker/rbac.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from elasticdl.cluster.base import ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.gang import join, pod_group_spec
from elasticdl.cluster.kubernetes.labels import (
    CHECK,
    JOB_UID_LABEL,
    MASTER,
    ROLE_LABEL,
    SECRET_SIZE,
    check_labels,
    labels,
    pod_name,
    process_secret_name,
    secret_name,
    selector,
    viewer_secret_name,
)
from elasticdl.cluster.kubernetes.plans import (
    MASTER_PORT,
    RENDEZVOUS_PORT,
    STATUS_PORT,
    Gang,
    JobPlan,
    Json,
    Owner,
    PodPlan,
)
from elasticdl.cluster.kubernetes.pod_spec import from_field, mount, pod_spec
from elasticdl.tls import CertifiedKey

TOKEN_KEY, UID_KEY = "ELASTICDL_TOKEN", "ELASTICDL_JOB_UID"
AUTHORITY_KEY, AUTHORITY_PRIVATE_KEY = "ca.crt", "ca.key"
SECRET_FOLDER = "/var/run/elasticdl"  # noqa: S105 - a path
PAGE_FOLDER = "/var/run/elasticdl-page"


def pod(owner: Owner, plan: PodPlan, spec: ProcessSpec) -> Json:
    """The pod of a worker or parameter server. Its process gets its own token only."""
    body = pod_spec(owner.job, plan, spec)
    secret = process_secret_name(owner.job, owner.uid, spec.name)
    body["containers"][0]["env"] += [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": str(spec.name)}}}
        for key in spec.secrets
    ]
    manifest: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **_owned(owner, pod_name(owner.job, spec.name)),
            "labels": {**plan.labels, **labels(owner.job, spec.name), JOB_UID_LABEL: owner.uid},
            "annotations": _annotations(),
        },
        "spec": body,
    }
    if plan.gang is not None:
        join(manifest, plan.gang, owner.job)
    return manifest


def preflight_pod(owner: Owner, plan: PodPlan, spec: ProcessSpec, attempt: int) -> Json:
    """The pod that checks model and data: like a worker's, but it runs no process of the job.

    `spec` has no secrets.
    """
    body = pod_spec(owner.job, plan, spec)
    body["hostname"] = CHECK
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **_owned(owner, f"{owner.job}-{CHECK}-{attempt}"),
            "labels": {**plan.labels, **check_labels(owner.job), JOB_UID_LABEL: owner.uid},
            "annotations": _annotations(),
        },
        "spec": body,
    }


def job(plan: JobPlan, spec: ProcessSpec) -> Json:
    """The Job, the only object to submit; its master creates the rest.

    `spec` is the master's: its command and environment.
    """
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": plan.name,
            **({"namespace": plan.namespace} if plan.namespace else {}),
            "labels": {**plan.master.labels, **labels(plan.name, MASTER)},
        },
        "spec": {
            "backoffLimit": plan.failures,
            "ttlSecondsAfterFinished": plan.ttl_s,
            # A pod on a lost node stays in deletion for ever, so its end must not be waited for.
            # By the Lease only one master acts.
            "podReplacementPolicy": "TerminatingOrFailed",
            "template": {
                "metadata": {
                    "labels": {**plan.master.labels, **labels(plan.name, MASTER)},
                    "annotations": {**_annotations(), **plan.annotations},
                },
                "spec": _master_pod(plan, spec),
            },
        },
    }


def _master_pod(plan: JobPlan, spec: ProcessSpec) -> Json:
    master = pod_spec(plan.name, plan.master, spec, plan.args)
    master["containers"][0]["env"] += [
        from_field("ELASTICDL_NAMESPACE", "metadata.namespace"),
        from_field("ELASTICDL_POD_NAME", "metadata.name"),
        from_field("ELASTICDL_JOB_NAME", "metadata.labels['batch.kubernetes.io/job-name']"),
        from_field("ELASTICDL_JOB_UID", "metadata.labels['batch.kubernetes.io/controller-uid']"),
    ]
    master["containers"][0]["ports"] = [
        {"name": "calls", "containerPort": MASTER_PORT},
        {"name": "page", "containerPort": STATUS_PORT},
    ]
    # The Secret is absent at the first start, when the master creates it. A later master finds it
    # here and needs no right to read Secrets.
    mount(
        master,
        "token",
        {"secret": {"secretName": secret_name(plan.name), "optional": True, "defaultMode": 0o444}},
        SECRET_FOLDER,
        read_only=True,
    )
    if plan.page_secret:
        source = {"secret": {"secretName": plan.page_secret, "defaultMode": 0o444}}
        mount(master, "page", source, PAGE_FOLDER, read_only=True)
    return master


def token_secret(owner: Owner, token: str, authority: CertifiedKey | None = None) -> Json:
    """The Secret with the job's token. Only the master mounts it.

    `authority` signs the certificates of the job's processes; None: no TLS.
    """
    # The uid distinguishes it from the Secret of an earlier job of the same name.
    values = {TOKEN_KEY: token, UID_KEY: owner.uid}
    if authority is not None:
        values |= {AUTHORITY_KEY: authority.certificate, AUTHORITY_PRIVATE_KEY: authority.key}
    return _secret(owner, secret_name(owner.job), values)


def viewer_secret(owner: Owner, token: str, authority: CertifiedKey | None = None) -> Json:
    """The Secret with the viewer's token, which someone may give to Prometheus.

    With it goes the certificate that verifies the master.
    """
    trusted = {AUTHORITY_KEY: authority.certificate} if authority is not None else {}
    return _secret(owner, viewer_secret_name(owner.job), {TOKEN_KEY: token, **trusted})


def process_secret(owner: Owner, name: ProcessName, token_of: Callable[[ProcessName], str]) -> Json:
    """The Secret with the tokens of a process and of its neighbours by index."""
    first = name.index - name.index % SECRET_SIZE
    neighbours = [replace(name, index=index) for index in range(first, first + SECRET_SIZE)]
    tokens = {str(neighbour): token_of(neighbour) for neighbour in neighbours}
    return _secret(owner, process_secret_name(owner.job, owner.uid, name), tokens)


def _secret(owner: Owner, name: str, values: Mapping[str, str]) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _of_job(owner, name),
        "immutable": True,
        "type": "Opaque",
        "stringData": dict(values),
    }


def master_address(job: str) -> str:
    """Where processes reach their master, whichever pod it is in."""
    return f"{job}-master:{MASTER_PORT}"


def master_names(owner: Owner) -> tuple[str, ...]:
    """The master's host names, within its namespace and from outside."""
    name = f"{owner.job}-master"
    return tuple(
        name + more
        for more in (
            "",
            f".{owner.namespace}",
            f".{owner.namespace}.svc",
            f".{owner.namespace}.svc.cluster.local",
        )
    )


def services(owner: Owner, *, secured: bool = False) -> tuple[Json, Json]:
    """The master's lasting address, and a name for every process: `ps-0.digits`.

    `secured`: the master uses TLS.
    """
    master = _service(
        owner, f"{owner.job}-master", {**selector(owner.job), ROLE_LABEL: str(Role.MASTER)}
    )
    master["spec"]["ports"] = [
        {
            "name": "calls",
            "port": MASTER_PORT,
            # The server speaks first in our own protocol: a service mesh must not guess it.
            "appProtocol": "tls" if secured else "tcp",
        },
        # Members of a ring find each other here.
        {"name": "rendezvous", "port": RENDEZVOUS_PORT},
        {
            "name": "page",
            "port": STATUS_PORT,
            "appProtocol": "https" if secured else "http",
        },
    ]
    # A name resolves only while its process runs: a leaving incarnation is not found.
    names = _service(owner, owner.job, selector(owner.job))
    names["spec"]["clusterIP"] = "None"
    return master, names


def master_lease(owner: Owner) -> Json:
    """The Lease that says which pod is the job's master; nobody holds it yet."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": _of_job(owner, f"{owner.job}-master"),
        "spec": {"holderIdentity": ""},
    }


def pod_group(owner: Owner, gang: Gang, size: int, priority_class: str) -> Json:
    """The PodGroup of the job's gang; its pods name it. `priority_class` may be ''."""
    return {
        "apiVersion": f"{gang.api}/{gang.version}",
        "kind": "PodGroup",
        "metadata": _of_job(owner, owner.job),
        "spec": pod_group_spec(gang, size, priority_class),
    }


def network_policy(owner: Owner) -> Json:
    """Allow only processes of the job to connect to its processes."""
    peers = {"podSelector": {"matchLabels": selector(owner.job)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _of_job(owner, owner.job),
        "spec": {
            "podSelector": {"matchLabels": selector(owner.job)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [peers]}],
        },
    }


def _service(owner: Owner, name: str, chosen: dict[str, str]) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _of_job(owner, name),
        "spec": {"type": "ClusterIP", "selector": chosen},
    }


def _owned(owner: Owner, name: str) -> Json:
    reference = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": owner.job,
        "uid": owner.uid,
        # A controller reference would make the Job's controller count workers as masters. Blocking
        # the owner's deletion would need rights on Jobs.
        "controller": False,
        "blockOwnerDeletion": False,
    }
    return {"name": name, "namespace": owner.namespace, "ownerReferences": [reference]}


def _of_job(owner: Owner, name: str) -> Json:
    whole = {
        **selector(owner.job),
        "app.kubernetes.io/managed-by": "elasticdl",
        JOB_UID_LABEL: owner.uid,
    }
    return {**_owned(owner, name), "labels": whole}


def _annotations() -> dict[str, str]:
    # A pod without a controller would block the scale-down of its node. Ours may go at any time.
    return {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
