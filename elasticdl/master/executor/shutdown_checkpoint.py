"""A last checkpoint before a master leaves, so that the next one repeats little work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from elasticdl.master.core.events import CheckpointRequested
from elasticdl.master.core.job_context import Phase
from elasticdl.master.core.state import JobState
from elasticdl.master.event_queue import EventQueue

_LOG = logging.getLogger(__name__)
LIMIT_S = 40.0
"""Time limit in seconds. A pod's grace period is a minute (`cluster/kubernetes/planning.py`)."""
_LOOK_EVERY_S = 0.1


async def checkpoint_in_time(
    core: JobState, queue: EventQueue, running: asyncio.Future[Any], possible: Callable[[], bool]
) -> None:
    """Request a checkpoint and wait for it while it is `possible`, up to the time limit.

    If the job is about to end, wait for that end instead.
    """
    asked_at_s = queue.at_s()
    before = core.status()
    # Before the first step there is nothing to save.
    wanted = (
        possible()
        and before.phase in (Phase.WORKING, Phase.EVALUATING)
        and bool(before.version or before.records.trained)
    )
    if wanted:
        queue.post(CheckpointRequested(asked_at_s))
    while not running.done() and queue.at_s() - asked_at_s < LIMIT_S:
        status = core.status()
        # One of an earlier cut may complete first. Versions do not tell: the status may have an
        # old one, and a server that comes back lowers it.
        taken = core.newest_cut_s >= asked_at_s
        about_to_end = status.exit_code is not None or status.phase in (
            Phase.CHECKPOINTING,
            Phase.EXPORTING,
        )
        if not about_to_end and (taken or not wanted or not possible()):
            _LOG.info("exiting %s a last checkpoint", "after" if taken else "without")
            return
        await asyncio.sleep(_LOOK_EVERY_S)
