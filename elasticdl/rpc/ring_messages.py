"""The ring's part of the conversation on the wire: protobuf messages to frozen values and back.

The fields have the same names on both sides. Invalid messages raise ValueError.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.conversation import (
    RingCut,
    RingGeneration,
    RingReport,
    RingSave,
    RingSaved,
    WrittenFile,
)
from elasticdl.rpc.wire_counts import count_of
from elasticdl.shard import SnapshotId

_MAX_MEMBERS = 10_000
_MAX_FILES = 10_000
_MAX_TEXT_CHARS = 16_000


def _bounded(value: RingReport | RingSaved) -> dict[str, Any]:
    return {**asdict(value), "problem": value.problem[:_MAX_TEXT_CHARS]}


def report_to_wire(report: RingReport) -> pb.RingReport:
    """RingReport -> message."""
    return pb.RingReport(**_bounded(report))


def report_from_wire(message: pb.RingReport) -> RingReport:
    """Message -> RingReport. Raises ValueError."""
    return RingReport(
        message.ready,
        count_of(message.entered, "entered"),
        count_of(message.broken, "broken"),
        message.leaving,
        message.problem[:_MAX_TEXT_CHARS],
        count_of(message.version, "version"),
        count_of(message.number, "number"),
        max(-1, message.offset),
    )


def cut_to_wire(cut: RingCut) -> pb.RingCut:
    """RingCut -> message."""
    return pb.RingCut(**asdict(cut))


def cut_from_wire(message: pb.RingCut) -> RingCut:
    """Message -> RingCut. Raises ValueError."""
    return RingCut(
        SnapshotId(count_of(message.snapshot, "snapshot")), count_of(message.version, "version")
    )


def saved_to_wire(saved: RingSaved) -> pb.RingSaved:
    """RingSaved -> message."""
    return pb.RingSaved(**_bounded(saved))


def saved_from_wire(message: pb.RingSaved) -> RingSaved:
    """Message -> RingSaved.

    What a checkpoint makes of the names is checked with its manifest. Raises ValueError.
    """
    if len(message.files) > _MAX_FILES:
        raise ValueError(
            f"a checkpoint of {len(message.files)} files, expected at most {_MAX_FILES}"
        )
    return RingSaved(
        snapshot=SnapshotId(count_of(message.snapshot, "snapshot")),
        directory=message.directory,
        version=count_of(message.version, "version"),
        files=tuple(
            WrittenFile(file.name, count_of(file.bytes, "bytes"), file.checksum)
            for file in message.files
        ),
        parameters=message.parameters,
        rows=count_of(message.rows, "rows"),
        problem=message.problem[:_MAX_TEXT_CHARS],
        paused_s=message.paused_s,
    )


def generation_to_wire(generation: RingGeneration) -> pb.RingGeneration:
    """RingGeneration -> message."""
    return pb.RingGeneration(**asdict(generation))


def generation_from_wire(message: pb.RingGeneration) -> RingGeneration:
    """Message -> RingGeneration. Raises ValueError."""
    members, holders = tuple(message.members), tuple(message.holders)
    if not 1 <= len(members) <= _MAX_MEMBERS or not all(
        0 <= rank < len(members) for rank in holders
    ):
        raise ValueError(
            f"a ring of {len(members)} members that take the weights of one of the ranks"
            f" {list(holders)}"
        )
    return RingGeneration(
        number=count_of(message.number, "number"),
        members=members,
        holders=holders,
        first_item=count_of(message.first_item, "first_item"),
        restore_from=message.restore_from,
        port=count_of(message.port, "port"),
        scope=message.scope,
    )


def save_from_wire(message: pb.RingSave) -> RingSave:
    """Message -> RingSave. Raises ValueError."""
    return RingSave(SnapshotId(count_of(message.snapshot, "snapshot")), message.directory)
