"""Hot paths of elasticdl, in C++. Each part says its own in `elasticdl/*/native`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# data: elasticdl/data/native

def crc32c(data: bytes, crc: int = 0) -> int: ...
def csv_index(
    fd: int, begin: int, size: int, delimiter: str, quoting: bool, columns: int, stride_records: int, stride_bytes: int
) -> dict[str, Any]: ...
def csv_first_row(data: bytes, final: bool, delimiter: str, quoting: bool) -> list[bytes] | None: ...
def csv_rows(
    data: bytes, delimiter: str, quoting: bool, skip: int, line: int, columns: int, out: NDArray[np.object_]
) -> tuple[int, int, list[tuple[int, str, bytes]]]: ...
def tfrecord_index(fd: int, size: int, stride_records: int, stride_bytes: int) -> dict[str, Any]: ...
def tfrecord_rows(data: bytes, skip: int, out: NDArray[np.object_]) -> tuple[int, int, list[int], int]: ...

# embedding: elasticdl/embedding/native. Arrays are C-contiguous and of exactly these dtypes, else TypeError; wrong
# shapes and values raise ValueError. The GIL is released.

class OptimizerSpec:
    """As elasticdl.embedding.spec.OptimizerSpec."""

    def __init__(
        self,
        kind: str,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        initial_accumulator_value: float = 0.1,
        learning_rate_power: float = -0.5,
        l1: float = 0.0,
        l2: float = 0.0,
        l2_shrinkage: float = 0.0,
        beta: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None: ...
    @property
    def slots(self) -> int: ...

class InitializerSpec:
    """As elasticdl.embedding.spec.InitializerSpec."""

    def __init__(self, kind: str, a: float, b: float) -> None: ...

class Table:
    """An elasticdl.embedding.table.Table."""

    def __init__(self, dim: int, initializer: InitializerSpec, optimizer: OptimizerSpec, seed: int) -> None: ...
    @property
    def dim(self) -> int: ...
    @property
    def row_floats(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def lookup(self, ids: NDArray[np.int64]) -> NDArray[np.float32]: ...
    def peek(self, ids: NDArray[np.int64], view: int = -1) -> NDArray[np.float32]: ...
    def apply(self, ids: NDArray[np.int64], gradients: NDArray[np.float32], learning_rate: float, step: int) -> None: ...
    def begin_view(self, view: int) -> None: ...
    def end_view(self, view: int) -> None: ...
    def view_rows(self, view: int) -> int: ...
    def read(self, view: int, first_row: int, max_rows: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]: ...
    def insert(self, ids: NDArray[np.int64], values: NDArray[np.float32]) -> None: ...

def distinct(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Distinct ids in order of first appearance, and for each id its index among them."""

def merge_rows(values: NDArray[np.float32], positions: NDArray[np.int32], count: int) -> NDArray[np.float32]:
    """float32[count, dim]: out[positions[i]] += values[i], in order."""

def update_dense(
    spec: OptimizerSpec,
    weights: NDArray[np.float32],
    slots: list[NDArray[np.float32]],
    gradients: NDArray[np.float32],
    learning_rate: float,
    step: int,
) -> None:
    """One update in place of float32[n] weights and slots."""
