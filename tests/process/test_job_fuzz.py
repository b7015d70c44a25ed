"""Whole jobs with random flags on parameter servers; `make fuzz-jobs` runs them for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz_jobs.boxed import hold
from tests.fuzz_jobs.flags import Strategy

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def test_jobs_with_random_flags_train_each_record_as_often_as_their_receipt_says(
    tmp_path: Path,
) -> None:
    hold(Strategy.PS, tmp_path)
