"""The check of model and data in a pod of its own, like a worker's.

It runs the user's code, so it gets neither the job's token nor a service account. Its log carries
its progress and its result back: each line that begins with CHECK_MARK is a message of the check,
and the others are what the user's code prints.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Final, TypeAlias, final

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import CreateRefused, ExitStatus
from elasticdl.cluster.kubernetes.apiserver import ApiAway, ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.creating import Creator
from elasticdl.cluster.kubernetes.planning import CHECK_MARK
from elasticdl.cluster.kubernetes.plans import Json, Owner
from elasticdl.cluster.kubernetes.pod_logs import followed
from elasticdl.cluster.kubernetes.pod_tracker import NOMINATED_LIMIT_S, START_PROBLEM_LIMIT_S
from elasticdl.cluster.kubernetes.pods import (
    DELETED,
    Nomination,
    Trouble,
    exit_status,
    has_ended,
    is_running,
    never_started,
    trouble,
    uid,
)
from elasticdl.errors import (
    ClusterRefused,
    ElasticDLError,
    ExitCode,
    PermanentError,
    TransientError,
    UserError,
)
from elasticdl.master.core.processes.causes import PLATFORM, Cause, verdict_of

_LOG = logging.getLogger(__name__)
MakePod: TypeAlias = Callable[[int], Json]
"""The pod of the first, second, … attempt."""
_LOST: Final = PLATFORM - {Cause.OUT_OF_MEMORY}
"""Ends that say nothing of the model: another pod checks it."""
_POD: Final = "the pod that checks model and data"
_OUTPUT_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class PreflightPodLimits:
    """Limits and intervals, in seconds.

    `place_s`: how long a pod may wait for its place. `nominated_s`: how long on the node that the
    scheduler chose for it. `quiet_s`: a shorter wait is not worth a word. `start_problem_s`: how
    long its image may be unavailable. `most_lost`: how many pods may be lost.
    """

    place_s: float = 3600.0
    nominated_s: float = NOMINATED_LIMIT_S
    quiet_s: float = 3.0
    start_problem_s: float = START_PROBLEM_LIMIT_S
    look_s: float = 1.0
    again_s: float = 5.0
    last_lines_s: float = 10.0
    delete_s: float = 10.0
    most_lost: int = 10


@final
class PreflightPod:
    """A `PreflightProcess`. Use `run` on one event loop; other threads read the rest."""

    def __init__(
        self,
        api: ApiServer,
        owner: Owner,
        make: MakePod,
        standard: Sequence[int],
        limits: PreflightPodLimits = PreflightPodLimits(),
    ) -> None:
        """`standard` are the descriptors of a process's stdin, stdout and stderr."""
        self._api, self._owner, self._make, self._limits = api, owner, make, limits
        self._path = f"/api/v1/namespaces/{owner.namespace}/pods"
        self._creator = Creator(api, owner.uid, SystemClock())
        self._messages = socket.socket(fileno=os.dup(standard[1]))
        self._messages.setblocking(False)
        self._output = os.dup(standard[2])
        self._existing: Json | None = None
        self.waits_for = ""
        self._end = ""
        self._error: ElasticDLError | None = None

    def end(self) -> str:
        """How the check ended; '' if it has not. Raises ElasticDLError for a pod in trouble."""
        if self._error is not None:
            raise self._error
        return self._end

    def ask_stack(self) -> None:
        """Do nothing: nobody can send a signal into a pod. The check reports by itself."""

    async def run(self) -> None:
        """Start the pod, follow it, and start another one if the cluster ended it.

        Raises ElasticDLError.
        """
        for attempt in count(1):
            status = await self._one(self._make(attempt))
            verdict = verdict_of(status)
            if verdict.cause not in _LOST or attempt > self._limits.most_lost:
                self._judge(status, verdict.cause, verdict.text)
                return
            self.waits_for = f"{_POD} was lost ({verdict.text}): starting another one"
            await self._delete()

    def fail(self, error: BaseException) -> None:
        """Have `end` raise this error."""
        if not isinstance(error, ElasticDLError):
            error = PermanentError(f"cannot follow {_POD}: {error!r}")
        self._error = error

    async def close(self) -> None:
        """Delete the pod."""
        await self._delete()
        self._messages.close()
        os.close(self._output)

    async def _one(self, manifest: Json) -> ExitStatus:
        """Return how the pod ended. Raises ElasticDLError for one that cannot start."""
        began_s = asyncio.get_running_loop().time()
        pod = self._existing = await self._created(manifest, began_s)
        copying: list[asyncio.Future[None]] = []

        def copy() -> None:
            if not copying:
                copying.append(asyncio.ensure_future(self._copy(pod)))

        try:
            status = await self._ended(pod, began_s, copy)
            if copying:  # Its last lines may be its result.
                await asyncio.wait(copying, timeout=self._limits.last_lines_s)
            return status
        finally:
            for task in copying:
                task.cancel()
            await asyncio.gather(*copying, return_exceptions=True)

    async def _created(self, manifest: Json, began_s: float) -> Json:
        # From here on it may exist, also if the answer is lost.
        self._existing = manifest
        while True:
            try:
                return await self._creator.create(self._path, manifest)
            except CreateRefused as refused:
                if not refused.retry:
                    self._existing = None  # A pod of that name is somebody else's.
                    raise ClusterRefused(f"{_POD} cannot be created: {refused.reason}") from None
                self._wait(refused.reason, began_s)
                await asyncio.sleep(self._limits.again_s)

    async def _ended(self, pod: Json, began_s: float, copy: Callable[[], None]) -> ExitStatus:
        """Look at the pod until it has ended; `copy` its log once there is one."""
        loop = asyncio.get_running_loop()
        troubled_s: float | None = None
        nomination = Nomination()
        while True:
            await asyncio.sleep(self._limits.look_s)
            try:
                now = await self._api.find(f"{self._path}/{pod['metadata']['name']}")
            except ApiAway as away:
                self.waits_for = f"{_POD} is out of sight: {away.message}"
                continue
            except ApiRefused as refused:
                raise ClusterRefused(f"cannot see {_POD}: {refused.message}") from refused
            if now is None or uid(now) != uid(pod):
                return ExitStatus(reason=DELETED)
            if has_ended(now):
                self.waits_for = ""
                if (problem := never_started(now)) is not None:
                    raise _cannot_start(problem)
                copy()
                return exit_status(now, asked=False)
            problem = trouble(now)
            nomination.look(now, loop.time())
            if is_running(now):
                self.waits_for = ""
                copy()
            elif forgotten := nomination.trouble(loop.time(), self._limits.nominated_s):
                return ExitStatus(reason=forgotten.lasting, log_tail=forgotten.text)
            elif not problem.lasting:
                troubled_s = None
                self._wait(problem.text, began_s)
            else:
                troubled_s = loop.time() if troubled_s is None else troubled_s
                self._wait(problem.text, began_s)
                if loop.time() > troubled_s + self._limits.start_problem_s:
                    raise _cannot_start(problem)

    def _wait(self, text: str, began_s: float) -> None:
        """Show what the pod waits for. Raises ClusterRefused if it has waited for too long."""
        waited_s = asyncio.get_running_loop().time() - began_s
        if waited_s > self._limits.quiet_s:
            self.waits_for = f"{_POD} waits: {text}"
        if waited_s > self._limits.place_s:
            raise ClusterRefused(
                f"{_POD} got no place within {self._limits.place_s:g} s: {text}",
                hint="it requests what a worker requests: lower --worker-resource-request, or free"
                " the cluster",
            )

    async def _copy(self, pod: Json) -> None:
        """Copy messages and output. Repeated lines, after a long outage, do no harm."""
        while True:
            try:
                async for text in followed(self._api, pod, 0):
                    for line in text.splitlines(keepends=True):
                        await self._pass_on(line)
                return
            except TransientError as error:
                _LOG.warning("%s", error.message)
            except ElasticDLError as error:
                # A pod that is gone has no log; `_ended` tells that it is gone.
                _LOG.warning("%s", error.message)
                if isinstance(error, ClusterRefused):
                    self._error = error
                return

    async def _pass_on(self, line: str) -> None:
        if line.startswith(CHECK_MARK):
            message = line.removeprefix(CHECK_MARK).encode()
            with suppress(BrokenPipeError, ConnectionResetError):  # The result is known.
                await asyncio.get_running_loop().sock_sendall(self._messages, message)
            return
        if os.fstat(self._output).st_size > _OUTPUT_BYTES:
            os.ftruncate(self._output, 0)
            os.lseek(self._output, 0, os.SEEK_SET)
        os.write(self._output, line.encode())

    def _judge(self, status: ExitStatus, cause: Cause, text: str) -> None:
        """Take the end of the last pod."""
        if cause is Cause.OUT_OF_MEMORY:
            self._error = UserError(
                f"the check of model and data: {text}",
                hint="its pod has a worker's memory: raise --worker-resource-limit",
                exit_code=ExitCode.USAGE,
            )
        elif cause in _LOST or cause in (Cause.IMAGE, Cause.START_ERROR):
            self._error = ClusterRefused(f"{_POD} ended: {text}{_detail(status, text)}")
        elif status.signal is not None:
            self._end = f"signal {signal.Signals(status.signal).name}"
        else:
            self._end = f"exit code {status.exit_code}"

    async def _delete(self) -> None:
        """Delete the pod that exists; it ends with the job in any case."""
        if (pod := self._existing) is None:
            return
        self._existing = None
        name, identity = pod["metadata"]["name"], pod["metadata"].get("uid", "")
        try:
            async with asyncio.timeout(self._limits.delete_s):
                while True:
                    with suppress(ApiAway):
                        await self._api.delete(
                            f"{self._path}/{name}", {"gracePeriodSeconds": 1}, uid=identity
                        )
                        return
                    await asyncio.sleep(self._limits.look_s)
        except (ApiRefused, TimeoutError) as error:
            _LOG.warning("cannot delete pod %s: %s", name, error)


def _cannot_start(problem: Trouble) -> ClusterRefused:
    return ClusterRefused(
        f"{_POD} cannot start: {problem.text}",
        hint="workers would have the same image: see --image-name and --image-pull-secrets",
    )


def _detail(status: ExitStatus, text: str) -> str:
    return f": {status.log_tail}" if status.log_tail not in text else ""


@asynccontextmanager
async def preflight_pod(
    api: ApiServer,
    owner: Owner,
    make: MakePod,
    standard: Sequence[int],
    limits: PreflightPodLimits = PreflightPodLimits(),
) -> AsyncIterator[PreflightPod]:
    """Run the check; at the end of the context its pod is deleted."""
    pod = PreflightPod(api, owner, make, standard, limits)
    running = asyncio.ensure_future(pod.run())

    def finished(task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            pod.fail(error)

    running.add_done_callback(finished)
    try:
        yield pod
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await pod.close()
