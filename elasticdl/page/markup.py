"""HTML that is escaped by construction: text becomes markup only through `el`.

So text from users and their code stays text.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
_FORBIDDEN = ("on", "style")
"""Prefixes of attributes that our Content-Security-Policy disables: handlers and inline styles."""

_HIDDEN = ("Cc", "Cf", "Cs")
"""Categories of invisible characters: controls, formats, surrogates."""
_KEPT = "\n\t\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
"""Without the joiners, many emoji and scripts break."""


@dataclass(frozen=True, slots=True)
class Html:
    """Markup that is safe to put into a page.

    Only `el` and `joined` make it, and code that can vouch for a constant.
    """

    text: str


Child: TypeAlias = "Html | str | int | Iterable[Child] | None"
Attribute: TypeAlias = str | int | float | bool | None


def el(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """Make one element.

    Attributes: `class_` and `for_` lose their last `_`, other `_` become `-`. None and False are
    omitted. Raises ValueError for an attribute that would hold script or style.
    """
    opening = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{opening}>")
    return Html(f"<{name}{opening}>{joined(children).text}</{name}>")


def joined(children: Child) -> Html:
    """Concatenate children; text is escaped."""
    return Html("".join(_pieces(children)))


def _pieces(child: Child) -> Iterable[str]:
    if isinstance(child, Html):
        yield child.text
    elif isinstance(child, str):
        yield html.escape(visible(child))
    elif isinstance(child, int):
        yield str(child)
    elif child is not None:
        for piece in child:
            yield from _pieces(piece)


def _attribute(key: str, value: Attribute) -> str:
    if key.startswith(_FORBIDDEN):
        raise ValueError(f"attribute {key}: script and style have files of their own")
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(visible(str(value)))}"'


def visible(text: str) -> str:
    """Remove control characters, lone surrogates and bidirectional overrides.

    Documents must not contain them, and readers do not see them.
    """
    return text if text.isprintable() else "".join(_seen(char) for char in text)


def _seen(char: str) -> str:
    # Same as in `dom.js`. Keep all spaces, and unassigned characters, which a newer browser may
    # know.
    hidden = unicodedata.category(char) in _HIDDEN or char in "\u2028\u2029"
    return "\N{REPLACEMENT CHARACTER}" if hidden and char not in _KEPT else char
