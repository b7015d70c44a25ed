"""Load a model module: the functions that the user wrote."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, final

import keras

from elasticdl.errors import UserError
from elasticdl.job_flags import ModelSection

# Import this before any user module: it patches the Keras class that user code makes layers of.
from elasticdl.model import embedding_hooks, zoo_package  # noqa: F401
from elasticdl.model.module_file import module_file, nearest_first
from elasticdl.model.usercode import place, user_code


@final
@dataclass(frozen=True, slots=True)
class ModelModule:
    """The functions of the user's module; None where the module lacks an optional one.

    At least one of `feed` and `feed_batch` is set. `path` is the module's file and `zoo` the
    directory of all modules, for messages.
    """

    path: str
    zoo: str
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

    `iris`, `mnist.cnn` and `mnist.cnn.CustomModel` are dotted paths below the zoo. The last part
    may name the function or class to use instead of `custom_model`. Packages need no `__init__.py`.
    Only the newest zoo is on the path: a function of an earlier one cannot import its siblings.

    Raises:
        UserError: the module or a required function is missing or wrong, or the import fails (also
            by `sys.exit`); the message names file and line.
    """
    file = module_file(section)
    zoo, attribute = file.zoo, file.attribute
    module = _imported(zoo, file.name)
    path = str(module.__file__)
    if _optional(module, "feed") is None and _optional(module, "feed_batch") is None:
        expected = "`def feed(dataset, mode, metadata)`, or `feed_batch(records, mode, metadata)`"
        raise _missing(module, "feed", expected)
    loaded = ModelModule(
        path=path,
        zoo=str(zoo),
        custom_model=_required(
            module, attribute, "`def custom_model(**params)`, which returns a Keras model"
        ),
        loss=_required(
            module,
            "loss",
            "`def loss(labels, predictions)`, which returns a scalar or values per example",
        ),
        optimizer=_required(
            module, "optimizer", "`def optimizer(lr=0.1)`, which returns a Keras optimizer"
        ),
        feed=_optional(module, "feed"),
        feed_batch=_optional(module, "feed_batch"),
        eval_metrics_fn=_optional(module, "eval_metrics_fn"),
        callbacks=_optional(module, "callbacks"),
        custom_data_reader=_optional(module, "custom_data_reader"),
        prediction_outputs_processor=_optional(module, "PredictionOutputsProcessor"),
    )
    _check_arities(loaded)
    return loaded


def _imported(zoo: Path, name: str) -> ModuleType:
    """Import the module, with the zoo first on the path so that modules find their siblings.

    If a package in the zoo has the name of an installed one, the zoo is last on the path, and the
    package is imported as a part of the zoo. A module of the same name from another zoo (tests,
    notebooks) is unloaded first. A module from elsewhere is never unloaded.
    """
    in_package = zoo_package.put_first(zoo)
    _forget(zoo.name)
    others = zoo.name in sys.modules
    _place_on_path(zoo)
    importlib.invalidate_caches()
    top, _, inner = name.partition(".")
    if inner and in_package and zoo_package.is_installed(top, zoo):
        name, top = f"{zoo.name}.{name}", zoo.name
    else:
        _refuse_installed(zoo, top)
        _forget(top)
    try:
        with user_code(f"importing {name}", str(zoo)):
            module = importlib.import_module(name)
    except UserError:
        # Its folder, and modules beside it, may be there already. A mended module is imported
        # again.
        _ZOO_MODULES.update(package for package in (top, zoo.name) if _is_folder_of(zoo, package))
        raise
    if not _is_within(module, zoo):
        raise _name_taken(name, module)
    _ZOO_MODULES.update((top, zoo.name) if in_package and not others else (top,))
    return module


_ZOO_MODULES: set[str] = set()
"""Top-level names imported from zoos; only these may be unloaded and imported again."""


_PLACED: set[str] = set()
"""Zoos that are on the path only because a module of theirs was loaded."""


def _place_on_path(zoo: Path) -> None:
    """Replace the zoo that was placed before: its module `a.py` would hide a folder `a` of this."""
    if str(zoo) not in sys.path:
        _PLACED.add(str(zoo))
    sys.path[:] = [entry for entry in sys.path if entry not in {*_PLACED, str(zoo)}]
    sys.path.insert(len(sys.path) if zoo_package.hides_installed(zoo) else 0, str(zoo))


def _forget(top: str) -> None:
    if top in _ZOO_MODULES:
        for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
            del sys.modules[name]


def _refuse_installed(zoo: Path, top: str) -> None:
    module = sys.modules.get(top)
    if module is not None and top not in _ZOO_MODULES and not _is_within(module, zoo):
        raise _name_taken(top, module)


def _is_within(module: ModuleType, zoo: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).resolve().is_relative_to(zoo)


def _is_folder_of(zoo: Path, name: str) -> bool:
    """Whether an imported package lies in the zoo alone, or is the zoo."""
    folders = list(getattr(sys.modules.get(name), "__path__", ()))
    return bool(folders) and all(Path(folder).resolve().is_relative_to(zoo) for folder in folders)


def _name_taken(name: str, module: ModuleType) -> UserError:
    return UserError(
        f"--model-def {name!r} has the name of an installed module,"
        f" {getattr(module, '__file__', None) or 'built in'}",
        hint="rename the model module",
    )


def _optional(module: ModuleType, name: str) -> Callable[..., Any] | None:
    value = getattr(module, name, None)
    if value is not None and not callable(value):
        raise UserError(
            f"{module.__file__}:{_line(module, name)}: {name} is {value!r}, expected a function"
        )
    return value


def _required(module: ModuleType, name: str, expected: str) -> Callable[..., Any]:
    value = _optional(module, name)
    if value is None:
        raise _missing(module, name, expected)
    if isinstance(value, keras.Model):
        raise _wrong_kind(module, name, "a Keras model", expected)
    if isinstance(value, type) and issubclass(value, keras.losses.Loss):
        raise _wrong_kind(module, name, f"the class {value.__name__}", expected)
    return value


def _missing(module: ModuleType, name: str, expected: str) -> UserError:
    ours, others = _functions(module)
    near = nearest_first(name, ours, others)
    has = f"; it has: {', '.join(near)}" if near else ""
    return UserError(f"{module.__file__}:1: {name} is missing", hint=f"expected {expected}{has}")


def _wrong_kind(module: ModuleType, name: str, kind: str, expected: str) -> UserError:
    where = f"{module.__file__}:{_line(module, name)}"
    return UserError(f"{where}: {name} is {kind}", hint=f"expected {expected}")


def _functions(module: ModuleType) -> tuple[list[str], list[str]]:
    """The module's public functions and classes by name, and those that it imports."""
    public = [name for name, value in vars(module).items() if name[0] != "_" and callable(value)]
    ours = [name for name in public if _origin(module, name) == module.__name__]
    return ours, [name for name in public if name not in ours]


def _origin(module: ModuleType, name: str) -> object:
    return getattr(getattr(module, name), "__module__", None)


def _line(module: ModuleType, name: str) -> int:
    """Line of the first assignment of a name; 1 if there is none."""
    try:
        lines = inspect.getsource(module).splitlines()
    except OSError:
        return 1
    return next((number for number, line in enumerate(lines, 1) if line.startswith(name)), 1)


def _check_arities(module: ModelModule) -> None:
    """Check that each function accepts the positional arguments that the framework passes."""
    expected: tuple[tuple[Callable[..., Any] | None, tuple[str, ...]], ...] = (
        (module.loss, ("labels", "predictions")),
        (module.optimizer, ()),
        (module.feed, ("dataset", "mode", "metadata")),
        (module.feed_batch, ("records", "mode", "metadata")),
        (module.eval_metrics_fn, ()),
        (module.callbacks, ()),
        (module.prediction_outputs_processor, ()),
    )
    for function, names in expected:
        if function is not None:
            _check_arity(function, names)
    processor = module.prediction_outputs_processor
    if processor is not None and not callable(getattr(processor, "process", None)):
        raise UserError(
            f"{place(processor)}: PredictionOutputsProcessor has no method process(predictions,"
            " worker_id)"
        )


def _check_arity(function: Callable[..., Any], names: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(function)
    except (
        TypeError,
        ValueError,
    ):  # callables of some extensions have no signature; a call shows whether they fit
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise UserError(
            f"{place(function)}: {name}{signature} does not take ({', '.join(names)})",
            hint=f"expected def {name}({', '.join(names)})",
        ) from error
