"""Events as plain JSON values and back, by the types of their fields.

The conversion is exact and never executes anything that it reads.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeAlias, Union

from elasticdl.master.core import events

Decode: TypeAlias = Callable[[Any], Any]

_SCALARS = (bool, int, float, str)
_PLAIN = frozenset((*_SCALARS, type(None)))


def event_plain(event: events.Event) -> dict[str, Any]:
    """Convert an event to a value for `json.dumps`.

    Floats keep their value; nan and inf become Python's `NaN` and `Infinity`.
    """
    plain: dict[str, Any] = _plain(event)
    return {"event": type(event).__name__, **plain}


def event_of(plain: Mapping[str, Any]) -> events.Event:
    """Convert a plain value back to its event.

    Raises ValueError for an unknown event, a missing or unknown field, or a value of a wrong type.
    """
    kinds = _kinds()
    kind: Any = kinds.get(plain.get("event", ""))
    if kind is None:
        raise ValueError(f"unknown event {plain.get('event')!r}; expected one of {sorted(kinds)}")
    event = _decoder(kind)({name: value for name, value in plain.items() if name != "event"})
    assert isinstance(event, events.Event)
    return event


@cache
def _kinds() -> dict[str, type[events.Event]]:
    # Not `Event.__subclasses__()`: a dataclass with slots replaces its class, and the original
    # class may still exist.
    kinds = (
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, events.Event)
    )
    return {kind.__name__: kind for kind in kinds if kind is not events.Event}


@cache
def _field_names(kind: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - any type
    """Names of a dataclass's fields; None for another type."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def _plain(value: Any) -> Any:  # noqa: ANN401 - of any field's type
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if (names := _field_names(kind)) is not None:
        made_of = {}
        for name in names:
            item = getattr(value, name)
            made_of[name] = item if type(item) in _PLAIN else _plain(item)
        return made_of
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


@cache
def _decoder(kind: Any) -> Decode:  # noqa: ANN401 - a type, or a form of typing
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    origin = typing.get_origin(kind)
    if origin is tuple:
        return _tuple(typing.get_args(kind))
    if origin is dict:
        return _dict(_decoder(typing.get_args(kind)[1]))
    if origin in (Union, types.UnionType):
        return _optional(typing.get_args(kind))
    if is_dataclass(kind):
        return _dataclass(typing.cast("type[Any]", kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if kind in _SCALARS:
        return _scalar(kind)
    raise TypeError(f"unsupported field type {kind}: add it to `codec.py`")


def _scalar(kind: type[Any]) -> Decode:
    def decode(value: Any) -> Any:  # noqa: ANN401
        if kind is float and type(value) is int:
            return float(value)
        # Not `isinstance`: it would accept a bool as an int.
        if type(value) is not kind:
            raise ValueError(f"expected {kind.__name__}, got {value!r}")
        return value

    return decode


def _tuple(arguments: tuple[Any, ...]) -> Decode:
    if len(arguments) != 2 or arguments[1] is not Ellipsis:
        raise TypeError(f"only tuples of one type are supported, not {arguments}")
    item = _decoder(arguments[0])

    def decode(value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, list):
            raise ValueError(f"expected a list, got {value!r}")
        return tuple(item(element) for element in value)

    return decode


def _dict(item: Decode) -> Decode:
    def decode(value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, dict):
            raise ValueError(f"expected an object, got {value!r}")
        return {str(key): item(element) for key, element in value.items()}

    return decode


def _optional(arguments: tuple[Any, ...]) -> Decode:
    others = [argument for argument in arguments if argument is not type(None)]
    if len(others) != 1 or len(arguments) != 2:
        raise TypeError(f"only unions with None are supported, not {arguments}")
    inner = _decoder(others[0])
    return lambda value: None if value is None else inner(value)


def _dataclass(kind: type[Any]) -> Decode:
    hints = typing.get_type_hints(kind)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields(kind)}

    def decode(value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, dict) or not value.keys() <= decoders.keys():
            raise ValueError(
                f"expected the fields {sorted(decoders)} of {kind.__name__}, got {value!r}"
            )
        try:
            return kind(**{name: decoders[name](item) for name, item in value.items()})
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}") from error

    return decode
