"""The whole page: complete without scripts, and as one file after the job's end."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from elasticdl.history.snapshot import finite
from elasticdl.page import assets, bars, formatting, forms, head, plots, tables
from elasticdl.page.markup import Child, Html, el

_LATELY = 12
_EVENTS = 100
TABS = (
    ("overview", "Overview"),
    ("timeline", "Timeline"),
    ("processes", "Processes"),
    ("shards", "Shards"),
    ("logs", "Logs"),
    ("events", "Events"),
)


def render_page(snapshot: Mapping[str, Any]) -> str:
    """Return the page that the master serves at `/`; scripts and styles come from `/static/`."""
    files = [
        el("link", rel="icon", href=f"/static/{assets.address('icon.svg')}"),
        el("link", rel="stylesheet", href=f"/static/{assets.address('page.css')}"),
        el("script", src=f"/static/{assets.address('early.js')}"),
        el("script", src=f"/static/{assets.address('plot.js')}", defer=True),
        el("script", src=f"/static/{assets.address('page.js')}", type="module"),
    ]
    return _document(str(snapshot["job"]["name"]), files, _body(snapshot, live=True))


def render_report(snapshot: Mapping[str, Any]) -> str:
    """Return the page as one self-contained file, to open from a disk or to mail."""
    style, scripts = assets.text("page.css"), [assets.text("early.js"), assets.text("plot.js")]
    page = assets.text("page.js")
    sources = " ".join(_hash(text) for text in (*scripts, page))
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {sources}; img-src data:"
    snapshot = {
        **snapshot,
        "logs": [
            {**one, "text": formatting.readable(one["text"])} for one in snapshot.get("logs") or ()
        ],
    }
    icon = (
        "data:image/svg+xml;base64," + base64.b64encode(assets.text("icon.svg").encode()).decode()
    )
    files: Child = [
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("link", rel="icon", href=icon),
        el("style", Html(style)),
        [el("script", Html(text)) for text in scripts],
    ]
    data = el("script", Html(_json(snapshot)), type="application/json", id="snapshot")
    body: Child = [_body(snapshot, live=False), data, el("script", Html(page), type="module")]
    return _document(f"{snapshot['job']['name']}: report", files, body)


def render_sign_in(problem: str = "") -> str:
    """Return the page without a token: where to find the token, and a form for it.

    `problem` says why the last token was refused.
    """
    files = [
        el("link", rel="icon", href=f"/static/{assets.address('icon.svg')}"),
        el("link", rel="stylesheet", href=f"/static/{assets.address('page.css')}"),
        el("script", src=f"/static/{assets.address('early.js')}"),
        el("script", src=f"/static/{assets.address('sign-in.js')}", type="module"),
    ]
    return _document("Sign in", files, forms.sign_in(problem))


def _json(value: Mapping[str, Any]) -> str:
    """Encode JSON safely for HTML; NaN and infinity become null."""
    return json.dumps(finite(value), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _document(title: str, files: Child, body: Child) -> str:
    meta = [
        el("meta", charset="utf-8"),
        el("title", f"{title} · ElasticDL"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
    ]
    return (
        "<!doctype html>\n" + el("html", el("head", meta, files), el("body", body), lang="en").text
    )


def _body(snapshot: Mapping[str, Any], *, live: bool) -> Child:
    sections = [
        el("section", el("h2", title), _part(name, snapshot, live=live), id=name, class_="tab")
        for name, title in TABS
    ]
    menu = el("nav", [el("a", title, href=f"#{name}") for name, title in TABS], aria_label="Parts")
    return [
        el("a", "Skip to the content", href="#main", class_="skip"),
        el("header", forms.top(snapshot, live=live), head.head(snapshot)),
        menu,
        el("main", sections, id="main", tabindex=-1),
        _foot(snapshot, live=live),
        forms.dialogs(snapshot) if live else None,
    ]


def _part(name: str, snapshot: Mapping[str, Any], *, live: bool) -> Child:
    occurrences = snapshot.get("occurrences") or ()
    match name:
        case "overview":
            lately = el(
                "section",
                el("h3", "Lately"),
                tables.events(occurrences, _LATELY, "lately"),
                class_="lately",
            )
            return [forms.axis(), el("div", plots.plots(snapshot), lately, class_="columns")]
        case "timeline":
            return [forms.legend(), forms.timeline(), bars.timeline(snapshot)]
        case "processes":
            return [
                forms.processes(),
                el("div", id="process", hidden=True),
                tables.processes(snapshot),
            ]
        case "shards":
            receipt = el("section", el("h3", "Receipt"), tables.receipt(snapshot))
            listing = forms.shards() if live else None
            return [
                tables.shards(snapshot),
                el("div", receipt, listing, class_="halves"),
                tables.problems(snapshot),
            ]
        case "logs":
            return forms.logs(snapshot, live=live)
        case _:
            return [
                forms.events(snapshot),
                el("div", tables.events(occurrences, _EVENTS), class_="scroll", tabindex=0),
                bars.pager("events", len(occurrences)),
            ]


def _foot(snapshot: Mapping[str, Any], *, live: bool) -> Html:
    job = snapshot["job"]
    said = [
        f"ElasticDL {job.get('version_of_elasticdl') or ''}".strip(),
        str(job.get("strategy") or ""),
    ]
    said += [f"namespace {job['namespace']}"] if job.get("namespace") else []
    how = "live from the master" if live else "a report, as one file"
    return el("footer", " · ".join(part for part in (*said, how) if part), class_="foot")
