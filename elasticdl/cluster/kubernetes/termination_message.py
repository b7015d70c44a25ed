"""How a job ended, as its master leaves it in its pod's termination message: the one thing that
outlives a pod. Pure.

A node keeps 4096 bytes of it. What does not fit is left out, the least important first, never cut
into nonsense.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from elasticdl.cluster.kubernetes.pod_spec import CONTAINER
from elasticdl.jobdir.outcome import Outcome

LIMIT_BYTES = 4096
_SHORT = 1000
_ELLIPSIS = " …"


def outcome_text(outcome: Outcome) -> str:
    """At most 4096 bytes of JSON."""
    total = {"total": outcome.receipt.get("total") or {}} if outcome.receipt else {}
    shorter: tuple[Callable[[Outcome], Outcome], ...] = (
        lambda one: replace(one, receipt=total),
        lambda one: replace(one, hint=_cut(one.hint, _SHORT)),
        lambda one: replace(one, message=_cut(one.message, 2 * _SHORT)),
        lambda one: replace(one, metrics={}),
        lambda one: replace(one, message=_cut(one.message, _SHORT), output="", job_dir=""),
        lambda one: Outcome(one.exit_code, _cut(one.message, _SHORT // 4), receipt=total),
    )
    text = _json(outcome)
    for step in shorter:
        if len(text.encode()) <= LIMIT_BYTES:
            break
        outcome = step(outcome)
        text = _json(outcome)
    return text


def read_outcome(pod: Mapping[str, Any]) -> Outcome | None:
    """What the master of a pod left; None if it left nothing, as one that was killed."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if container.get("name") == CONTAINER and ended:
            with suppress(ValueError, RecursionError):
                found = json.loads(str(ended.get("message") or ""))
                return Outcome.from_json(found) if isinstance(found, dict) else None
    return None


def _json(outcome: Outcome) -> str:
    return json.dumps(outcome.to_json(), ensure_ascii=False, separators=(",", ":"))


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[:characters] + _ELLIPSIS
