"""Read a job from its `batch/v1` Job, whether `elasticdl` or a person wrote that. Pure.

The `args` of the master's container are the job's flags. What the Job says in Kubernetes's own
words is no flag there: its name, its namespace, the image, and the volumes. All pods of the job get
the image and the volumes of the master's pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from elasticdl.cluster.base import Role
from elasticdl.cluster.kubernetes.job_objects import SECRET_FOLDER
from elasticdl.cluster.kubernetes.labels import (
    DOMAIN,
    ROLE_LABEL,
    secret_name,
    selector,
)
from elasticdl.cluster.kubernetes.plans import Json
from elasticdl.cluster.kubernetes.pod_spec import CONTAINER
from elasticdl.cluster.kubernetes.submit_command import with_commands
from elasticdl.errors import SpecError
from elasticdl.job import JobSpec
from elasticdl.job_args import as_args, read_args
from elasticdl.job_flags import is_used
from elasticdl.job_name import directory_in_pod
from elasticdl.job_problems import flag_of
from elasticdl.kubernetes_flags import INTERNAL_PATHS, ZOO_OF_IMAGES, LadderUse

LADDER_FOUND = f"{DOMAIN}/priority-ladder"
SCALE_KEPT = f"{DOMAIN}/scale"
SERVERS_KEPT = f"{DOMAIN}/servers"
_FOUND, _KEPT = "found", "kept"
_SAID_BY_THE_JOB = {
    "job_name": "it is the Job's metadata.name",
    "namespace": "it is the Job's metadata.namespace",
    "image_name": "it is the image of the container",
    "volume": "write volumes and volumeMounts into the pod template; all pods get them",
}
_MOUNT_KEYS = {
    "name": "",
    "mountPath": "mount_path",
    "subPath": "sub_path",
    "readOnly": "read_only",
}
_REFERENCE = re.compile(r"\$\$|\$\([^)]*\)")


def args_of(spec: JobSpec) -> tuple[str, ...]:
    """The args of the master's container for a job with a name and a directory."""
    defaults = {
        "job_dir": directory_in_pod(spec.cluster.job_name),
        "model_zoo": ZOO_OF_IMAGES,
    }
    flags = {
        name: value
        for name, value in spec.flags(defaults=False).items()
        if name not in _SAID_BY_THE_JOB
        and is_used(name, spec.action)
        and value != defaults.get(name)
    }
    return as_args(spec.action, flags)


def annotations_of(spec: JobSpec) -> dict[str, str]:
    """What a submission knows of a job and no flag says."""
    resumes = spec.checkpoint.resume
    on_found = spec.ladder_found and spec.kubernetes.priority_ladder is LadderUse.AUTO
    return {
        **({LADDER_FOUND: _FOUND} if on_found else {}),
        **({SCALE_KEPT: _KEPT} if resumes and not spec.workers_anew else {}),
        **({SERVERS_KEPT: _KEPT} if resumes and not spec.servers_anew else {}),
    }


def spec_of(submitted: Json) -> JobSpec:
    """The job of a Job. It has a name, a directory, and the commands that submit it again.

    Raises SpecError for a flag that is wrong or missing.
    """
    name, pod = str(submitted["metadata"]["name"]), submitted["spec"].get("template") or {}
    try:
        container = _container(pod.get("spec") or {})
        image = str(container.get("image") or "")
        action, flags = read_args([_expanded(arg) for arg in container.get("args") or ()])
        for flag in sorted(flags.keys() & _SAID_BY_THE_JOB.keys()):
            raise SpecError(f"{flag_of(flag)} is among the args", hint=_SAID_BY_THE_JOB[flag])
        spec = JobSpec.from_flags(
            action,
            flags
            | {"job_name": name, "image_name": image, "volume": [*_mounts(pod["spec"], container)]}
            | {"namespace": str(submitted["metadata"].get("namespace") or "")},
        )
    except SpecError as error:
        raise SpecError(f"the Job {name}: {error.message}", hint=error.hint) from error
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    return with_commands(
        spec.replace(
            job_dir=spec.cluster.job_dir or directory_in_pod(name),
            workers_anew="num_workers" in flags and annotations.get(SCALE_KEPT) != _KEPT,
            servers_anew="num_ps_pods" in flags and annotations.get(SERVERS_KEPT) != _KEPT,
            ladder_found=annotations.get(LADDER_FOUND) == _FOUND,
        )
    )


def refuse_template(submitted: Json) -> None:
    """Raise SpecError if the Job's pods could not be the masters of its job."""
    name, pod = str(submitted["metadata"]["name"]), submitted["spec"]["template"]
    for problem in _problems(submitted, name, pod):
        raise SpecError(
            f"the Job {name}: {problem}",
            hint="`elasticdl train … --dry-run -o yaml` prints a whole Job to compare it with",
        )


def _problems(submitted: Json, name: str, pod: Json) -> Iterator[str]:
    # The command line, the job's Services and its NetworkPolicy find Job and master by these.
    wanted = selector(name)
    for what, labelled, own in (
        ("it", submitted, wanted),
        ("its pod template", pod, {**wanted, ROLE_LABEL: str(Role.MASTER)}),
    ):
        labels = (labelled.get("metadata") or {}).get("labels") or {}
        for key, text in own.items():
            if labels.get(key) != text:
                yield f"{what} needs the label {key}: {text}, and has {labels.get(key, 'none')}"
    job, spec = submitted["spec"], pod["spec"]
    for key in ("parallelism", "completions"):
        if job.get(key, 1) != 1:
            yield f"{key} is {job[key]}, but a job has one master"
    if spec.get("restartPolicy") != "Never":
        yield f"restartPolicy is {spec.get('restartPolicy')!r}, but must be Never"
    secret = {"secretName": secret_name(name), "optional": True}
    mounts = [
        place["name"]
        for container in spec["containers"]
        if container["name"] == CONTAINER
        for place in container.get("volumeMounts") or ()
        if str(place["mountPath"]).rstrip("/") == SECRET_FOLDER
    ]
    sources = [
        volume.get("secret") for volume in spec.get("volumes") or () if volume["name"] in mounts
    ]
    if not any(source and secret.items() <= source.items() for source in sources):
        yield (
            f"its pod template needs a volume of the Secret {secret_name(name)} with optional:"
            f" true, mounted at {SECRET_FOLDER}: the next master reads the job's token there"
        )


def _container(pod_spec: Json) -> Json:
    containers: list[Json] = pod_spec.get("containers") or []
    for container in containers:
        if container["name"] == CONTAINER:
            return container
    raise SpecError(
        f"its pod template has no container {CONTAINER!r}",
        hint="the container of that name has the job's flags as its args",
    )


def _expanded(arg: str) -> str:
    """An arg as Kubernetes would hand it to a process: `$$` is `$`.

    Raises SpecError for a `$(NAME)`: workers on other nodes would get other values.
    """

    def expanded(reference: re.Match[str]) -> str:
        if reference[0] == "$$":
            return "$"
        raise SpecError(
            f"the args refer to the variable {reference[0]}, which no flag may",
            hint=f"write the value, or ${reference[0]} for the text itself",
        )

    return _REFERENCE.sub(expanded, arg)


def _mounts(pod_spec: Json, container: Json) -> Iterator[dict[str, Any]]:
    """The volumes of the job as values of --volume; ours are left out."""
    sources = {volume["name"]: volume for volume in pod_spec.get("volumes") or ()}
    for place in container.get("volumeMounts") or ():
        path = str(place["mountPath"])
        if (path.rstrip("/") or "/") in INTERNAL_PATHS:
            continue
        for key in place:
            if key not in _MOUNT_KEYS:
                raise SpecError(
                    f"the volumeMount of {path} has {key}, which the other pods would not get",
                    hint=f"use only {', '.join(_MOUNT_KEYS)}",
                )
        source = {key: of for key, of in sources.get(place["name"], {}).items() if key != "name"}
        named = {of: place[key] for key, of in _MOUNT_KEYS.items() if of and key in place}
        yield {**named, **_source(source)}


def _source(source: Mapping[str, Any]) -> dict[str, Any]:
    """A volume's source as `--volume` has it."""
    claim, host = source.get("persistentVolumeClaim"), source.get("hostPath")
    if claim and claim.keys() == {"claimName"}:
        return {"claim_name": claim["claimName"]}
    if host:
        return {"host_path": host["path"], "type": host.get("type") or ""}
    return {"source": dict(source)}
