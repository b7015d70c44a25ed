"""Elastic deep learning with one master per job.

`elasticdl.train(...)`, `evaluate(...)` and `predict(...)` take the names of the command line's
flags and return a `JobHandle`. They are imported at first use, so that processes of a job do not
pay for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticdl.cli.api import JobHandle, evaluate, predict, train

__all__ = ["JobHandle", "evaluate", "predict", "train"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the module protocol
    if name not in __all__:
        raise AttributeError(f"module 'elasticdl' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("elasticdl.cli.api"), name)
