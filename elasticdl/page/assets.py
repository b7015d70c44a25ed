"""The browser's static files. Names contain a hash of the content, so caches may keep them."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_STATIC, _VENDOR = _FOLDER / "static", _FOLDER / "vendor"
MODULES = (
    *("dom", "format", "address", "tabs", "controls", "job", "table", "head", "curves", "plots"),
    *(
        "timeline",
        "goodput",
        "processes",
        "shards",
        "events",
        "logs",
        "actions",
        "stream",
        "session",
        "page",
    ),
)
"""In order of dependency."""
STYLES = ("base", "head", "plots", "tables", "timeline", "panels", "media")
"""In order of precedence: a later rule replaces an earlier one of equal weight."""
_TYPES = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_IMPORT = re.compile(r"^import (\{[^}]*\}) from \"\./(\w+)\.js\";$", re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const) (\w+))", re.MULTILINE)


class NoSuchFile(KeyError):
    """No such static file."""


@cache
def text(name: str) -> str:
    """Return a file's text: `page.js`, `page.css`, `early.js`, `sign-in.js`, `icon.svg`, `plot.js`.

    `plot.js` is '' if uPlot is missing.
    """
    if name == "page.js":
        return _script()
    if name == "page.css":
        own = ((_STATIC / f"{style}.css").read_text(encoding="utf-8") for style in STYLES)
        return _read(_VENDOR / "uPlot.min.css") + "".join(own)
    if name == "plot.js":
        return _read(_VENDOR / "uPlot.iife.min.js")
    return (_STATIC / name).read_text(encoding="utf-8")


def _script() -> str:
    """Combine the modules into one file, for one request and for the report.

    Each module has its own scope and returns an object of its exports.
    """
    return "".join(
        _scoped(name, (_STATIC / f"{name}.js").read_text(encoding="utf-8")) for name in MODULES
    )


def _scoped(name: str, module: str) -> str:
    exported = ", ".join(match.group(2) for match in _EXPORT.finditer(module))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = $\2;", module))
    return f"const ${name} = (() => {{\n{body}return {{ {exported} }};\n}})();\n"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


@cache
def address(name: str) -> str:
    """Return a file's URL name: `page-1a2b3c4d5e6f7a8b.js`."""
    stem, _, kind = name.rpartition(".")
    return f"{stem}-{hashlib.sha256(text(name).encode()).hexdigest()[:16]}.{kind}"


@cache
def _by_address() -> dict[str, str]:
    return {
        address(name): name
        for name in ("page.js", "page.css", "early.js", "sign-in.js", "icon.svg", "plot.js")
    }


def static(name: str) -> tuple[bytes, str]:
    """Return content and type for a name from `address`.

    Raises NoSuchFile for any other name; it never reads other files.
    """
    known = _by_address().get(name)
    if known is None:
        raise NoSuchFile(name)
    return text(known).encode(), _TYPES[known.rpartition(".")[2]]
