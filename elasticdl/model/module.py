"""A model module: the functions that a user filled in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from elasticdl.job import ModelSection


@final
@dataclass(frozen=True, slots=True)
class ModelModule:
    """What the user's module offers. None: the module does not have it; one of `feed` and `feed_batch` is there.

    `path` is the module's file, for messages.
    """

    path: str
    custom_model: Callable[..., Any]
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[..., Any]
    feed: Callable[..., Any] | None = None
    feed_batch: Callable[..., Any] | None = None
    eval_metrics_fn: Callable[[], Any] | None = None
    callbacks: Callable[[], Any] | None = None
    custom_data_reader: Callable[..., Any] | None = None
    prediction_outputs_processor: Callable[[], Any] | None = None


def load_module(section: ModelSection) -> ModelModule:
    """Import `--model-def` from `--model-zoo`.

    `iris`, `mnist.cnn` and `mnist.cnn.CustomModel` are dotted paths below the zoo; the last part may name the function
    or class to use for `custom_model`. Packages need no `__init__.py`.

    Raises:
        UserError: names file and line and what was expected. `sys.exit` in the module is one, too.
    """
    raise NotImplementedError
