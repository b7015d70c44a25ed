"""Interpret the description of a pod: whether it runs, what it waits for, how it ended. Pure.

This is what the platform reports; `master/core/processes/causes.py` derives one cause.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias

from elasticdl.cluster.base import ExitStatus, ProcessName, ProcessObserved
from elasticdl.cluster.kubernetes.labels import ladder_place, parse_labels
from elasticdl.cluster.kubernetes.pod_spec import CONTAINER

Pod: TypeAlias = Mapping[str, Any]
IMAGE_FAILED = "ImagePullFailed"
START_FAILED = "StartError"
NOT_PLACED = "NotPlaced"
DELETED = "Deleted"
"""Reasons of our own, where Kubernetes has none or several.

`causes.py` of the master knows them.
"""
_OWN_SCHEDULER = "default-scheduler"
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
_BETWEEN = frozenset(("", "ContainerCreating", "PodInitializing"))
_SAYS_NOTHING = frozenset(("Completed", "Error"))
_ENDED = frozenset(("Succeeded", "Failed"))


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a container does not start.

    `lasting` is the reason to report as its end if the problem may never go away.
    """

    text: str
    lasting: str = ""


@dataclass(slots=True)
class Nomination:
    """The node on which Kubernetes' own scheduler makes room for a pod, and since when.

    `node` is '' if there is none. Pods that it preempts leave within their grace. It may forget a
    pod that it chose a node for, until some other pod ends (kubernetes/kubernetes#141694); it tries
    a new one at once. Other schedulers may have a pod wait there for good reasons.
    """

    node: str = ""
    since_s: float = 0.0

    def look(self, pod: Pod, now_s: float) -> None:
        """Take in the pod's state."""
        spec = pod.get("spec") or {}
        waits = not spec.get("nodeName") and spec.get("schedulerName") in (None, _OWN_SCHEDULER)
        node = str(_status(pod).get("nominatedNodeName") or "") if waits else ""
        if node != self.node:
            self.node, self.since_s = node, now_s

    def trouble(self, now_s: float, limit_s: float) -> Trouble | None:
        """Why the pod is to be given up; None if it is not."""
        if not self.node or now_s <= self.since_s + limit_s:
            return None
        chosen = f"the scheduler chose node {self.node} for it"
        text = f"{chosen}, and did not place it there within {limit_s:g} s"
        return Trouble(text, NOT_PLACED)


def uid(pod: Pod) -> str:
    """Distinguishes a pod from an earlier one of its name."""
    return str(pod["metadata"]["uid"])


def place(pod: Pod) -> ProcessName:
    """The process that the pod was made for. Raises KeyError or ValueError for a foreign pod."""
    return parse_labels(pod["metadata"].get("labels") or {})


def process_name(pod: Pod) -> ProcessName:
    """The process that the pod runs, or ran last: each container of a pod is an incarnation.

    Raises KeyError or ValueError for a foreign pod.
    """
    first = place(pod)
    return replace(first, incarnation=first.incarnation + restarts(pod))


def restarts(pod: Pod) -> int:
    """How many containers the pod had before its present one."""
    return int(_container(pod).get("restartCount") or 0)


def restarts_in_place(pod: Pod) -> bool:
    """Whether its node starts another container in it when one fails."""
    return bool((pod.get("spec") or {}).get("restartPolicy", "Never") == "OnFailure")


def containers_ended(pod: Pod) -> int:
    """How many containers of the pod have ended."""
    waiting = _state(pod).get("waiting") or {}
    ended = _terminated(pod) is not None or (
        _last_end(pod) is not None and str(waiting.get("reason") or "") not in _BETWEEN and waiting
    )
    return restarts(pod) + int(bool(ended))


def newest_end(pod: Pod) -> Mapping[str, Any]:
    """The newest end of a container that its node reports; {} if there is none."""
    return _terminated(pod) or _last_end(pod) or {}


def is_process(pod: Pod) -> bool:
    """Whether it runs a process of a job."""
    try:
        process_name(pod)
    except (KeyError, ValueError):
        return False
    return True


def lived_s(end: Mapping[str, Any]) -> float:
    """How long a container ran, in seconds; 0 if its node does not say."""
    try:
        began, ended = (
            datetime.fromisoformat(str(end[key])) for key in ("startedAt", "finishedAt")
        )
        return (ended - began).total_seconds()
    except (KeyError, ValueError):
        return 0.0


def keeps_ending(end: Mapping[str, Any]) -> bool:
    """Whether the next container in the pod would end for the same reason.

    The memory that a server keeps counts as memory of its pod: a full one stays full.
    """
    return end.get("reason") == "OOMKilled" or end.get("reason") in _NOT_STARTED


def has_ended(pod: Pod) -> bool:
    """Whether its process has ended, or will never start, and no other one follows in the pod."""
    ended = _terminated(pod)
    if _status(pod).get("phase") in _ENDED or ended is None:
        return _status(pod).get("phase") in _ENDED
    leaves = "deletionTimestamp" in pod["metadata"] or ended.get("exitCode") == 0
    return leaves or not restarts_in_place(pod)


def has_terminated(pod: Pod) -> bool:
    """Whether its node has seen the end of its process.

    A controller may call a pod failed whose node it cannot reach: its process may still run.
    """
    return _terminated(pod) is not None


def is_running(pod: Pod) -> bool:
    """Whether its container runs."""
    return "running" in _state(pod)


def observed(pod: Pod) -> ProcessObserved:
    """The observation of a live pod."""
    running = is_running(pod)
    waiting_for = "" if running else trouble(pod).text
    return ProcessObserved(
        process_name(pod),
        running,
        str((pod.get("spec") or {}).get("nodeName") or ""),
        waiting_for,
        ladder_place=ladder_place(pod["metadata"].get("labels") or {}),
    )


def trouble(pod: Pod) -> Trouble:
    """What a pod that does not run yet waits for."""
    waiting = _state(pod).get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if reason in _IMAGE_REASONS:
        detail = f": {message}" if message else ""
        return Trouble(f"image {_image(pod)} cannot be pulled ({reason}){detail}", IMAGE_FAILED)
    if reason in _CONTAINER_REASONS:
        return Trouble(f"its container cannot be set up: {message or reason}", START_FAILED)
    if reason in _BETWEEN:
        return Trouble(
            no_room(pod) or _unplaced(pod) or f"node {pod['spec']['nodeName']} is preparing it"
        )
    return Trouble(f"{reason}: {message}" if message else reason)


def never_started(pod: Pod) -> Trouble | None:
    """Why the program of an ended pod never started; None if it ran."""
    ended = newest_end(pod)
    if ended.get("reason") not in _NOT_STARTED:
        return None
    return Trouble(
        f"its container could not be started: {ended.get('message') or ended['reason']}",
        START_FAILED,
    )


def no_room(pod: Pod) -> str:
    """Why no node has room for it, from the scheduler; '' if that is not so."""
    if (pod.get("spec") or {}).get("nodeName"):
        return ""
    if _status(pod).get("nominatedNodeName"):
        return "the scheduler makes room for it"
    for condition in _status(pod).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"no node has room for it: {condition.get('message') or condition.get('reason')}"
    return ""


def _unplaced(pod: Pod) -> str:
    return "" if (pod.get("spec") or {}).get("nodeName") else "waiting for a node"


def silent_since(pod: Pod) -> str:
    """When its node was given up for now, as a Kubernetes timestamp; '' if it was not.

    A node reports both conditions together. Only the controller that does not hear from a node
    revokes just one, without a reason.
    """
    conditions = {
        condition.get("type"): condition for condition in _status(pod).get("conditions") or ()
    }
    ready, containers = conditions.get("Ready", {}), conditions.get("ContainersReady", {})
    silent = (
        ready.get("status") == "False"
        and not ready.get("reason")
        and containers.get("status") == "True"
    )
    return str(ready.get("lastTransitionTime") or "some time") if silent else ""


def raw_exit_code(pod: Pod) -> int | None:
    """The raw exit code of an ended container, which the Job's rules use.

    130 is one of ours, and not only a signal.
    """
    code = (_terminated(pod) or {}).get("exitCode")
    return None if code is None else int(code)


def exit_status(pod: Pod, *, asked: bool, ended: Mapping[str, Any] | None = None) -> ExitStatus:
    """How the process of a pod ended; for a deleted pod, from its last known state.

    `ended` is the end of a container that others follow, from `newest_end`.
    """
    ended = (_terminated(pod) or {}) if ended is None else ended
    code, killed_by = _code(ended)
    conditions = tuple(_conditions(pod))
    reason = _reason(pod, ended)
    if not (reason or conditions or asked) and "deletionTimestamp" in pod["metadata"]:
        reason = DELETED
    messages = (str(_status(pod).get("message") or ""), str(ended.get("message") or ""))
    return ExitStatus(
        exit_code=code,
        signal=killed_by,
        reason=reason,
        conditions=conditions,
        log_tail="\n".join(filter(None, messages)),
        asked=asked,
    )


def _code(ended: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Exit code or signal. Container runtimes report signal n as code 128 + n."""
    if ended.get("signal"):
        return None, int(ended["signal"])
    code = ended.get("exitCode")
    # The code of a container that never started, or whose end nobody saw, is not a process's.
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


def _container(pod: Pod) -> Mapping[str, Any]:
    for container in _status(pod).get("containerStatuses") or ():
        if container.get("name") == CONTAINER:
            return dict(container)
    return {}


def _state(pod: Pod) -> Mapping[str, Any]:
    return _container(pod).get("state") or {}


def _last_end(pod: Pod) -> Mapping[str, Any] | None:
    return (_container(pod).get("lastState") or {}).get("terminated")


def _terminated(pod: Pod) -> Mapping[str, Any] | None:
    return _state(pod).get("terminated")


def _image(pod: Pod) -> str:
    return str(pod["spec"]["containers"][0].get("image"))
