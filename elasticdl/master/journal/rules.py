"""Which events a replay needs."""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl.master.core.commands import Command, NoLeaseNow
from elasticdl.master.core.events import (
    ActivityReported,
    CpuShareReported,
    Event,
    LeaseRequested,
    MessagesDropped,
    ProcessSeen,
    ProgressReported,
    PushesReported,
    ServerDelayed,
    StalenessChosen,
    StepApplied,
    StepDelayed,
    StepsWaited,
    Tick,
    TimeReported,
    VersionAdvanced,
)


def worth_keeping(event: Event, commands: Sequence[Command]) -> bool:
    """Return whether an event leaves a trace in the state.

    Time without effect does not, and neither do lease requests without a lease.
    """
    match event:
        case Tick():
            return bool(commands)
        case LeaseRequested():
            return not all(isinstance(command, NoLeaseNow) for command in commands)
        case _:
            return True


def may_free_work(event: Event) -> bool:
    """Return whether waiting workers should ask for a lease again after this event."""
    match event:
        case (
            ActivityReported()
            | LeaseRequested()
            | ProcessSeen()
            | VersionAdvanced()
            | MessagesDropped()
            | PushesReported()
            | StepApplied()
            | StalenessChosen()
            | StepDelayed()
            | StepsWaited()
            | ServerDelayed()
            | CpuShareReported()
            | TimeReported()
        ):
            return False
        case ProgressReported():
            return event.done
        case _:
            return True
