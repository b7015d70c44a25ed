"""ParametersSpec as the C++ of clients and servers takes it.

Servers have no use for NumPy, so nothing here imports it.
"""

from __future__ import annotations

from elasticdl.embedding.spec import ParametersSpec
from elasticdl.native import _native


def native_spec(spec: ParametersSpec) -> _native.ParametersSpec:
    """Numbers for C++, and the whole spec as JSON for clients that ask a server for it."""
    rule = _native.OptimizerSpec(**spec.optimizer.model_dump(mode="json"))
    native = _native.ParametersSpec(
        rule, spec.trainable_size, spec.additive_size, spec.model_dump_json(), spec.dtype.value
    )
    for table in spec.tables:
        initializer = _native.InitializerSpec(
            table.initializer.kind.value, table.initializer.a, table.initializer.b
        )
        native.add_table(table.name, table.dim, initializer, table.seed % 2**64, table.whole)
    return native
