"""What happened, in the past tense: the only input of `JobState.handle`.

The journal stores events. Every event carries `at_s`: monotonic seconds since the job began, which
keep growing after a restart of the master. Import events from here; `codec.py` knows those that
are named here.
"""

from elasticdl.master.core.events.base import Event, Numbers
from elasticdl.master.core.events.job import (
    JobStarted,
    MasterStarted,
    MasterTookOver,
    PreflightFailed,
    PreflightProgressed,
    Tick,
)
from elasticdl.master.core.events.measurements import (
    ActivityReported,
    CpuShareReported,
    MessagesDropped,
    ServerDelayed,
    StalenessChosen,
    StepDelayed,
    StepsWaited,
    TimeReported,
)
from elasticdl.master.core.events.processes import (
    ConnectionLost,
    CreateFailed,
    ProcessAttached,
    ProcessEnded,
    ProcessReturned,
    ProcessSeen,
    ProcessSilent,
    ServerStandsBy,
    StartWentOn,
    StateReported,
)
from elasticdl.master.core.events.requests import (
    CheckpointRequested,
    ReplaceRequested,
    ScaleRequested,
    ScaleServersRequested,
    StopRequested,
)
from elasticdl.master.core.events.snapshots import (
    SnapshotCut,
    SnapshotFailed,
    SnapshotSaved,
)
from elasticdl.master.core.events.work import (
    ExportFinished,
    GradientDropped,
    LeaseRequested,
    LeaseReturned,
    ProgressReported,
    PushesReported,
    RingReported,
    StepApplied,
    SummaryReported,
    TaskFailed,
    VersionAdvanced,
    WorkerFenced,
    WorkerStopRequested,
)

__all__ = [
    "ActivityReported",
    "CheckpointRequested",
    "ConnectionLost",
    "CpuShareReported",
    "CreateFailed",
    "Event",
    "ExportFinished",
    "GradientDropped",
    "JobStarted",
    "LeaseRequested",
    "LeaseReturned",
    "MasterStarted",
    "MasterTookOver",
    "MessagesDropped",
    "Numbers",
    "PreflightFailed",
    "PreflightProgressed",
    "ProcessAttached",
    "ProcessEnded",
    "ProcessReturned",
    "ProcessSeen",
    "ProcessSilent",
    "ProgressReported",
    "PushesReported",
    "ReplaceRequested",
    "RingReported",
    "ScaleRequested",
    "ScaleServersRequested",
    "ServerDelayed",
    "ServerStandsBy",
    "SnapshotCut",
    "SnapshotFailed",
    "SnapshotSaved",
    "StalenessChosen",
    "StartWentOn",
    "StateReported",
    "StepApplied",
    "StepDelayed",
    "StepsWaited",
    "StopRequested",
    "SummaryReported",
    "TaskFailed",
    "Tick",
    "TimeReported",
    "VersionAdvanced",
    "WorkerFenced",
    "WorkerStopRequested",
]
