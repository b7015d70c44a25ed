"""Logs of pods: which exist, their last lines, and all that follows.

A broken connection neither loses nor repeats a line.
"""

from __future__ import annotations

import asyncio
import codecs
import random
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, final

from elasticdl.cluster.base import ProcessName
from elasticdl.cluster.kubernetes.apiserver import ApiAway, ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.job_state import JobState
from elasticdl.cluster.kubernetes.pod_spec import CONTAINER
from elasticdl.cluster.kubernetes.pods import exit_status, has_ended, observed, trouble
from elasticdl.errors import ClusterRefused, ElasticDLError, PermanentError, TransientError

AWAY_S = 120.0
"""How long to keep following while the API server is unreachable."""
_SILENCE_S = 60.0
_AGAIN_S = 1.0
_LONGEST_PAUSE_S = 8.0
"""The longest wait before a new connection to a node that cannot be reached."""


def entries(state: JobState) -> list[tuple[str, str]]:
    """Every log, by process and incarnation, with the state of its pod."""
    return [(str(name), _state(pod)) for name, pod in state.processes()]


def chosen(state: JobState, process: str) -> Mapping[str, Any] | None:
    """The pod of a process: `ps-0` is its newest incarnation, `ps-0.1` exactly that one.

    None if there is none.
    """
    try:
        wanted = ProcessName.parse(process)
    except ValueError:
        return None
    pods = {
        name: pod
        for name, pod in state.processes()
        if (name.role, name.index) == (wanted.role, wanted.index)
    }
    if "." in process or not pods:
        return pods.get(wanted)
    return pods[max(pods)]


async def last(api: ApiServer, pod: Mapping[str, Any], lines: int) -> AsyncGenerator[str]:
    """The last lines of a log; 0: all. Raises ElasticDLError."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    try:
        async with aclosing(api.chunks(log_address(pod), _query(lines), _SILENCE_S)) as chunks:
            async for chunk in chunks:
                yield decode(chunk)
        yield decode(b"", final=True)
    except ApiRefused as refused:
        if _not_yet(refused):
            raise TransientError(
                f"{pod['metadata']['name']} has printed nothing yet: {trouble(pod).text}"
            ) from refused
        raise _error(refused, pod) from refused


async def followed(
    api: ApiServer,
    pod: Mapping[str, Any],
    lines: int,
    *,
    since_s: float | None = None,
    silence_s: float = _SILENCE_S,
    again_s: float = _AGAIN_S,
) -> AsyncGenerator[str]:
    """The last lines (0: all), then all that follows until the pod has ended.

    `since_s`, a time of the wall clock, replaces `lines`. Without output for `silence_s` it
    connects again. Waits for a pod that does not run yet, and `again_s` before each new connection,
    twice as long after each that failed. Raises ElasticDLError.
    """
    position, opened = _Position(lines, since_s), False
    heard_s, pause_s = time.monotonic(), again_s
    while True:
        began_s = time.monotonic()
        try:
            async with aclosing(
                api.chunks(log_address(pod), position.query(), silence_s)
            ) as chunks:
                async for chunk in chunks:
                    opened = True
                    heard_s, pause_s = time.monotonic(), again_s
                    if text := position.fresh(chunk):
                        yield text
            if text := position.rest():
                yield text
            if await _has_ended(api, pod):
                return
        except ApiRefused as refused:
            if opened and refused.status.code == 404:
                return  # A stream may end just before its pod, which is deleted soon.
            if not _not_yet(refused):
                raise _error(refused, pod) from refused
            heard_s, pause_s = time.monotonic(), again_s
        except ApiAway as away:
            now_s = time.monotonic()
            if now_s - began_s >= silence_s:
                # A minute without output is normal; reconnect in case the connection is dead.
                heard_s, pause_s = now_s, again_s
            elif now_s - heard_s > AWAY_S:
                raise TransientError(f"cannot follow the log any further: {away.message}") from away
            else:
                # A job follows hundreds of logs, and a network of nodes may be out of reach.
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        position.again()
        await asyncio.sleep(pause_s * random.uniform(0.8, 1.0))


@final
class _Position:
    """How far a log was read.

    Every line begins with the time at which the node received it, which is removed.
    """

    def __init__(self, lines: int, since_s: float | None) -> None:
        self._lines = lines
        since = None if since_s is None else datetime.fromtimestamp(since_s, UTC)
        self._newest = b"" if since is None else since.strftime("%Y-%m-%dT%H:%M:%SZ").encode()
        self._seen_before = b""
        self._half = b""

    def query(self) -> dict[str, str]:
        """The query for the rest.

        The server knows only whole seconds, so lines that were seen come again and are skipped
        here.
        """
        begin = (
            {"sinceTime": f"{self._newest[:19].decode()}Z"} if self._newest else _query(self._lines)
        )
        return {**begin, "follow": "true", "timestamps": "true"}

    def again(self) -> None:
        """The next bytes come from a new connection."""
        self._seen_before, self._half = self._newest, b""

    def fresh(self, chunk: bytes) -> str:
        """The whole lines that were not seen yet."""
        *whole, self._half = (self._half + chunk).split(b"\n")
        return b"".join(
            text + b"\n" for line in whole if (text := self._take(line)) is not None
        ).decode("utf-8", "replace")

    def rest(self) -> str:
        """A last line without its end."""
        text = self._take(self._half) if self._half else None
        self._half = b""
        return (text or b"").decode("utf-8", "replace")

    def _take(self, line: bytes) -> bytes | None:
        stamp, space, text = line.partition(b" ")
        if not space and not stamp:
            return None
        # Times are in UTC; they have one format, except that trailing zeros are omitted.
        if self._seen_before and _sortable(stamp) <= _sortable(self._seen_before):
            return None
        self._newest = stamp
        return text


def _sortable(stamp: bytes) -> tuple[bytes, bytes]:
    whole, _, part = stamp.rstrip(b"Z").partition(b".")
    return whole, part.ljust(9, b"0")


def _state(pod: Mapping[str, Any]) -> str:
    seen = observed(pod)
    if has_ended(pod):
        status = exit_status(pod, asked=False)
        how = (
            f"signal {status.signal}"
            if status.signal is not None
            else f"exit code {status.exit_code}"
        )
        why = ", ".join([*([status.reason] if status.reason else []), *status.conditions])
        return f"ended with {how}" + (f" ({why})" if why else "")
    return f"runs on {seen.where}" if seen.running else seen.waiting_for


def _query(lines: int) -> dict[str, str]:
    return {"container": CONTAINER, **({"tailLines": str(lines)} if lines else {})}


def log_address(pod: Mapping[str, Any]) -> str:
    """The path of a pod's log on the API server."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/log"


def _not_yet(refused: ApiRefused) -> bool:
    return refused.status.code == 400 and "waiting to start" in refused.message


def _error(refused: ApiRefused, pod: Mapping[str, Any]) -> ElasticDLError:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    known = {
        403: f"you may not read logs in namespace {namespace} (get pods/log)",
        404: f"pod {name} is gone, and its log with it",
    }
    kind = ClusterRefused if refused.status.code == 403 else PermanentError
    return kind(
        known.get(refused.status.code, f"cannot read the log of pod {name}: {refused.message}")
    )


async def _has_ended(api: ApiServer, pod: Mapping[str, Any]) -> bool:
    """Whether the pod has ended or is gone. Raises ApiAway."""
    try:
        now = await api.get(log_address(pod).removesuffix("/log"))
    except ApiRefused:
        return True
    return bool(now["metadata"]["uid"] != pod["metadata"]["uid"]) or has_ended(now)
