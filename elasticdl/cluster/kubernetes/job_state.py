"""The state of a job on a cluster, from its Job and pods: its stage, outcome and processes.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias, final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.cluster.kubernetes.pods import (
    IMAGE_FAILED,
    START_FAILED,
    Trouble,
    exit_status,
    has_ended,
    is_process,
    never_started,
    observed,
    process_name,
    raw_exit_code,
    silent_since,
    trouble,
    uid,
)
from elasticdl.cluster.kubernetes.submitted_job import spec_of
from elasticdl.cluster.kubernetes.termination_message import read_outcome
from elasticdl.errors import ExitCode, UserError
from elasticdl.job import JobSpec
from elasticdl.jobdir.outcome import Outcome

Object: TypeAlias = Mapping[str, Any]
_EXIT_CODE = re.compile(r"exit code (\d+)")


class JobStage(StrEnum):
    """The state of a job between submission and end."""

    WAITING = "waiting"
    """Its master does not run yet, or no longer: `JobState.waits_for` says why."""
    STUCK = "stuck"
    """Its master's pod cannot start and mostly will not recover: `JobState.barred` says why."""
    RUNNING = "running"
    LEAVING = "leaving"
    """The job is being deleted."""
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@final
@dataclass(frozen=True, slots=True)
class JobState:
    """A Job with its pods: `masters` are those of its master, the newest last; `pods` all others.

    Ended pods may already be deleted.
    """

    job: Object
    masters: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()

    @property
    def name(self) -> str:
        """The value of `--job-name`."""
        return str(self.job["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.job["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        """Distinguishes the job from an earlier job of its name."""
        return uid(self.job)

    @property
    def spec(self) -> JobSpec | None:
        """The job as submitted; None if this version cannot read it."""
        with suppress(UserError):
            return spec_of(dict(self.job))
        return None

    @property
    def created_wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        return wall_s(self.job["metadata"].get("creationTimestamp"))

    @property
    def master(self) -> Object | None:
        """The newest pod of the master."""
        return self.masters[-1] if self.masters else None

    @property
    def running_master(self) -> str:
        """The pod of the running master; '' if there is none."""
        pod = self.master
        return (
            str(pod["metadata"]["name"])
            if pod is not None and not has_ended(pod) and observed(pod).running
            else ""
        )

    @property
    def standing(self) -> JobStage:
        """The job's state."""
        ended = self.ended
        if ended is not None:
            return JobStage(ended.state)
        if self.job["metadata"].get("deletionTimestamp"):
            return JobStage.LEAVING
        if self.barred is not None:
            return JobStage.STUCK
        return JobStage.RUNNING if self.running_master else JobStage.WAITING

    def lost_master(self, now_wall_s: float) -> str:
        """Why the master's node is considered lost; '' if it is not.

        The node is silent, or its pod is long overdue to end.
        """
        pod = self.master
        if pod is None or has_ended(pod):
            return ""
        due_s, since = wall_s(pod["metadata"].get("deletionTimestamp")), silent_since(pod)
        if not since and (not due_s or now_wall_s < due_s + _OVERDUE_S):
            return ""
        node, name = (pod.get("spec") or {}).get("nodeName", ""), pod["metadata"]["name"]
        # A forced deletion alone does not remove the pod: the Job's finalizer holds it.
        force = (
            f"kubectl delete pod {name} --force --wait=false; kubectl patch pod {name} -p"
            ' \'{"metadata":{"finalizers":null}}\''
        )
        return (
            f"node {node} of its master has not answered{f' since {since}' if since else ''}; a"
            " job never has two masters, so it continues when the node is back, when the node is"
            f" deleted (kubectl delete node {node}), or when its pod is given up ({force})"
        )

    @property
    def barred(self) -> Trouble | None:
        """Why the master's pod cannot start: its image or its container. None if it can.

        Until a second pod exists, the reason of the first one applies.
        """
        if self.running_master or _final_condition(self.job) is not None:
            return None
        for pod in reversed(self.masters):
            if has_ended(pod):
                return never_started(pod)
            if (problem := trouble(pod)).lasting:
                return problem
        return None

    @property
    def prepared(self) -> Object | None:
        """The master's pod while its node prepares it.

        Problems of that step (a volume, a network) appear only in events.
        """
        pod = self.master
        waits = (
            pod is not None
            and not has_ended(pod)
            and not observed(pod).running
            and self.barred is None
        )
        return (
            pod if pod is not None and waits and (pod.get("spec") or {}).get("nodeName") else None
        )

    @property
    def waits_for(self) -> str:
        """Why no master runs; '' if one runs or the job has ended."""
        if self.job["metadata"].get("deletionTimestamp"):
            return "it is being deleted"
        if (self.job.get("spec") or {}).get("suspend"):
            return "it is suspended, for example by a queue, and starts when it is released"
        pod = self.master
        if self.running_master or self.ended is not None:
            return ""
        if (barred := self.barred) is not None:
            return f"its master: {barred.text}"
        if pod is None:
            return _creation_problem(self.job) or "the cluster has not created its master's pod yet"
        if self.has_verdict:
            return (
                f"its master has ended (exit code {raw_exit_code(pod)}), which the cluster is about"
                " to record"
            )
        if has_ended(pod):
            return f"its master ended ({_how(pod)}) and is being restarted"
        return f"its master: {trouble(pod).text}"

    @property
    def has_verdict(self) -> bool:
        """Whether its master has ended for good; the Job's status follows a moment later."""
        code = None if self.master is None else raw_exit_code(self.master)
        if self.master is None or code is None:
            return False
        final = any(known.is_final for known in ExitCode if known == code)
        disrupted = exit_status(self.master, asked=False).conditions
        return code == ExitCode.DONE or (final and not disrupted)

    @property
    def ended(self) -> Outcome | None:
        """The outcome, from its master or else from the cluster; None if it has not ended."""
        condition = _final_condition(self.job)
        if condition is None:
            return None
        recorded = next(
            (left for pod in reversed(self.masters) if (left := read_outcome(pod)) is not None),
            None,
        )
        ended = recorded or self._outcome_without_message(condition)
        spec = None if ended.action else self.spec
        return ended if spec is None else replace(ended, action=str(spec.action))

    def _outcome_without_message(self, condition: Object) -> Outcome:
        if condition["type"] == "Complete":
            return Outcome(ExitCode.DONE, "done; its master's pod is gone, and its receipt with it")
        message = str(condition.get("message") or condition.get("reason") or "")
        pod = self.master
        status = exit_status(pod, asked=False) if pod is not None and has_ended(pod) else None
        code = status.exit_code if status else None
        if code is None and (mentioned := _EXIT_CODE.search(message)):
            code = int(mentioned[1])
        last = (
            f"; last output:\n{status.log_tail.strip()}"
            if status and status.log_tail.strip()
            else ""
        )
        how = (
            f"its master ended ({_how(pod)}) without a report"
            if pod is not None and status
            else "its master ended without a report"
        )
        return Outcome(
            code if code in _VERDICTS else ExitCode.JOB_FAILED,
            f"{how}: {message}{last}" if message else f"{how}{last}",
        )

    def processes(self) -> tuple[tuple[ProcessName, Object], ...]:
        """Every process with its pod, masters first.

        A replaced master counts as an earlier incarnation.
        """
        named = [
            (ProcessName(Role.MASTER, 0, number), pod) for number, pod in enumerate(self.masters)
        ]
        named += [(process_name(pod), pod) for pod in self.pods]
        return tuple(
            sorted(
                named,
                key=lambda entry: (
                    list(Role).index(entry[0].role),
                    entry[0].index,
                    entry[0].incarnation,
                ),
            )
        )


HINTS = {
    IMAGE_FAILED: (
        "check that the image exists and that the cluster may pull it (--image-name,"
        " --image-pull-secrets)"
    ),
    START_FAILED: "build the image with `elasticdl zoo build`, or check what it lacks",
}
"""What to do if a pod cannot start, by the kind of its problem."""
_OVERDUE_S = 60.0
"""After the grace of a master's pod: nodes take seconds, and clocks may differ."""
_VERDICTS = frozenset(int(code) for code in ExitCode)


def job_state(job: Object, pods: Iterable[Object] = ()) -> JobState:
    """The state of a Job; `pods` may include pods of other jobs and foreign pods."""
    own = [pod for pod in pods if _belongs(pod, uid(job))]
    ordered = sorted(
        own,
        key=lambda pod: (wall_s(pod["metadata"].get("creationTimestamp")), pod["metadata"]["name"]),
    )
    masters = tuple(pod for pod in ordered if process_name(pod).role is Role.MASTER)
    return JobState(
        job, masters, tuple(pod for pod in ordered if process_name(pod).role is not Role.MASTER)
    )


def wall_s(timestamp: str | None) -> float:
    """Seconds since 1970-01-01 UTC of a Kubernetes timestamp; 0 for none."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def _belongs(pod: Object, job_uid: str) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == job_uid for owner in owners) and is_process(pod)


def _final_condition(job: Object) -> Object | None:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            return dict(condition)
    return None


def _creation_problem(job: Object) -> str:
    """Why the Job could not create a pod."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "FailureTarget" and condition.get("status") == "True":
            return f"it is failing: {condition.get('message') or condition.get('reason')}"
    return ""


def _how(pod: Object) -> str:
    """`signal 9, OOMKilled`: as the platform reports it, without a cause."""
    status = exit_status(pod, asked=False)
    parts = [f"signal {status.signal}"] if status.signal is not None else []
    parts += [f"exit code {status.exit_code}"] if status.exit_code is not None else []
    parts += [status.reason] if status.reason else []
    return ", ".join([*parts, *status.conditions]) or "cause unknown"
