"""What is exported is a model: a weight that is no number any more is named instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from elasticdl.embedding.spec import (
    DenseSpec,
    OptimizerKind,
    OptimizerSpec,
    ParametersSpec,
    TableSpec,
)
from elasticdl.shard import Lease, SnapshotId, Task
from elasticdl.worker.pipeline.leases import HeldLease
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.trainer import Batch, Loaded
from elasticdl.worker.process.shutdown import NonFinite
from elasticdl.worker.tasks.export import ExportTask, Tables
from elasticdl.worker.tasks.export_folders import export_folders

pytestmark = pytest.mark.core
SPEC = ParametersSpec(
    optimizer=OptimizerSpec(kind=OptimizerKind.SGD),
    dense=(
        DenseSpec(path="a/kernel", shape=(2, 3)),
        DenseSpec(path="a/mean", shape=(3,), additive=True),
    ),
    tables=(TableSpec(name="items", dim=2),),
)


class FixedParameters:
    def __init__(self) -> None:
        self.vector = np.ones(9, np.float32)
        self.ids, self.weights = np.array([-7, 4]), np.ones((2, 2), np.float32)

    def dense_of(self, lease: Lease) -> NDArray[Any]:
        return self.vector

    def rows_of(self, lease: Lease, table: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        yield self.ids[:1], self.weights[:1]
        yield self.ids[1:], self.weights[1:]


def export(
    parameters: FixedParameters, snapshot: SnapshotId | None = None, outbox: Outbox | None = None
) -> list[Path]:
    written: list[Path] = []

    def write(dense: NDArray[Any], tables: Tables, directory: Path) -> None:
        for _ in tables[0]:
            pass
        written.append(directory)

    task = ExportTask(
        parameters, SPEC, write, "out", export_folders("out", 0, "run"), outbox or Outbox()
    )
    number = None if snapshot is None else 1
    lease = Lease(Task.EXPORT, None, 0, round=number, snapshot=snapshot)
    task.run(Loaded(Batch(HeldLease(lease))))
    return written


def test_a_whole_model_is_written() -> None:
    assert export(FixedParameters()) == [Path("out")]


def test_a_weight_that_is_no_number_is_named_by_variable_or_row() -> None:
    parameters = FixedParameters()
    parameters.weights[1, 1] = np.nan
    with pytest.raises(NonFinite, match="row 4 of table items is nan: the model has diverged"):
        export(parameters)
    parameters.vector[7] = -np.inf
    with pytest.raises(NonFinite, match=r"a/mean\[1\] is -inf"):
        export(parameters)


def test_while_the_job_trains_such_a_weight_costs_that_export_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parameters, outbox = FixedParameters(), Outbox()
    parameters.weights[1, 1] = np.nan
    assert export(parameters, SnapshotId(0), outbox) == []
    report = outbox.take({})
    assert report.exported == "out/1" and "row 4 of table items is nan" in report.export_problem
    assert not (tmp_path / "out/1").exists()
