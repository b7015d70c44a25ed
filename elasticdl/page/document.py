"""The documents around the browser's script: the live page, the report and the sign-in page.

The script renders the embedded snapshot. A browser without script shows a summary.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping
from typing import Any

from elasticdl.formatting import percent
from elasticdl.job_status import JobStatus
from elasticdl.page import assets
from elasticdl.page.markup import Child, Html, el


def render_page(snapshot: Mapping[str, Any], *, read_only: bool = False) -> str:
    """Return the page that the master serves at `/`.

    `snapshot` is JSON as of `history.snapshot`. A `read_only` page has no actions. Scripts and
    styles come from `/static/`. Raises ValueError for a status of another version.
    """
    # Both scripts run in this order, after the document is parsed and before anything is painted.
    scripts = [
        el("script", src=_address("plot.js"), defer=True),
        el("script", src=_address("page.js"), type="module"),
    ]
    body = [summary(snapshot, live=True), _data(snapshot, live=True, read_only=read_only)]
    return _document(snapshot["job"]["name"], [_linked_files(), scripts], body)


def render_report(snapshot: Mapping[str, Any]) -> str:
    """Return the page as one self-contained file, to open from a disk or to mail.

    `snapshot` and errors are those of `render_page`.
    """
    style, page = assets.text("page.css"), assets.text("page.js")
    scripts = [assets.text("early.js"), assets.text("plot.js")]
    sources = " ".join(_hash(text) for text in (*scripts, page))
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {sources}; img-src data:"
    icon = base64.b64encode(assets.text("icon.svg").encode()).decode()
    files: Child = [
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("link", rel="icon", href=f"data:image/svg+xml;base64,{icon}"),
        el("style", Html(style)),
        [el("script", Html(text)) for text in scripts],
    ]
    body: Child = [
        summary(snapshot, live=False),
        _data(snapshot, live=False, read_only=True),
        el("script", Html(page), type="module"),
    ]
    return _document(f"{snapshot['job']['name']}: report", files, body)


def render_sign_in(problem: str = "") -> str:
    """Return the page without a token: where to find the token, and a form for it.

    `problem` says why the last token was refused. The script takes the token from the address after
    a click on the link that `train` printed.
    """
    token = el(
        "input", name="token", id="token", type="password", autocomplete="off", required=True,
        spellcheck="false",
    )  # fmt: skip
    form = el(
        "form",
        el("label", el("span", "Token"), token, for_="token"),
        el("button", "Sign in", class_="primary"),
        method="post", action="/session", id="sign-in",
    )  # fmt: skip
    body = el(
        "main",
        el("p", "ElasticDL", class_="brand"),
        el("h1", "This job's page needs a token"),
        el("p", "Open the address that ", el("code", "elasticdl train"), " printed, or type ",
           el("code", "elasticdl dashboard JOB"), ": both carry the token. Or enter it here."),
        el("p", problem, class_="problem", id="problem", role="alert"),
        form,
        class_="sign-in", id="main",
    )  # fmt: skip
    script = el("script", src=_address("sign-in.js"), type="module")
    return _document("Sign in", [_linked_files(), script], body)


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


def _linked_files() -> Child:
    return [
        el("link", rel="icon", href=_address("icon.svg")),
        el("link", rel="stylesheet", href=_address("page.css")),
        el("script", src=_address("early.js")),
    ]


def _address(name: str) -> str:
    return f"/static/{assets.address(name)}"


def _data(snapshot: Mapping[str, Any], *, live: bool, read_only: bool) -> Html:
    # `</script>` or `<!--` in a text must not end or change the element.
    text = json.dumps(snapshot, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return el(
        "script",
        Html(text),
        type="application/json",
        id="snapshot",
        data_live=live,
        data_read_only=live and read_only,
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def summary(snapshot: Mapping[str, Any], *, live: bool) -> Html:
    """Return name, state, records, outcome and next step of a job.

    Raises ValueError for a status of another version.
    """
    job, status = snapshot["job"], JobStatus.from_json(snapshot["status"])
    records, outcome = status.records, snapshot["outcome"]
    state, share = snapshot["status"]["state"], percent(records.trained, records.expected)
    done = f": {records.trained:,} of {records.expected:,} records, {share}"
    more = " Reload the page for news." if live and outcome is None else ""
    return el(
        "noscript",
        el(
            "main",
            el("p", "ElasticDL", class_="brand"),
            el("h1", job["name"]),
            el("p", state + done if records.expected else state),
            el("p", status.message) if outcome is None else _end(outcome),
            el("p", "Curves and tables need JavaScript. ", el("code", _command(job)),
               f" shows the job in a terminal.{more}"),
            class_="summary",
        ),
    )  # fmt: skip


def _end(outcome: Mapping[str, Any]) -> Child:
    return [
        el("pre", outcome["message"]),
        el("p", f"What to do: {outcome['hint']}") if outcome["hint"] else None,
    ]


def _command(job: Mapping[str, Any]) -> str:
    return f"elasticdl status {shlex.quote(job['name'])}"
