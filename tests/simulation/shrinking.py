"""Makes a job that fails smaller, as long as it fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from elasticdl.shard import Source
from tests.simulation.network import Weather
from tests.simulation.workload import Plan, spec_of
from tests.simulation.world import simulate_plan

MOST_TRIES = 200
_LIKE = 40
"""Failures are alike if their texts begin with the same so many characters, numbers aside."""


def failure_of(plan: Plan) -> str:
    """What fails, '' if all is well. Only within `simulation()`."""
    try:
        simulate_plan(plan)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the failure
        return f"{type(error).__name__}: {error}"
    return ""


def shrunk(
    plan: Plan, what: str, failure: Callable[[Plan], str] = failure_of, tries: int = MOST_TRIES
) -> Plan:
    """The smallest job that was found to fail as `what` says, which this one does."""
    wanted, smaller = _form(what), True
    while smaller:
        smaller = False
        for candidate in _simpler(plan):
            if tries <= 0:
                return plan
            tries -= 1
            if _form(failure(candidate)) == wanted:
                plan, smaller = candidate, True
                break
    return plan


def _form(what: str) -> str:
    return re.sub(r"\d+", "#", what)[:_LIKE]


def _simpler(plan: Plan) -> Iterator[Plan]:
    """Jobs with something less: what removes most comes first."""
    if len(plan.faults) > 1:
        half = len(plan.faults) // 2
        yield replace(plan, faults=plan.faults[:half])
        yield replace(plan, faults=plan.faults[half:])
    for place in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:place] + plan.faults[place + 1 :])
    rows = sum(one.records for one in plan.training)
    for fewer in {rows // 2, rows - 1, rows} if rows > 1 else ():
        training = (Source("t0", fewer),)
        if training != plan.training:
            yield replace(plan, training=training)
    calm = {"weather": Weather(), "bad_every": 0, "gives_way": 0.0, "feed_s": 0.0, "step_s": 0.0}
    for name, value in calm.items():
        if getattr(plan, name) != value:
            yield replace(plan, **{name: value})  # type: ignore[arg-type]  # names of its fields
    for flags in _fewer_flags(plan.flags):
        validation = plan.validation if "validation_data" in flags else ()
        yield replace(plan, flags=flags, spec=spec_of(flags), validation=validation)


def _fewer_flags(flags: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for gone in (
        ("validation_data", "evaluation_steps"),
        ("export_seconds",),
        ("output", "export_seconds"),
        ("virtual_workers",),
    ):
        if gone[0] in flags:
            yield {name: value for name, value in flags.items() if name not in gone}
    low, _, high = flags["num_workers"].partition(":")
    plain = {
        "num_epochs": 1,
        "checkpoint_steps": 0,
        "checkpoint_seconds": 0,
        "keep_checkpoint_max": 0,
        "shuffle": "none",
        "num_workers": f"{low}:{low}" if low != high else "1:1",
        **({"num_ps_pods": 1} if "num_ps_pods" in flags else {}),
    }
    for name, value in plain.items():
        if flags[name] != value and not (name == "num_workers" and flags.get("sync")):
            yield {**flags, name: value}
