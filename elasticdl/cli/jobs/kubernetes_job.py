"""A job on a cluster.

The API server forwards calls to its master. The job's pods tell what the master cannot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, final
from urllib.parse import quote

from elasticdl.cli.jobs.forwarded_master import CALL_S, ForwardedMaster
from elasticdl.cli.jobs.job import (
    Diagnosis,
    JobLocation,
    Kind,
    LogEntry,
    LogRequest,
    Report,
    asked_to_stop,
)
from elasticdl.cli.jobs.start_diagnosis import StartTimer, removal_hint
from elasticdl.cluster.kubernetes.pod_tracker import START_PROBLEM_LIMIT_S
from elasticdl.errors import (
    ElasticDLError,
    NoSuchJob,
    PermanentError,
    TransientError,
)
from elasticdl.job_status import JobStatus
from elasticdl.jobdir.outcome import Outcome

if TYPE_CHECKING:
    from elasticdl.cli.jobs.cluster_client import ClusterClient
    from elasticdl.cluster.kubernetes.job_state import JobState

_CHECKING = "its master is checking the model and the data"
"""A master listens only after the check, so one that runs and does not listen is checking."""
_CALL_LIMIT_S = 10.0
_KEPT_BYTES = 1 << 20
"""Limit of a log: as much as a master returns at once."""


@final
class KubernetesJob:
    """A `Job` on a cluster. Thread-safe. The caller closes `cluster` after this."""

    def __init__(
        self,
        cluster: ClusterClient,
        name: str,
        *,
        namespace: str = "",
        call_s: float = CALL_S,
        start_limit_s: float = START_PROBLEM_LIMIT_S,
    ) -> None:
        """`namespace` defaults to the cluster client's. `call_s` bounds calls to the master.

        After `start_limit_s` a job that cannot start has failed.
        """
        from elasticdl.cluster.kubernetes.jobs import Jobs

        self.name = name
        self.place = JobLocation(Kind.KUBERNETES, namespace=namespace or cluster.namespace)
        self._cluster = cluster
        self._jobs = Jobs(cluster.api, self.place.namespace)
        self._uid = ""
        self._master = ForwardedMaster(cluster, self._jobs, name, self.job_state, call_s)
        self._start_timer = StartTimer(limit_s=start_limit_s)

    def job_state(self, *, whole: bool = False) -> JobState:
        """Return the Job and its masters' pods, or all its pods.

        Raises an error with exit code 4 if there is none, or another Job now has its name.
        """
        state = self._cluster.run(self._jobs.one(self.name, whole=whole))
        if state is None:
            if self._uid:
                raise NoSuchJob(
                    f"job {self.name} no longer exists in {self.place}",
                    hint="it was deleted, or its time to live is over",
                )
            raise NoSuchJob(
                f"there is no job {self.name} in {self.place}", hint="see `elasticdl list`"
            )
        # Names can be reused; only the UID identifies the Job that this object stands for.
        if self._uid and state.uid != self._uid:
            raise NoSuchJob(
                f"job {self.name} in {self.place} was deleted",
                hint="another job has the same name now",
            )
        self._uid = state.uid
        return state

    def report(self) -> Report:
        from elasticdl.cluster.kubernetes.port_forward import NobodyListens

        state = self.job_state()
        message = "its master is starting"
        if state.ended is None and not state.waits_for:
            try:
                return self._report(state, self._master.call(lambda master: master.status()))
            except NobodyListens:
                message = _CHECKING
            except TransientError as error:
                message = (
                    state.lost_master(time.time()) or f"its master does not answer: {error.message}"
                )
            except ElasticDLError as error:
                message = f"its master cannot be asked: {error.message}"
        return self._without_master(self.job_state(whole=True), message)

    def _without_master(self, state: JobState, message: str) -> Report:
        from elasticdl.cli.jobs.pod_status import status_of_pods

        ended = state.ended
        if ended is not None:
            message = ended.message
        elif state.waits_for:
            # Only Kubernetes events tell why a pod fails or cannot be created.
            stuck = state.job if state.master is None else state.prepared
            warning = "" if stuck is None else self._cluster.run(self._jobs.latest_warning(stuck))
            message = (
                f"{'waiting' if state.barred is None else 'cannot start'}:"
                f" {state.waits_for}{': ' if warning else ''}{warning}"
            )
        return self._report(state, status_of_pods(state, message), ended)

    def outcome(self) -> Outcome | None:
        """See Job.

        Raises CannotStart if repeated calls find the job unable to start for 40 s.
        """
        state = self.job_state()
        if state.ended is not None:
            return state.ended
        self._start_timer.seen(state, lambda: self._has_run(state))
        return None

    def _has_run(self, state: JobState) -> bool:
        """Return whether a master has run.

        Its token proves that or, without access to Secrets, a process.
        """
        try:
            return self._cluster.run(self._jobs.access(state)) is not None
        except PermanentError:
            return bool(self.job_state(whole=True).pods)

    def stop(self, reason: str) -> str:
        """See Job. Without a running master the job is deleted, since nothing can drain it."""
        state = self.job_state()
        if state.ended is not None or state.has_verdict:
            return f"job {self.name} has ended already"
        if state.waits_for:
            self.delete(state)
            why = f"; no master could stop it gracefully: {state.waits_for}"
            return f"job {self.name} and all its objects are deleted{why}{after_deletion(state)}"
        try:
            return self._master.call(lambda master: asked_to_stop(master, reason), _CALL_LIMIT_S)
        except TransientError as error:
            hint = (
                f"its master may be starting: try again; `elasticdl stop {self.name} --now` ends it"
                " without a last checkpoint"
            )
            raise TransientError(error.message, hint=hint) from error

    def end(self, reason: str) -> str:
        state = self.job_state()
        if not state.waits_for:
            # A node kills a worker that hangs only after the grace of its pod. Told by its master
            # to end at once, the worker ends itself.
            with suppress(ElasticDLError):
                for _ in range(2):
                    self._master.call(lambda master: master.stop(reason))
        self.delete(state)
        return f"job {self.name} and all its objects are deleted{after_deletion(state)}"

    def delete(self, state: JobState | None = None) -> None:
        """Delete the Job and all its objects now."""
        self._cluster.run(self._jobs.delete(state or self.job_state()))

    def scale(self, low: int, high: int) -> str:
        self._running()
        return self._master.call(lambda master: master.scale(low, high), _CALL_LIMIT_S)

    def scale_servers(self, number: int) -> None:
        self._running()
        self._master.call(lambda master: master.scale_servers(number), _CALL_LIMIT_S)

    def checkpoint(self) -> None:
        self._running()
        self._master.call(lambda master: master.checkpoint(), _CALL_LIMIT_S)

    def logs(self) -> list[LogEntry]:
        from elasticdl.cluster.kubernetes.pod_logs import entries

        state = self.job_state(whole=True)
        there = [LogEntry(name, what) for name, what in entries(state)]
        names = {entry.process for entry in there}
        # Only a running master lists these; without it the logs of pods still help.
        with suppress(ElasticDLError):
            there += [
                LogEntry(kept["process"], f"kept of pods that are gone: {kept['bytes']:,} bytes")
                for kept in self._get("/api/v1/logs")["logs"]
                if kept["process"] not in names
            ]
        return there

    def read_log(self, request: LogRequest) -> Iterator[str]:
        from elasticdl.cluster.kubernetes.pod_logs import chosen, followed, last

        state = self.job_state(whole=True)
        pod = chosen(state, request.process)
        if pod is None:
            yield self._kept_log(state, request)
            return
        reading = followed if request.follow else last
        yield from self._cluster.each(reading(self._cluster.api, pod, request.lines))

    def _kept_log(self, state: JobState, request: LogRequest) -> str:
        """Return the log of a deleted pod as the master saved it, at most 1 MiB.

        Raises an error with exit code 4 if there is no such log, or no master to ask.
        """
        part = f"start=-{_KEPT_BYTES}&limit={_KEPT_BYTES}"
        try:
            # `safe=""`: a slash in the name must not become part of the path.
            log = self._get(f"/api/v1/logs/{quote(request.process, safe='')}?{part}")
        except ElasticDLError as error:
            names = ", ".join(entry.process for entry in self.logs()) or "none yet"
            hint = f"there are {names}"
            if not state.running_master:
                hint += f"; logs of deleted pods are in {_job_dir(state)}/logs"
            raise NoSuchJob(
                f"job {self.name} in {self.place} has no log of {request.process!r}", hint=hint
            ) from error
        return "".join(str(log["text"]).splitlines(keepends=True)[-request.lines :])

    @contextmanager
    def page(self, *, read_only: bool = False) -> Iterator[str]:
        """See Job. The page is reached through the API server."""
        with self._master.page(self._running(), read_only=read_only) as address:
            yield address

    def story(self) -> Diagnosis:
        """See Job.

        A running master has it in memory; an ended master has printed it in its log.
        """
        state = self.job_state()
        if state.running_master and state.ended is None:
            return Diagnosis(self._snapshot()["story"])
        from elasticdl.history.diagnosis import Story
        from elasticdl.history.diagnosis_text import MOST_LOGGED, story_of_lines

        if state.ended is None:
            hint = f" ({_hint(state)})" if state.barred is not None else ""
            return Diagnosis(
                Story().as_dict(),
                f"the history, because the master is not running: {state.waits_for}{hint}",
            )
        log, why_not = "", "the master was killed, or has an older version"
        try:
            # More lines than the story has: other lines of the log stand between.
            log = "".join(self.read_log(LogRequest("master-0", 4 * MOST_LOGGED)))
        except ElasticDLError as error:
            why_not = error.message
        story = story_of_lines(log.splitlines())
        if story is not None:
            return Diagnosis(story)
        where = (
            f"events.jsonl in {_job_dir(state)}, if that is on a volume: `elasticdl why"
            " --job-dir …` where it is mounted"
        )
        return Diagnosis(
            Story().as_dict(),
            f"its master left no story in its log ({why_not}); what was recorded is in {where}",
        )

    def snapshot(self) -> dict[str, object]:
        """See Job. Only a running master has it."""
        return self._snapshot("?logs=1")

    def _snapshot(self, query: str = "") -> dict[str, Any]:
        try:
            return self._get(f"/api/v1/snapshot{query}")
        except TransientError as error:
            raise self._master.explained(error) from error

    def _get(self, path: str) -> dict[str, Any]:
        """Call the HTTP API of the master. Raises ElasticDLError."""
        from elasticdl.cli.jobs.master_http import get_json

        with self.page() as address:
            return get_json(address, path)

    def close(self) -> None:
        """See Job. It may be used again."""
        self._master.close()

    def _running(self) -> JobState:
        state = self.job_state()
        if state.ended is not None:
            where = (
                f"; report.html is in its directory, {state.ended.job_dir}"
                if state.ended.job_dir
                else ""
            )
            raise NoSuchJob(
                f"job {self.name} in {self.place} has ended",
                hint=f"see `elasticdl status {self.name}`{where}",
            )
        if state.waits_for:
            raise TransientError(
                f"job {self.name} in {self.place} cannot be reached: {state.waits_for}",
                hint="try again later",
            )
        return state

    def _report(self, state: JobState, status: JobStatus, ended: Outcome | None = None) -> Report:
        age_s = time.time() - state.created_wall_s
        return Report.of(self, str(state.standing), age_s, status, ended, _hint(state))


def after_deletion(state: JobState) -> str:
    """Return the next step for a job without an outcome: its checkpoints may still exist."""
    spec = state.spec
    if spec is None or not spec.resume_command:
        return ""
    where = f"{spec.cluster.job_dir}/checkpoints"
    return f"; its newest checkpoint, if any, is in {where}; resume with: {spec.resume_command}"


def _hint(state: JobState) -> str:
    """Return the next step for a job that cannot start; '' for other jobs."""
    from elasticdl.cluster.kubernetes.job_state import HINTS

    return (
        "" if state.barred is None else f"{HINTS[state.barred.lasting]}; {removal_hint(state.name)}"
    )


def _job_dir(state: JobState) -> str:
    return "its directory" if state.spec is None else state.spec.cluster.job_dir
