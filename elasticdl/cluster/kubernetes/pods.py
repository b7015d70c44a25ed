"""What the description of a pod means: does its process run, what does it wait for, how did it end.

Pure.

Only the platform's facts are gathered here; `master/core/processes/failures.py` makes one cause of
them.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from elasticdl.cluster.base import ExitFacts, ProcessName, ProcessObserved
from elasticdl.cluster.kubernetes.labels import parse_labels
from elasticdl.cluster.kubernetes.pod_spec import CONTAINER

Pod: TypeAlias = Mapping[str, Any]
IMAGE_FAILED = "ImagePullFailed"
START_FAILED = "StartError"
DELETED = "Deleted"
"""Our own words, where the platform has none, or many: `master/core/processes/failures.py` knows
them.
"""
_IMAGE_REASONS = frozenset(
    (
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
    )
)
_CONTAINER_REASONS = frozenset(
    ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
)
_NOT_STARTED = frozenset((START_FAILED, "ContainerCannotRun"))
_SAYS_NOTHING = frozenset(("Completed", "Error"))
_ENDED = frozenset(("Succeeded", "Failed"))


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a container does not start.

    `lasting`: the reason of its end, if this may last for ever and is to be given up once.
    """

    text: str
    lasting: str = ""


def uid(pod: Pod) -> str:
    """What tells a pod from another one that had its name."""
    return str(pod["metadata"]["uid"])


def process_name(pod: Pod) -> ProcessName:
    """The process that the pod runs. Raises KeyError or ValueError for a pod that is not ours."""
    return parse_labels(pod["metadata"].get("labels") or {})


def is_process(pod: Pod) -> bool:
    """It runs a process of a job."""
    try:
        process_name(pod)
    except (KeyError, ValueError):
        return False
    return True


def has_ended(pod: Pod) -> bool:
    """Its process has ended, or will never start."""
    return _status(pod).get("phase") in _ENDED or _terminated(pod) is not None


def observed(pod: Pod) -> ProcessObserved:
    """A live pod, for people and for the core."""
    running = "running" in _state(pod)
    waiting_for = "" if running else trouble(pod).text
    return ProcessObserved(
        process_name(pod), running, str((pod.get("spec") or {}).get("nodeName") or ""), waiting_for
    )


def trouble(pod: Pod) -> Trouble:
    """What a pod that does not run yet waits for, in words."""
    waiting = _state(pod).get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if reason in _IMAGE_REASONS:
        said = f": {message}" if message else ""
        return Trouble(f"image {_image(pod)} cannot be pulled ({reason}){said}", IMAGE_FAILED)
    if reason in _CONTAINER_REASONS:
        return Trouble(f"its container cannot be set up: {message or reason}", START_FAILED)
    if reason in ("", "ContainerCreating", "PodInitializing"):
        return Trouble(
            no_room(pod) or _unplaced(pod) or f"node {pod['spec']['nodeName']} is preparing it"
        )
    return Trouble(f"{reason}: {message}" if message else reason)


def never_started(pod: Pod) -> Trouble | None:
    """Why the process of a pod that has ended never was: its program could not be started.

    None if it ran.
    """
    ended = _terminated(pod) or {}
    if ended.get("reason") not in _NOT_STARTED:
        return None
    return Trouble(
        f"its container could not be started: {ended.get('message') or ended['reason']}",
        START_FAILED,
    )


def no_room(pod: Pod) -> str:
    """That no node can take it now, in the scheduler's words; '' if that is not so."""
    if (pod.get("spec") or {}).get("nodeName"):
        return ""
    for condition in _status(pod).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"no node has room for it: {condition.get('message') or condition.get('reason')}"
    return ""


def _unplaced(pod: Pod) -> str:
    return "" if (pod.get("spec") or {}).get("nodeName") else "waiting to be placed on a node"


def silent_since(pod: Pod) -> str:
    """When its node was given up for now, as Kubernetes writes times; '' where that is not so.

    A node tells both conditions together. Only the controller that hears nothing of a node takes
    back the one, without a reason.
    """
    told = {one.get("type"): one for one in _status(pod).get("conditions") or ()}
    ready, containers = told.get("Ready", {}), told.get("ContainersReady", {})
    silent = (
        ready.get("status") == "False"
        and not ready.get("reason")
        and containers.get("status") == "True"
    )
    return str(ready.get("lastTransitionTime") or "some time") if silent else ""


def told_code(pod: Pod) -> int | None:
    """The code of a container that has ended, as the Job's rules go by it: 130 is one of ours, and
    not only a signal.
    """
    code = (_terminated(pod) or {}).get("exitCode")
    return None if code is None else int(code)


def exit_facts(pod: Pod, *, asked: bool) -> ExitFacts:
    """How the process of a pod ended; also of one that is gone, from what was last known of it."""
    ended = _terminated(pod) or {}
    code, killed_by = _code(ended)
    conditions = tuple(_conditions(pod))
    reason = _reason(pod, ended)
    if not (reason or conditions or asked) and "deletionTimestamp" in pod["metadata"]:
        reason = DELETED
    said = (str(_status(pod).get("message") or ""), str(ended.get("message") or ""))
    return ExitFacts(
        exit_code=code,
        signal=killed_by,
        reason=reason,
        conditions=conditions,
        log_tail="\n".join(filter(None, said)),
        asked=asked,
    )


def _code(ended: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Exit code or signal. Container runtimes tell a signal n as code 128 + n."""
    if ended.get("signal"):
        return None, int(ended["signal"])
    code = ended.get("exitCode")
    # A container that could not be started, or whose end nobody saw, has a code that no process
    # gave.
    if code is None or ended.get("reason") == "ContainerStatusUnknown":
        return None, None
    if code > 128 and code - 128 in {int(known) for known in signal.Signals}:
        return None, int(code) - 128
    return int(code), None


def _reason(pod: Pod, ended: Mapping[str, Any]) -> str:
    of_container, of_pod = str(ended.get("reason") or ""), str(_status(pod).get("reason") or "")
    if of_container == "OOMKilled":
        return of_container
    return of_pod or ("" if of_container in _SAYS_NOTHING else of_container)


def _conditions(pod: Pod) -> list[str]:
    return [
        f"{condition['type']}:{condition.get('reason') or ''}"
        for condition in _status(pod).get("conditions") or ()
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True"
    ]


def _status(pod: Pod) -> Mapping[str, Any]:
    return pod.get("status") or {}


def _state(pod: Pod) -> Mapping[str, Any]:
    for container in _status(pod).get("containerStatuses") or ():
        if container.get("name") == CONTAINER:
            return container.get("state") or {}
    return {}


def _terminated(pod: Pod) -> Mapping[str, Any] | None:
    return _state(pod).get("terminated")


def _image(pod: Pod) -> str:
    return str(pod["spec"]["containers"][0].get("image"))
