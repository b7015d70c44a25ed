"""Read and write YAML by the rules of 1.2: `1:3` is text and not the number 63.

A separate module, since importing a YAML reader is slow.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from elasticdl.errors import SpecError
from elasticdl.job_problems import clipped

_SORTS = {list: "a list", str: "text", int: "a number", float: "a number"}


_MOST_VALUES = 100_000
_CORE = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Loads plain data with the core schema of YAML 1.2; refuses duplicate keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own way
    yaml_constructors = {  # noqa: RUF012 - PyYAML's own way
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None
        or tag.removeprefix(_CORE) in ("bool", "null", "int", "float", "str", "seq", "map")
    }

    def construct_document(self, node: yaml.Node) -> Any:  # noqa: ANN401 - PyYAML's own
        if _size(node, {}) > _MOST_VALUES:
            raise yaml.YAMLError(f"aliases make it larger than {_MOST_VALUES:,} values")
        return super().construct_document(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401 - PyYAML's own
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError) as error:
            tag = node.tag.replace(_CORE, "!!")
            text = f"{node.value!r} is not a value of {tag}"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for where, _ in node.value:
            key = self.construct_object(where, deep=True)
            if not isinstance(key, Hashable):
                continue  # refused below
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", where.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _size(node: yaml.Node, known: dict[yaml.Node, int | None]) -> int:
    """The number of values in a node, each alias counted as what it stands for.

    `known` has the sizes of nodes that were met, None for those around this one.
    """
    if node in known:
        size = known[node]
        if size is None:
            raise yaml.constructor.ConstructorError(
                None, None, "an alias contains itself", node.start_mark
            )
        return size
    known[node] = None
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        parts = node.value
    known[node] = size = 1 + sum(_size(part, known) for part in parts)
    return size


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first)
    )


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Return the mapping in a YAML file. Raises SpecError that names file and line."""
    try:
        return parse_yaml(path.read_bytes(), str(path))
    except OSError as error:
        raise SpecError(
            f"cannot read {path}: {error.strerror}", hint="-f takes the path of a YAML file"
        ) from error


def parse_yaml(text: bytes, path: str) -> Mapping[str, Any]:
    """Return the mapping in the text of a file. Raises SpecError that names `path` and line."""
    try:
        document = yaml.load(text.decode("utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{path} is not text in UTF-8: {error.reason} at byte {error.start}",
            hint="save it as UTF-8",
        ) from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SpecError(
            clipped(f"{path}{line}: {error.problem}"),
            hint="expected YAML such as `num-workers: 1:3`, a key a line",
        ) from error
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: {error}") from error
    except RecursionError as error:
        raise SpecError(f"{path}: nested too deeply") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SpecError(
            f"{path}: expected keys and values, got {_SORTS.get(type(document), 'one value')}",
            hint="-f takes a YAML file with lines such as `num-workers: 1:3`",
        )
    return document


class _Dumper(yaml.SafeDumper):
    """Escapes YAML's line separators, which other quoting styles would turn into spaces."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"' if _LINE_ENDS & set(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_LINE_ENDS = frozenset("\x85\u2028\u2029")
_Dumper.add_representer(str, _text)


def as_yaml(value: object, *, ascii_only: bool = False) -> str:
    """Return YAML that ends with a newline; keys keep their order."""
    return str(
        yaml.dump(
            value,
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=not ascii_only,
            default_flow_style=False,
        )
    )
