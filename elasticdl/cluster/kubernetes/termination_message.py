"""A job's outcome in the termination message of its master's pod, which outlives the process. Pure.

A node keeps 4096 bytes of it. What does not fit is omitted, the least important first, so that the
JSON stays valid.
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
    """The outcome as at most 4096 bytes of JSON."""
    receipt = outcome.receipt
    total = {key: receipt.get(key) or {} for key in ("total", "updates") if key in receipt}
    shorter: tuple[Callable[[Outcome], Outcome], ...] = (
        lambda full: replace(full, receipt=total),
        lambda full: replace(full, hint=_cut(full.hint, _SHORT)),
        lambda full: replace(full, message=_cut(full.message, 2 * _SHORT)),
        lambda full: replace(full, metrics={}),
        lambda full: replace(full, message=_cut(full.message, _SHORT), output="", job_dir=""),
        lambda full: Outcome(full.exit_code, _cut(full.message, _SHORT // 4), receipt=total),
    )
    text = _json(outcome)
    for step in shorter:
        if len(text.encode()) <= LIMIT_BYTES:
            break
        outcome = step(outcome)
        text = _json(outcome)
    return text


def read_outcome(pod: Mapping[str, Any]) -> Outcome | None:
    """The outcome that a master's pod left.

    None if it left none, for example because it was killed.
    """
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if container.get("name") == CONTAINER and ended:
            return parsed_outcome(str(ended.get("message") or ""))
    return None


def parsed_outcome(text: str) -> Outcome | None:
    """The inverse of `outcome_text`; None for any other text."""
    with suppress(ValueError, RecursionError):
        parsed = json.loads(text)
        return Outcome.from_json(parsed) if isinstance(parsed, dict) else None
    return None


def _json(outcome: Outcome) -> str:
    return json.dumps(outcome.to_json(), ensure_ascii=False, separators=(",", ":"))


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[:characters] + _ELLIPSIS
