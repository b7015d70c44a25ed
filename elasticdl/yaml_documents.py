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

_SORTS = {list: "a list", str: "text", int: "a number", float: "a number"}


class _Loader(yaml.SafeLoader):
    """Loads plain data with the core schema of YAML 1.2; refuses duplicate keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own way

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
            f"{path} is not text in UTF-8: {error.reason} at byte {error.start}"
        ) from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SpecError(
            f"{path}{line}: {error.problem}",
            hint="expected YAML such as `num-workers: 1:3`, a key a line",
        ) from error
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: {error}") from error
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
