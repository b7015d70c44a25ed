"""Tables of embedding rows by id, in C++: `native/table.h` says what each call does."""

from __future__ import annotations

from elasticdl.embedding.spec import Dtype, OptimizerSpec, TableSpec
from elasticdl.native import _native


def native_table(
    spec: TableSpec, optimizer: OptimizerSpec, dtype: Dtype = Dtype.FLOAT32
) -> _native.Table:
    """The table in C++. The seed counts modulo 2^64."""
    initializer = _native.InitializerSpec(
        spec.initializer.kind.value, spec.initializer.a, spec.initializer.b
    )
    return _native.Table(
        spec.dim, initializer, native_optimizer(optimizer), spec.seed % 2**64, dtype.value
    )


def native_optimizer(spec: OptimizerSpec) -> _native.OptimizerSpec:
    """The same rule for the extension."""
    return _native.OptimizerSpec(**spec.model_dump(mode="json"))
