"""Logs of pods: which there are, their last lines, and what comes after.

A connection that breaks costs no line and repeats none.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, final

from elasticdl.cluster.base import ProcessName
from elasticdl.cluster.kubernetes.apiserver import ApiAway, ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.job_facts import JobFacts
from elasticdl.cluster.kubernetes.pod_log_windows import log_address
from elasticdl.cluster.kubernetes.pod_spec import CONTAINER
from elasticdl.cluster.kubernetes.pods import exit_facts, has_ended, observed, trouble
from elasticdl.errors import ClusterRefused, ElasticDLError, PermanentError, TransientError

AWAY_S = 120.0
"""How long following goes on while the API server is away."""
_SILENCE_S = 60.0
_AGAIN_S = 1.0


def entries(facts: JobFacts) -> list[tuple[str, str]]:
    """Every log, by process and incarnation, with how its pod is doing."""
    return [(str(name), _words(pod)) for name, pod in facts.processes()]


def chosen(facts: JobFacts, process: str) -> Mapping[str, Any] | None:
    """The pod that is meant: `ps-0` is the newest of its incarnations, `ps-0.1` and `ps-0.0` are
    those. None: there is none.
    """
    try:
        wanted = ProcessName.parse(process)
    except ValueError:
        return None
    there = {
        name: pod
        for name, pod in facts.processes()
        if (name.role, name.index) == (wanted.role, wanted.index)
    }
    if "." in process or not there:
        return there.get(wanted)
    return there[max(there)]


async def last(api: ApiServer, pod: Mapping[str, Any], lines: int) -> AsyncGenerator[str]:
    """The last lines that are there now; 0: all. Raises ElasticDLError."""
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
        raise _in_words(refused, pod) from refused


async def followed(api: ApiServer, pod: Mapping[str, Any], lines: int) -> AsyncGenerator[str]:
    """The last lines, then all that comes until the pod has ended.

    Waits for one that does not run yet. Raises ElasticDLError.
    """
    place = _Place(lines)
    heard_s = time.monotonic()
    while True:
        began_s = time.monotonic()
        try:
            async with aclosing(api.chunks(log_address(pod), place.query(), _SILENCE_S)) as chunks:
                async for chunk in chunks:
                    heard_s = time.monotonic()
                    if text := place.fresh(chunk):
                        yield text
            if text := place.rest():
                yield text
            if await _has_ended(api, pod):
                return
        except ApiRefused as refused:
            if not _not_yet(refused):
                raise _in_words(refused, pod) from refused
            heard_s = time.monotonic()
        except ApiAway as away:
            now_s = time.monotonic()
            # Nothing printed for a minute is no fault: the connection is made anew, in case that it
            # is dead.
            heard_s = now_s if now_s - began_s >= _SILENCE_S else heard_s
            if now_s - heard_s > AWAY_S:
                raise TransientError(
                    f"the log cannot be followed any more: {away.message}"
                ) from away
        place.again()
        await asyncio.sleep(_AGAIN_S)


@final
class _Place:
    """How far a log was read.

    Every line comes with the time at which the node got it, which is cut off again.
    """

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._newest = b""
        self._seen_before = b""
        self._half = b""

    def query(self) -> dict[str, str]:
        """Where to begin.

        The server knows whole seconds only: what was seen comes again and is left out here.
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
        # Times are of one length and in UTC, but for trailing zeros that are left out.
        if self._seen_before and _sortable(stamp) <= _sortable(self._seen_before):
            return None
        self._newest = stamp
        return text


def _sortable(stamp: bytes) -> tuple[bytes, bytes]:
    whole, _, part = stamp.rstrip(b"Z").partition(b".")
    return whole, part.ljust(9, b"0")


def _words(pod: Mapping[str, Any]) -> str:
    seen = observed(pod)
    if has_ended(pod):
        facts = exit_facts(pod, asked=False)
        how = (
            f"signal {facts.signal}" if facts.signal is not None else f"exit code {facts.exit_code}"
        )
        why = ", ".join([*([facts.reason] if facts.reason else []), *facts.conditions])
        return f"ended with {how}" + (f" ({why})" if why else "")
    return f"runs on {seen.where}" if seen.running else seen.waiting_for


def _query(lines: int) -> dict[str, str]:
    return {"container": CONTAINER, **({"tailLines": str(lines)} if lines else {})}


def _not_yet(refused: ApiRefused) -> bool:
    return refused.status.code == 400 and "waiting to start" in refused.message


def _in_words(refused: ApiRefused, pod: Mapping[str, Any]) -> ElasticDLError:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    words = {
        403: f"you may not read logs in namespace {namespace} (get pods/log)",
        404: f"pod {name} is gone, and its log with it",
    }
    kind = ClusterRefused if refused.status.code == 403 else PermanentError
    return kind(
        words.get(refused.status.code, f"the log of pod {name} cannot be read: {refused.message}")
    )


async def _has_ended(api: ApiServer, pod: Mapping[str, Any]) -> bool:
    """Raises ApiAway."""
    try:
        now = await api.get(log_address(pod).removesuffix("/log"))
    except ApiRefused:
        return True
    return bool(now["metadata"]["uid"] != pod["metadata"]["uid"]) or has_ended(now)
