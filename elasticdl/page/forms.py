"""Controls of the page: the bar at the top, filters, actions with their dialogs, the sign-in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elasticdl.formatting import amount
from elasticdl.page import head
from elasticdl.page.markup import Child, Html, el

_SPANS = (
    ("", "whole job"),
    ("3600", "last hour"),
    ("600", "last 10 minutes"),
    ("60", "last minute"),
)
_SHARD_STATES = ("leased", "todo", "settling", "retried", "parked", "done")


def top(snapshot: Mapping[str, Any], *, live: bool) -> Html:
    """Return the top bar: the job's name, the page's age, actions and colours."""
    job = snapshot["job"]
    over = snapshot.get("outcome") is not None
    actions = [
        _button(word, f"ask-{verb}")
        for verb, word in (("scale", "Scale…"), ("checkpoint", "Checkpoint…"), ("stop", "Stop…"))
    ]
    steer = (
        el("div", actions, class_="actions needs-script", id="actions", hidden=over or None)
        if live
        else None
    )
    fresh = el(
        "span",
        "without script: reload for news" if live and not over else "",
        id="connection",
        class_="connection",
        role="status",
    )
    scheme = el("button", "Colours: system", type="button", id="theme", class_="quiet needs-script")
    return el(
        "div",
        el("p", "ElasticDL", class_="brand"),
        el("h1", job["name"]),
        fresh,
        steer,
        scheme,
        class_="top",
    )


def _button(word: str, identity: str, kind: str = "") -> Html:
    return el("button", word, type="button", id=identity, class_=kind or None)


def _choice(name: str, label: str, options: Sequence[tuple[str, str]]) -> Html:
    return el(
        "label",
        el("span", label),
        " ",
        el(
            "select",
            [el("option", word, value=value) for value, word in options],
            id=name,
            name=name,
        ),
    )


def _search(name: str, label: str) -> Html:
    return el(
        "label",
        el("span", label),
        " ",
        el("input", id=name, name=name, type="search", autocomplete="off", spellcheck="false"),
    )


def _row(*children: Child) -> Html:
    return el("div", *children, class_="filters needs-script")


def axis() -> Html:
    """Return the choice of the axis for loss and metrics."""
    return _row(
        _choice("axis", "Loss and metrics against", (("records", "records"), ("time", "time")))
    )


def timeline() -> Html:
    """Return the choice of processes and time span."""
    shown = (
        ("", "all"),
        ("live", "that live"),
        ("ended", "that ended"),
        ("trouble", "that ended unasked"),
    )
    order = (("", "as they began"), ("last", "newest first"), ("name", "by name"))
    return _row(
        _choice("shown", "Processes", shown),
        _choice("order", "in order", order),
        _choice("span", "over", _SPANS),
    )


def legend() -> Html:
    """Return the colours with their marks and words."""
    tones = (
        ("live", "● ready"),
        ("wait", "◌ waited for"),
        ("good", "✓ finished"),
        ("calm", "○ ended as asked"),
    )
    ends = (
        ("moved", "△ refused or sent away by the platform"),
        ("lost", "✕ lost"),
        ("memory", "▲ out of memory"),
        ("error", "! error"),
    )
    bars = [el("li", word, class_=f"tag {tone}") for tone, word in (*tones, *ends)]
    ticks = [
        el("li", el("i", class_=f"tick {kind}"), word)
        for kind, word in (("saved", "checkpoint"), ("", "evaluation, scaling and the like"))
    ]
    return el("ul", bars, ticks, class_="legend tones", aria_label="Colours")


def processes() -> Html:
    """Return search and filter by state."""
    states = (
        ("", "all"),
        ("live", "that live"),
        ("waiting", "not ready"),
        ("ended", "that ended"),
        ("trouble", "that ended unasked"),
    )
    return _row(_search("find", "Find"), _choice("state-filter", "Show", states))


def events(snapshot: Mapping[str, Any]) -> Html:
    """Return search and filter by severity."""
    dropped = int(snapshot.get("occurrences_dropped") or 0)
    said = (
        f"{dropped:,} earlier ones are in events.jsonl; `elasticdl why` reads all"
        if dropped
        else ""
    )
    levels = (("", "everything"), ("warning", "warnings and errors"))
    return el(
        "div",
        _row(_search("event-find", "Find"), _choice("level", "Show", levels)),
        el("p", said, id="dropped", class_="empty") if said else None,
    )


def shards() -> Html:
    """Return the list of single shards, which the script loads in pieces."""
    states = [(state, state) for state in _SHARD_STATES]
    heads = ("Shard", "Records", "State", "Owner", "Attempt", "Age")
    numeric = ("Records", "Attempt", "Age")
    head = el(
        "tr",
        [el("th", word, scope="col", class_="n" if word in numeric else None) for word in heads],
    )
    table = el("table", el("thead", head), el("tbody", id="shard-rows"))
    listing = el("div", table, class_="scroll tall", tabindex=0)
    return el(
        "section", el("h3", "Single shards"), _row(_choice("shard-state", "that are", states)),
        listing, el("div", id="shards-pager", class_="pager"), class_="needs-script",
    )  # fmt: skip


def logs(snapshot: Mapping[str, Any], *, live: bool) -> Child:
    """Return choice, follow and search; a report contains the saved logs."""
    if not live:
        kept = snapshot.get("logs") or ()
        return [
            _row(_choice("log", "Log of", [(one["process"], one["process"]) for one in kept])),
            el(
                "pre",
                kept[0]["text"] if kept else None,
                id="log-text",
                tabindex=0,
                aria_label="Log",
                hidden=not kept,
            ),
            el("p", _where_logs_are(snapshot), class_="empty", id="log-note"),
        ]
    choose = _choice("log", "Log of", ())
    follow = el(
        "label", el("input", type="checkbox", id="follow", checked=True), " ", el("span", "follow")
    )
    find = el("form", _search("log-find", "Search"), " ", el("button", "Find"), id="log-search")
    return [
        el("div", choose, follow, find, class_="filters needs-script"),
        el("div", id="incarnations"),
        el("div", id="matches", hidden=True),
        el(
            "div",
            el("button", "Earlier", type="button", id="log-earlier"),
            " ",
            el("span", id="log-place"),
            class_="filters needs-script",
        ),
        el("pre", id="log-text", tabindex=0, aria_label="Log"),
        el(
            "noscript",
            el("p", "Logs need script; `elasticdl logs` shows them, too.", class_="empty"),
        ),
    ]


def _where_logs_are(snapshot: Mapping[str, Any]) -> str:
    whole = "in logs/ of the job's directory; `elasticdl logs` shows them."
    kept = snapshot.get("logs") or ()
    if not kept:
        return f"Logs are {whole}"
    return (
        f"The ends of {amount(len(kept), 'log')}, at first of processes that failed; whole ones are"
        f" {whole}"
    )


def dialogs(snapshot: Mapping[str, Any]) -> Html:
    """Return the confirmation dialogs of actions."""
    scale = snapshot["status"].get("scale") or {}
    workers = [
        el(
            "label",
            el("span", word),
            " ",
            el(
                "input",
                type="number",
                min=1,
                max=100000,
                required=True,
                name=name,
                value=scale.get(key) or 1,
            ),
        )
        for name, key, word in (("min", "low", "at least"), ("max", "high", "at most"))
    ]
    reason = el(
        "label",
        el("span", "Reason"),
        " ",
        el("input", name="reason", maxlength=200, placeholder="asked for on the status page"),
    )
    return el(
        "div",
        _dialog("stop", "Stop this job?", "Workers give their work back, and the job ends.",
                "Stop the job", [_resume_command(snapshot), reason], danger=True),
        _dialog("scale", "How many workers?",
                "The job keeps between these two numbers, as room allows.",
                "Scale", el("div", workers, class_="pair")),
        _dialog("checkpoint", "Take a checkpoint now?",
                "All servers hold one consistent view for a moment; training goes on.",
                "Take a checkpoint", None),
        _dialog("replace", "Replace this worker?",
                "It is ended, what it had is given to others, and another one is started.",
                "Replace", el("input", type="hidden", name="process")),
        el("div", id="said", class_="said", role="status"),
    )  # fmt: skip


def _resume_command(snapshot: Mapping[str, Any]) -> Html:
    """Return how to resume the job afterwards, with the same words as the command line."""
    lead, _, command = str(snapshot["job"].get("resume_command") or "").rpartition("with: ")
    kept = "A last checkpoint is taken: " if lead.startswith("go on") else ""
    starting = snapshot["status"].get("phase") == "starting"
    return el(
        "div",
        el("p", f"{kept}{lead}with:", id="resume-command-lead"),
        head.command(command, "resume-command"),
        # During the preflight there is nothing to resume; the job's end says how to submit it
        # again.
        hidden=not command or starting,
    )


def _dialog(
    verb: str, title: str, text: str, word: str, fields: Child, *, danger: bool = False
) -> Html:
    answer = el("button", word, type="submit", class_="danger" if danger else "primary")
    never = el("button", "Cancel", type="button", class_="cancel")
    form = el(
        "form", el("h2", title, id=f"{verb}-title"), el("p", text), fields,
        el("p", class_="problem", role="alert"), el("div", never, answer, class_="answers"),
    )  # fmt: skip
    return el("dialog", form, id=f"dialog-{verb}", aria_labelledby=f"{verb}-title", data_verb=verb)


def sign_in(problem: str) -> Html:
    """Return a form for the token.

    The script takes the token from the address after a click on the link that `train` printed.
    """
    token = el(
        "input",
        name="token",
        id="token",
        type="password",
        autocomplete="off",
        required=True,
        spellcheck="false",
    )
    return el(
        "main",
        el("p", "ElasticDL", class_="brand"),
        el("h1", "This job's page needs its token"),
        el("p", "Open the address that ", el("code", "elasticdl train"), " printed, or type ",
           el("code", "elasticdl dashboard"), ": both carry the token. Or give it here."),
        el("p", problem, class_="problem", id="problem", role="alert"),
        el("form", el("label", el("span", "Token"), token, for_="token"),
           el("button", "Sign in", class_="primary"),
           method="post", action="/session", id="sign-in"),
        class_="sign-in", id="main",
    )  # fmt: skip
