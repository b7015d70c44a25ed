"""Which bytes a server of a new layout takes from the files of an old one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.checkpoint.part import ADDITIVE, Part, PartHeader, read_header
from elasticdl.embedding.spec import (
    DenseSpec,
    OptimizerKind,
    OptimizerSpec,
    ParametersSpec,
    TableSpec,
    even_slice,
)
from elasticdl.errors import Corrupted

pytestmark = pytest.mark.core


def part(spec: ParametersSpec, server: int, servers: int, rows: tuple[int, ...]) -> Part:
    trainable, additive = (
        even_slice(spec.trainable_size, server, servers),
        even_slice(spec.additive_size, server, servers),
    )
    header = PartHeader(
        server=server,
        servers=servers,
        version=1,
        step_base=0,
        trainable=(trainable.start, trainable.stop),
        additive=(additive.start, additive.stop),
        rows=rows,
        workers={},
        run="",
        parameters=spec,
    )
    return Part(header, 100)


@given(
    st.integers(0, 40),
    st.integers(0, 20),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([OptimizerKind.SGD, OptimizerKind.ADAM]),
)
def test_every_dense_value_is_taken_once_and_by_its_new_owner(
    trainable: int, additive: int, old: int, new: int, kind: OptimizerKind
) -> None:
    spec = ParametersSpec(
        optimizer=OptimizerSpec(kind=kind),
        dense=(
            DenseSpec(path="w", shape=(trainable,)),
            DenseSpec(path="m", shape=(additive,), additive=True),
        ),
    )
    taken: Counter[tuple[int, int]] = Counter()
    for k in range(new):
        for j in range(old):
            source = part(spec, j, old, ())
            for read in source.dense_reads(k, new):
                size, theirs = (
                    (additive, source.header.additive)
                    if read.section == ADDITIVE
                    else (trainable, source.header.trainable)
                )
                section = 1 + spec.optimizer.slots if read.section == ADDITIVE else read.section + 1
                before = section * (source.header.trainable[1] - source.header.trainable[0])
                for i in range(read.count):
                    there = theirs[0] + (read.offset - 100) // 4 - before + i
                    here = even_slice(size, k, new).start + read.at + i
                    assert there == here
                    taken[(read.section, here)] += 1
    assert set(taken.values()) <= {1}
    assert len(taken) == trainable * (1 + spec.optimizer.slots) + additive


@given(st.integers(1, 6), st.integers(1, 6), st.integers(-1000, 1000))
def test_no_row_is_missed_by_the_files_that_are_skipped(old: int, new: int, row_id: int) -> None:
    spec = ParametersSpec(
        optimizer=OptimizerSpec(kind=OptimizerKind.SGD), tables=(TableSpec(name="t", dim=2),)
    )
    source = part(spec, row_id % old, old, (1,))
    assert len(list(source.table_reads(row_id % new, new))) == 1


def test_a_file_is_only_skipped_if_no_id_is_in_both() -> None:
    spec = ParametersSpec(
        optimizer=OptimizerSpec(kind=OptimizerKind.SGD), tables=(TableSpec(name="t", dim=2),)
    )
    needed = [
        [bool(list(part(spec, j, 4, (1,)).table_reads(k, 2))) for j in range(4)] for k in range(2)
    ]
    assert needed == [[True, False, True, False], [False, True, False, True]]


def test_tables_follow_one_another(tmp_path: Path) -> None:
    spec = ParametersSpec(
        optimizer=OptimizerSpec(kind=OptimizerKind.ADAM),
        dense=(DenseSpec(path="w", shape=(3,)),),
        tables=(TableSpec(name="a", dim=2), TableSpec(name="b", dim=1), TableSpec(name="c", dim=1)),
    )
    made = part(spec, 0, 1, (10, 0, 3))
    reads = [(read.table, read.offset, read.rows) for read in made.table_reads(0, 1)]
    assert reads == [(0, 100 + 36, 10), (2, 136 + 10 * (8 + 24), 3)]
    assert made.bytes == 136 + 320 + 3 * (8 + 12)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"EDLPART1",
        b"EDLPART2" + bytes(8),
        b"EDLPART1" + b"\xff" * 8,
        b"EDLPART1" + b"\x02" + bytes(7) + b"{}",
    ],
)
def test_what_is_no_part_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "server-0-of-1.bin"
    path.write_bytes(data)
    with pytest.raises(Corrupted, match=r"server-0-of-1\.bin"):
        read_header(path)
