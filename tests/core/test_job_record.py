"""The events with which masters begin a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.clock import SystemClock
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.master.job_record import JobRecord

pytestmark = pytest.mark.core


def test_a_resume_is_not_called_done_before_its_check(tmp_path: Path) -> None:
    spec = JobSpec.from_flags(
        Action.TRAIN, {"model_zoo": "z", "model_def": "m", "training_data": "t"}
    )
    directory, told = JobDirectory(tmp_path), []
    for term, at_s in ((1, 0.0), (2, 106.0)):
        record = JobRecord(spec, directory, SystemClock())
        begun = record.begins(term, at_s)
        record.event_log.append({"at": at_s, "at_s": at_s}, {"kind": "job", "text": begun.text})
        record.close()
        told.append(begun.text)
    first, second = told
    assert first == "job started: train m"
    assert second.startswith("resuming the job after ") and second.endswith(": train m")
