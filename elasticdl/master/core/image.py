"""The whole state of the core as JSON values, and back.

An image stands for all events before it, so a replay need not begin with the first one. It has
every field of every object that can be reached from `JobState`; new state is in it without further
work. Only classes of this package and plain containers are read, and nothing is executed. An image
belongs to the code that wrote it: other code may have other fields, and refuses it. A class names
fields that follow from its others, and are too large for an image, in `DERIVED`; its `derive`
computes them.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from typing import Any, TypeAlias, TypeGuard, final

from pydantic import BaseModel

from elasticdl.cluster.base import ProcessName
from elasticdl.job import JobSpec
from elasticdl.master.core.events import JobStarted

Plain: TypeAlias = Any
"""A value for `json.dumps`. Every list begins with a tag, so that nothing is ambiguous."""

_PACKAGE = "elasticdl."
_SEQUENCES: dict[type[Any], str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
}
_KINDS: dict[str, Callable[[Iterable[Any]], Any]] = {tag: kind for kind, tag in _SEQUENCES.items()}
_SCALARS = frozenset({type(None), bool, int, float, str})
_NUMBERS = _SCALARS - {str}
_LONG = 256
"""Shorter text is written as it is, even if it is a constant."""
_NO_DEFAULT = object()
_OMITTED = frozenset({"_story"})
"""Fields that are for developers only: the last events."""


def image_of(root: object, constants: Mapping[str, object]) -> Plain:
    """Return the image of all that can be reached from `root`.

    `constants` are large values that do not change; the image has only their names.
    """
    return _Encoder(constants).image(root)


def restore(root: object, image: Plain, constants: Mapping[str, object]) -> None:
    """Bring a newly made `root` into the state of an image.

    Raises ValueError if the image has other classes or fields than this code. `root` is unusable
    then.
    """
    try:
        _Decoder(image, constants).restore(root)
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"not an image of this version: {error!r}") from error


def constants_of(spec: JobSpec, started: JobStarted) -> dict[str, object]:
    """Large values of a job, which its image refers to by name."""
    return {
        "spec": spec,
        "started": started,
        "training": started.training,
        "validation": started.validation,
        "prediction": started.prediction,
        "ledger": started.ledger,
    }


@cache
def _class_name(kind: Any) -> str:  # noqa: ANN401 - a class
    return f"{kind.__module__}:{kind.__qualname__}"


@cache
def _class_of(name: str, base: type[Any] | None = None) -> type[Any]:
    """The class of that name; `base`: what it must be derived from, None for a frozen dataclass.

    Nothing is imported, and only values are made: an image must not choose what runs.
    """
    module, _, qualname = name.partition(":")
    kind = getattr(sys.modules.get(module), qualname, None)
    if not module.startswith(_PACKAGE) or not isinstance(kind, type):
        raise ValueError(f"unknown class {name}")
    if not (issubclass(kind, base) if base else _is_value(kind)):
        raise ValueError(f"{name} is not what the image says")
    return kind


@cache
def _is_value(kind: Any) -> bool:  # noqa: ANN401 - a class
    """Whether instances are frozen, so that equal ones need not be the same object."""
    return is_dataclass(kind) and bool(getattr(kind, "__dataclass_params__").frozen)  # noqa: B009


@cache
def _init_fields(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - a class
    return tuple(field.name for field in fields(kind) if field.init)


@cache
def _field_names(kind: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - a class
    """The fields of a dataclass that an image has; None for another class."""
    if not is_dataclass(kind):
        return None
    omitted = _OMITTED | getattr(kind, "DERIVED", frozenset())
    return tuple(field.name for field in fields(kind) if field.name not in omitted)


@cache
def _defaults(kind: Any) -> dict[str, Any]:  # noqa: ANN401 - a class
    """Plain default values of a dataclass, by field: an image leaves them out."""
    names = _field_names(kind) or ()
    defaults = ((field.name, field.default) for field in fields(kind)) if names else ()
    return {
        name: default for name, default in defaults if name in names and type(default) in _SCALARS
    }


@cache
def _names_and_defaults(kind: Any) -> tuple[tuple[str, Any], ...] | None:  # noqa: ANN401 - a class
    """The fields of a dataclass that an image has, with their plain defaults or _NO_DEFAULT."""
    if (names := _field_names(kind)) is None:
        return None
    defaults = _defaults(kind)
    return tuple((name, defaults.get(name, _NO_DEFAULT)) for name in names)


def _state(value: object) -> dict[str, Any]:
    kind: Any = type(value)
    if (names := _names_and_defaults(kind)) is not None:
        state = {}
        for name, default in names:
            item = getattr(value, name)
            if type(item) in _SCALARS:
                if type(item) is type(default) and item == default:
                    continue
            elif callable(item):
                continue
            state[name] = item
        return state
    omitted = _OMITTED | getattr(kind, "DERIVED", frozenset())
    # What was wired at construction, such as a function, is wired again when the state is restored.
    return {
        name: item
        for name, item in vars(value).items()
        if name not in omitted and not callable(item)
    }


@final
class _Encoder:
    def __init__(self, constants: Mapping[str, object]) -> None:
        self._constants = {id(value): name for name, value in constants.items()}
        self._numbers: dict[int, int] = {}
        self._objects: list[Any] = []
        self._todo: deque[tuple[int, object]] = deque()
        self._processes: dict[ProcessName, Plain] = {}

    def image(self, root: object) -> Plain:
        self._number(root)
        while self._todo:
            # A queue, not recursion: a chain of objects may be long.
            number, value = self._todo.popleft()
            state = {
                name: item if type(item) in _NUMBERS else self._plain(item)
                for name, item in _state(value).items()
            }
            kind: Any = type(value)
            self._objects[number] = [_class_name(kind), state]
        return self._objects

    def _number(self, value: object) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(None)
            self._todo.append((number, value))
        return number

    def _plain(self, value: Any) -> Plain:  # noqa: ANN401 - of any field's type
        kind: Any = type(value)
        if kind in _NUMBERS or (kind is str and len(value) < _LONG):
            return value
        if kind is ProcessName:
            if (plain := self._processes.get(value)) is None:
                plain = self._processes[value] = ["process", str(value)]
            return plain
        if (name := self._constants.get(id(value))) is not None:
            return ["constant", name]
        if kind is str:
            return value
        if (tag := _SEQUENCES.get(kind)) is not None:
            return [tag, *map(self._plain, value)]
        # Which one is looked up by the class: there are hundreds of thousands of values.
        match _sort_of(kind):
            case "dict":
                pairs = [[self._plain(key), self._plain(item)] for key, item in value.items()]
                return ["counter" if kind is Counter else "dict", *pairs]
            case "enum":
                return _enum_plain(value)
            case "deque":
                return ["deque", value.maxlen, *map(self._plain, value)]
            case "model":
                made_of = {name: self._plain(item) for name, item in value}
                return ["model", _class_name(kind), made_of]
            case "value":
                made_of = {name: self._plain(getattr(value, name)) for name in _init_fields(kind)}
                return ["value", _class_name(kind), made_of]
            case _:
                return ["object", self._number(value)]


@cache
def _sort_of(kind: Any) -> str:  # noqa: ANN401 - a class
    """What an image writes for values of a class. Raises TypeError if it can write nothing."""
    for base, sort in ((dict, "dict"), (Enum, "enum"), (BaseModel, "model")):
        if issubclass(kind, base):
            return sort
    if kind is deque:
        return "deque"
    if _is_value(kind):
        return "value"
    if not kind.__module__.startswith(_PACKAGE):
        raise TypeError(f"the core's state has a {kind}: use plain values")
    return "object"


@lru_cache(maxsize=None, typed=True)  # members of different classes may be equal
def _enum_plain(value: Enum) -> Plain:
    kind: Any = type(value)
    return ["enum", _class_name(kind), value.value]


@final
class _Decoder:
    def __init__(self, image: Plain, constants: Mapping[str, object]) -> None:
        self._image = image
        self._constants = constants
        self._objects: dict[int, Any] = {}
        self._wired: set[int] = set()
        """Objects that `root` was made with."""
        self._missing: dict[tuple[Any, ...], list[tuple[str, Any]]] = {}
        """By class and present fields: default values of the other fields."""
        process = cache(ProcessName.parse)
        enum = cache(lambda name, item: _class_of(name, Enum)(item))
        self._of_tag: dict[str, Callable[[list[Any]], Any]] = {
            "constant": lambda plain: self._constants[plain[1]],
            "process": lambda plain: process(plain[1]),
            "dict": lambda plain: dict(self._pairs(plain)),
            "counter": lambda plain: Counter(dict(self._pairs(plain))),
            "enum": lambda plain: enum(plain[1], plain[2]),
            "deque": lambda plain: deque(map(self._value, plain[2:]), maxlen=plain[1]),
            "model": self._model,
            "value": self._frozen,
            "object": lambda plain: self._object(plain[1]),
            **dict.fromkeys(_KINDS, self._sequence),
        }

    def restore(self, root: object) -> None:
        self._bind(root, 0)
        for number, (_, state) in enumerate(self._image):
            instance = self._object(number)
            missing = self._compared(instance, number, state)
            for name, item in state.items():
                # Most are no lists. There are half a million, so each call counts.
                setattr(instance, name, self._value(item) if type(item) is list else item)
            for name, default in missing:
                setattr(instance, name, default)
        for instance in self._objects.values():
            if hasattr(instance, "DERIVED"):
                instance.derive()

    def _compared(
        self, instance: object, number: int, state: Mapping[str, Plain]
    ) -> list[tuple[str, Any]]:
        """Return the default values that a state leaves out. Raises as `_compare`."""
        kind: Any = type(instance)
        key = None if number in self._wired else (kind, *state)
        if key is not None and (known := self._missing.get(key)) is not None:
            return known
        self._compare(instance, number, state)
        missing = [
            (name, default) for name, default in _defaults(kind).items() if name not in state
        ]
        if key is not None:
            self._missing[key] = missing
        return missing

    def _compare(self, instance: object, number: int, state: Mapping[str, Plain]) -> None:
        """Raise ValueError if this code has other fields."""
        kind: Any = type(instance)
        actual = set(state)
        if (names := _field_names(kind)) is not None:
            wired = number in self._wired
            expected = {name for name in names if not (wired and callable(getattr(instance, name)))}
            actual |= _defaults(kind).keys()
        else:
            expected = set(_state(instance) if number in self._wired else state)
        if expected != actual:
            raise ValueError(f"{kind.__name__} differs in {sorted(expected ^ actual)}")

    def _bind(self, live: object, number: int) -> None:
        """Keep the objects that `root` was made with where the image has one in their place."""
        todo = [(live, number)]
        while todo:
            live, number = todo.pop()
            name, state = self._image[number]
            if number in self._objects or _class_of(name, object) is not type(live):
                continue
            self._objects[number] = live
            self._wired.add(number)
            for field, item in state.items():
                if _is_object(item) and (child := getattr(live, field, None)) is not None:
                    todo.append((child, item[1]))

    def _object(self, number: int) -> Any:  # noqa: ANN401
        if (instance := self._objects.get(number)) is None:
            kind = _class_of(self._image[number][0], object)
            instance = self._objects[number] = object.__new__(kind)
        return instance

    def _value(self, plain: Plain) -> Any:  # noqa: ANN401
        return self._of_tag[plain[0]](plain) if type(plain) is list else plain

    def _sequence(self, plain: list[Any]) -> Any:  # noqa: ANN401
        return _KINDS[plain[0]](map(self._value, plain[1:]))

    def _pairs(self, plain: list[Any]) -> Iterator[tuple[Any, Any]]:
        value = self._value
        for key, item in plain[1:]:
            yield value(key), value(item) if type(item) is list else item

    def _model(self, plain: list[Any]) -> Any:  # noqa: ANN401
        _, name, made_of = plain
        # Every field is given as it was, so there is nothing to validate.
        values = {field: self._value(item) for field, item in made_of.items()}
        return _class_of(name, BaseModel).model_construct(**values)

    def _frozen(self, plain: list[Any]) -> Any:  # noqa: ANN401
        _, name, made_of = plain
        return _class_of(name)(**{field: self._value(item) for field, item in made_of.items()})


def _is_object(plain: Plain) -> TypeGuard[list[Any]]:
    return isinstance(plain, list) and plain[0] == "object"
