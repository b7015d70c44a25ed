"""Parts of a job's status for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elasticdl.job_status import NotBegun, ProcessStatus, Receipt, ReceiptEpoch, ReceiptTotal


def process(name: str, state: str = "ready", **changes: Any) -> ProcessStatus:
    plain = ProcessStatus(
        name=name,
        role=name.partition("-")[0],
        state=state,
        since_s=0.0,
        started_s=0.0,
        where=None,
        cause=None,
        message="",
        shard=None,
        records=0,
        evaluated=0,
    )
    return replace(plain, **changes)


def epoch(number: int, expected: int, trained: int, repeated: int = 0) -> ReceiptEpoch:
    return ReceiptEpoch(number, expected, trained, repeated, 0, 0, expected - trained)


def receipt(*epochs: ReceiptEpoch, expected: int = 0, trained: int = 0, **changes: Any) -> Receipt:
    total = ReceiptTotal(expected, trained, 0, 0, 0, expected - trained)
    plain = Receipt(epochs, 0, NotBegun(0, 0), total, False, None, None)
    return replace(plain, **changes)
