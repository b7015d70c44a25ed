"""What happened, in the past tense: the only input of `JobState.handle`.

The journal stores events. Every event carries `at_s`: monotonic seconds since the job began, which
keep growing after a restart of the master. Import events from here; `codec.py` knows those that
are named here.
"""

from elasticdl.master.core.events.base import Event, Numbers
from elasticdl.master.core.events.job import (
    CheckpointRequested,
    JobStarted,
    MasterStarted,
    MasterTookOver,
    PreflightFailed,
    PreflightProgressed,
    ReplaceRequested,
    ScaleRequested,
    ScaleServersRequested,
    StopRequested,
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
from elasticdl.master.core.events.work import (
    ExportFinished,
    GradientDropped,
    LeaseRequested,
    LeaseReturned,
    ProgressReported,
    PushesReported,
    RingReported,
    SnapshotCut,
    SnapshotFailed,
    SnapshotSaved,
    StepApplied,
    SummaryReported,
    TaskFailed,
    VersionAdvanced,
    WorkerFenced,
    WorkerStopRequested,
)
