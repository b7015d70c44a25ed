"""Compare two specs of parameters: whether they belong to one model.

Seeds, initializers and constants of the rule may differ.
"""

from __future__ import annotations

from typing import TypeVar

from elasticdl.embedding.spec import DenseSpec, ParametersSpec, TableSpec
from elasticdl.errors import UserError

_T = TypeVar("_T")


def check_fits(there: ParametersSpec, model: ParametersSpec, where: str) -> None:
    """Raise UserError for the first variable of the model that differs in `where`."""
    if model.dtype != there.dtype:
        raise UserError(
            f"{where} has {there.dtype} weights, the model has {model.dtype}",
            hint="use the dtype of the job that made it",
        )
    for mine, theirs in _pairs(model.dense, there.dense):
        if mine != theirs:
            raise _differs("dense variable", mine, theirs, where)
    for my_table, their_table in _pairs(model.tables, there.tables):
        same = (
            my_table
            and their_table
            and (my_table.name, my_table.dim) == (their_table.name, their_table.dim)
        )
        if not same:
            raise _differs("embedding table", my_table, their_table, where)
    if (model.optimizer.kind, model.optimizer.slots) != (
        there.optimizer.kind,
        there.optimizer.slots,
    ):
        raise UserError(
            f"{where} was made with optimizer {there.optimizer.kind} ({there.optimizer.slots}"
            f" slots), the model uses {model.optimizer.kind} ({model.optimizer.slots} slots)",
            hint="use the optimizer of the job that made it",
        )


def _pairs(mine: tuple[_T, ...], theirs: tuple[_T, ...]) -> list[tuple[_T | None, _T | None]]:
    longest = max(len(mine), len(theirs))
    return [
        (mine[i] if i < len(mine) else None, theirs[i] if i < len(theirs) else None)
        for i in range(longest)
    ]


def _differs(
    kind: str, mine: DenseSpec | TableSpec | None, theirs: DenseSpec | TableSpec | None, where: str
) -> UserError:
    return UserError(
        f"{where} belongs to another model: the first {kind} that differs is"
        f" {_described(mine)} in the model, {_described(theirs)} there",
        hint="use the module and --model-params of the job that made it",
    )


def _described(variable: DenseSpec | TableSpec | None) -> str:
    match variable:
        case None:
            return "none"
        case DenseSpec(path=path, shape=shape):
            return f"{path} {list(shape)}"
        case TableSpec(name=name, dim=dim):
            return f"{name} of dimension {dim}"
