"""Read and write YAML by the rules of 1.2: `1:3` is text and not the number 63.

A separate module, since importing a YAML reader is slow.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any, NoReturn

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
        except (ValueError, KeyError, IndexError) as error:
            text = f"{node.value!r} is not a value of {_tag_of(node)}"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark) from error

    def construct_int(self, node: yaml.ScalarNode) -> int:
        """Refuse a number that is another one in YAML 1.1, where a leading 0 means octal."""
        text = str(self.construct_scalar(node))
        number = int(text)
        if text.lstrip("+-").startswith("0"):
            octal = "text" if set(text) & {"8", "9"} else int(text, 8)
            if octal != number:
                raise yaml.constructor.ConstructorError(
                    problem=f"{text} is {octal} in YAML 1.1 and {number} in YAML 1.2",
                    problem_mark=node.start_mark,
                    note=f"remove the leading 0, or write '{text}' for text",
                )
        return number

    def construct_undefined(self, node: yaml.Node) -> NoReturn:
        raise yaml.constructor.ConstructorError(
            problem=f"the tag {_tag_of(node)} is not supported",
            problem_mark=node.start_mark,
            note="without a tag, write text, a number, a list, or keys and values",
        )

    def get_single_node(self) -> Any:  # noqa: ANN401 - PyYAML's own
        try:
            return super().get_single_node()
        except yaml.composer.ComposerError as error:
            if error.problem != "but found another document":
                raise
            error.problem = "another document begins here"
            error.note = (
                "remove the line `---`, or keep one document: a file has the flags of one job"
            )
            raise

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            return super().construct_mapping(node, deep)  # which refuses it
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


_Loader.add_constructor(f"{_CORE}int", _Loader.construct_int)
_Loader.add_constructor(None, _Loader.construct_undefined)


def _tag_of(node: yaml.Node) -> str:
    return str(node.tag).replace(_CORE, "!!")


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
            hint=clipped(error.note or "expected YAML such as `num-workers: 1:3`, a key a line"),
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


def line_of(key: str, text: bytes) -> int | None:
    """The line of a key in snake case in a text that `parse_yaml` has read, from 1."""
    root = yaml.compose(text.decode("utf-8"), _Loader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else ()
    lines = (where.start_mark.line + 1 for where, _ in pairs if _named(where) == key)
    return next(lines, None)


def _named(node: yaml.Node) -> str:
    return str(node.value).replace("-", "_")


class _Dumper(yaml.SafeDumper):
    """Escapes YAML's line separators, which other quoting styles would turn into spaces."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"' if _LINE_ENDS & set(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_LINE_ENDS = frozenset("\x85\u2028\u2029")
_Dumper.add_representer(str, _text)
# A text that `parse_yaml` would read as a number is quoted, too: in YAML 1.1, 08 and 1e3 are text.
for _begin, _rules in _Loader.yaml_implicit_resolvers.items():
    for _tag, _rule in _rules:
        _Dumper.add_implicit_resolver(_tag, _rule, [_begin])


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
