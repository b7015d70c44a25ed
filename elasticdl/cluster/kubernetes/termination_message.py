"""How a job ended, as its master leaves it in its pod's termination message: the one thing that
outlives a pod. Pure.

A node keeps 4096 bytes of it. What does not fit is left out, the least important first, never cut
into nonsense.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

from elasticdl.cluster.kubernetes.pod_spec import CONTAINER

LIMIT_BYTES = 4096
_SHORT = 1000
_ELLIPSIS = " …"


@final
@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a job.

    `receipt` is the total in records, `metrics` those of the last evaluation.
    """

    exit_code: int
    message: str
    hint: str = ""
    receipt: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    loss: float | None = None
    output: str = ""
    job_dir: str = ""


def outcome_text(ended: Ended) -> str:
    """At most 4096 bytes of JSON."""
    shorter: tuple[Callable[[Ended], Ended], ...] = (
        lambda one: replace(one, hint=_cut(one.hint, _SHORT)),
        lambda one: replace(one, message=_cut(one.message, 2 * _SHORT)),
        lambda one: replace(one, metrics={}),
        lambda one: replace(one, message=_cut(one.message, _SHORT), output="", job_dir=""),
        lambda one: Ended(one.exit_code, _cut(one.message, _SHORT // 4), receipt=one.receipt),
    )
    text = _json(ended)
    for step in shorter:
        if len(text.encode()) <= LIMIT_BYTES:
            break
        ended = step(ended)
        text = _json(ended)
    return text


def read_outcome(pod: Mapping[str, Any]) -> Ended | None:
    """What the master of a pod left; None if it left nothing, as one that was killed."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if container.get("name") == CONTAINER and ended:
            return _read(str(ended.get("message") or ""))
    return None


def _read(text: str) -> Ended | None:
    try:
        found = json.loads(text)
        return Ended(
            int(found["exit_code"]),
            str(found["message"]),
            str(found.get("hint", "")),
            {str(key): int(value) for key, value in found.get("receipt", {}).items()},
            {str(key): float(value) for key, value in found.get("metrics", {}).items()},
            None if found.get("loss") is None else float(found["loss"]),
            str(found.get("output", "")),
            str(found.get("job_dir", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _json(ended: Ended) -> str:
    return json.dumps(asdict(ended), ensure_ascii=False, separators=(",", ":"))


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[:characters] + _ELLIPSIS
