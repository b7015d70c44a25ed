"""Which events a replay needs."""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl.master.core.commands import Command, NoLeaseNow
from elasticdl.master.core.events import (
    ActivityTold,
    Event,
    LeaseRequested,
    MessagesDropped,
    ProcessSeen,
    ProgressReported,
    Tick,
    VersionAdvanced,
)


def worth_keeping(event: Event, commands: Sequence[Command]) -> bool:
    """Time that passed without effect, and questions that got no lease, leave no trace in the
    state.
    """
    match event:
        case Tick():
            return bool(commands)
        case LeaseRequested():
            return not all(isinstance(command, NoLeaseNow) for command in commands)
        case _:
            return True


def may_free_work(event: Event) -> bool:
    """Whether those who wait for a lease should ask again after this event."""
    match event:
        case (
            ActivityTold()
            | LeaseRequested()
            | ProcessSeen()
            | VersionAdvanced()
            | MessagesDropped()
        ):
            return False
        case ProgressReported():
            return event.done
        case _:
            return True
