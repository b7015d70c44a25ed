"""HTML that is escaped by construction: text becomes markup only through `el`, so what users and
their code write stays text.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
_FORBIDDEN = ("on", "style")
"""Beginnings of attributes that a Content-Security-Policy without exceptions ignores: handlers and
inline styles.
"""

_HIDDEN = ("Cc", "Cf", "Cs")
"""Categories of characters that are not seen: controls, formats, halves of pairs."""
_KEPT = "\n\t\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
"""Without the joiners many emoji and scripts fall apart."""


@dataclass(frozen=True, slots=True)
class Html:
    """Markup that is safe to put into a page.

    Made by `el` and `joined` only, and by whoever can vouch for a constant.
    """

    text: str


Child: TypeAlias = "Html | str | int | Iterable[Child] | None"
Attribute: TypeAlias = str | int | float | bool | None


def el(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """One element.

    Attributes: `class_` and `for_` lose their last `_`, other `_` become `-`; None and False are
    left out.

    Raises ValueError for an attribute that would hold script or style.
    """
    opening = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{opening}>")
    return Html(f"<{name}{opening}>{joined(children).text}</{name}>")


def joined(children: Child) -> Html:
    """Children one after the other, text escaped."""
    return Html("".join(_pieces(children)))


def _pieces(child: Child) -> Iterable[str]:
    if isinstance(child, Html):
        yield child.text
    elif isinstance(child, str):
        yield html.escape(visible(child))
    elif isinstance(child, int):
        yield str(child)
    elif child is not None:
        for one in child:
            yield from _pieces(one)


def _attribute(key: str, value: Attribute) -> str:
    if key.startswith(_FORBIDDEN):
        raise ValueError(f"attribute {key}: script and style have files of their own")
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(visible(str(value)))}"'


def visible(text: str) -> str:
    """Without control characters and lone surrogates, which no document may hold and no reader
    sees; bidirectional overrides go, too.
    """
    return text if text.isprintable() else "".join(_seen(char) for char in text)


def _seen(char: str) -> str:
    # As `dom.js` has it. Spaces of any width are no control characters; letters that this Python
    # does not know yet the browser may.
    hidden = unicodedata.category(char) in _HIDDEN or char in "\u2028\u2029"
    return "\N{REPLACEMENT CHARACTER}" if hidden and char not in _KEPT else char
