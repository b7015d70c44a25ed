"""The head of the page: the job, its progress and its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl.errors import ExitCode
from elasticdl.page import formatting
from elasticdl.page.markup import Child, Html, el

PHASES = {
    "starting": "starting",
    "working": "at work",
    "evaluating": "evaluating",
    "draining": "stopping",
    "checkpointing": "taking the last checkpoint",
    "exporting": "exporting the model",
    "ending": "ending",
    "ended": "ended",
}
_ACTIONS = {"train": "training", "evaluate": "evaluating", "predict": "predicting"}
_METRICS = 3
_WAITS = 4


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure of the head, with a small `note`.

    `tone` colours figures that need attention.
    """

    key: str
    label: str
    value: str
    note: str = ""
    tone: str = ""


def state_of(snapshot: Mapping[str, Any]) -> tuple[str, str]:
    """Return a tone and a word or two."""
    status, outcome = snapshot["status"], snapshot.get("outcome")
    # The exit code is known before the end; until then a stopped job is stopping.
    code = outcome["exit_code"] if outcome else status.get("exit_code")
    if code is not None and (outcome or status.get("phase") in ("ending", "ended")):
        if code == ExitCode.DONE:
            return "good", "done"
        return (
            ("moved", "stopped")
            if code == ExitCode.INTERRUPTED
            else ("error", f"failed, exit code {code}")
        )
    phase = str(status.get("phase") or "")
    told = _ACTIONS.get(str(status.get("action"))) if phase == "working" else PHASES.get(phase)
    tone = (
        "moved"
        if status.get("waiting") and not (status.get("scale") or {}).get("observed")
        else "live"
    )
    return tone, str(status.get("state") or told or phase or "starting")


def facts(snapshot: Mapping[str, Any]) -> Iterator[Fact]:
    """Return the figures, most important first; omit those that the job does not have."""
    status = snapshot["status"]
    records, scale = status.get("records") or {}, status.get("scale") or {}
    over = snapshot.get("outcome") is not None
    if not over:
        yield Fact(
            "rate", "Records per second", formatting.number(status.get("records_per_s") or 0)
        )
    epochs = int(status.get("epochs") or 0)
    if epochs:
        yield Fact(
            "epoch",
            "Epoch",
            formatting.count(min(int(status.get("epoch") or 0) + 1, epochs)),
            f"of {epochs:,}",
        )
    yield Fact("version", "Version", formatting.count(status.get("version") or 0))
    yield _workers(scale, over)
    yield from _others(status, over=over)
    if status.get("loss") is not None:
        yield Fact("loss", "Training loss", formatting.number(status["loss"]))
    for name, value in list((status.get("metrics") or {}).items())[:_METRICS]:
        yield Fact(f"metric-{name}", f"Validation {name}", formatting.number(value))
    stopped_s = ((snapshot.get("story") or {}).get("totals") or {}).get("stopped_s") or 0
    note = f"stopped for {formatting.duration(stopped_s)} of it" if stopped_s else ""
    # The job's time starts after the preflight.
    label = "Took" if over else "Checking for" if status.get("phase") == "starting" else "Uptime"
    yield Fact("uptime", label, formatting.duration(_uptime_s(status)), note)
    yield from _troubles(status, records)


def _uptime_s(status: Mapping[str, Any]) -> float:
    told = status.get("uptime_s")
    return float(told if told is not None else status.get("at_s") or 0)


def _workers(scale: Mapping[str, Any], over: bool) -> Fact:
    low, high = scale.get("low"), scale.get("high")
    asked = (
        formatting.count(low)
        if low == high
        else f"{formatting.count(low)}–{formatting.count(high)}"
    )
    if over:
        return Fact("workers", "Workers", asked, "asked")
    short = int(scale.get("observed") or 0) < int(low or 0)
    return Fact(
        "workers",
        "Workers ready",
        formatting.count(scale.get("observed")),
        f"asked {asked}",
        "moved" if short else "",
    )


def _others(status: Mapping[str, Any], *, over: bool) -> Iterator[Fact]:
    ring = status.get("ring")
    if ring:
        members = len(ring.get("members") or ())
        yield Fact(
            "ring",
            "Ring generation",
            formatting.count(ring.get("generation")),
            f"{members:,} member{'' if members == 1 else 's'}",
        )
    servers = [
        one
        for one in status.get("processes") or ()
        if one["role"] == "ps" and one["state"] != "ended"
    ]
    if servers and not over:
        up = sum(one["state"] == "ready" for one in servers)
        yield Fact(
            "servers",
            "Servers ready",
            formatting.count(up),
            f"of {len(servers):,}",
            "moved" if up < len(servers) else "",
        )


def _troubles(status: Mapping[str, Any], records: Mapping[str, Any]) -> Iterator[Fact]:
    checkpoints: Sequence[Mapping[str, Any]] = status.get("checkpoints") or ()
    if checkpoints:
        yield Fact(
            "checkpoint",
            "Checkpoint",
            formatting.count(checkpoints[-1]["version"]),
            f"at {formatting.clock(checkpoints[-1]['at_s'])}",
        )
    for key, label in (
        ("repeated", "Records repeated"),
        ("bad", "Bad records"),
        ("lost", "Records lost"),
    ):
        if records.get(key):
            yield Fact(
                key,
                label,
                formatting.count(records[key]),
                tone="error" if key == "lost" else "moved",
            )
    if status.get("updates_lost"):
        yield Fact(
            "updates",
            "Updates lost",
            formatting.count(status["updates_lost"]),
            "with a server",
            "error",
        )
    if status.get("cluster_view_age_s") is not None:
        age = status["cluster_view_age_s"]
        yield Fact(
            "view", "Cluster view", formatting.duration(age), "old", "moved" if age > 30 else ""
        )


def progress(snapshot: Mapping[str, Any]) -> Html:
    """Return the progress bar and its text."""
    status = snapshot["status"]
    records = status.get("records") or {}
    done, expected = int(records.get("trained") or 0), int(records.get("expected") or 0)
    share, told = min(1.0, done / expected) if expected else 0.0, formatting.percent(done, expected)
    said = f"{done:,} of {expected:,} records" if expected else "the data is not counted yet"
    return el(
        "div",
        el("progress", told, id="bar", max=1, value=round(share, 4), aria_labelledby="share-words"),
        el(
            "div",
            el("b", told, id="share"),
            " ",
            el("span", said, id="share-words"),
            class_="share",
        ),
        el("div", el("span", _remaining(snapshot), id="eta"), class_="eta"),
        el("p", _routine(snapshot), id="waits"),
        class_="progress",
    )


def _remaining(snapshot: Mapping[str, Any]) -> str:
    status = snapshot["status"]
    if snapshot.get("outcome") is not None or status.get("eta_s") is None:
        return ""
    return f"{formatting.duration(status['eta_s'])} left at this rate"


def _routine(snapshot: Mapping[str, Any]) -> str:
    """Combine waits that do not delay the job in one line, so that the page does not jump."""
    status = snapshot["status"]
    waits = status.get("waiting") or ()
    ready = (status.get("scale") or {}).get("observed")
    return (
        "Waits: " + " · ".join(waits) if waits and ready and snapshot.get("outcome") is None else ""
    )


def notices(snapshot: Mapping[str, Any]) -> Iterator[Html]:
    """Return what to read first: the end, waits and problems with the data."""
    outcome, status = snapshot.get("outcome"), snapshot["status"]
    if outcome is not None:
        failed = outcome["exit_code"] != ExitCode.DONE
        first, _, rest = str(outcome.get("message") or "").partition("\n")
        tone = state_of(snapshot)[0]
        more: Child = (
            el(
                "details",
                el("summary", "All of it"),
                el("pre", rest, tabindex=0),
                open=tone == "error",
            )
            if rest
            else None
        )
        hint: Child = _what_to_do(str(outcome["hint"])) if outcome.get("hint") else None
        if failed or more or hint:
            yield el("div", el("strong", first or "failed"), more, hint, class_=f"notice {tone}")
    if outcome is None and status.get("stall"):
        first = next(iter(status.get("waiting") or ()), "")
        yield el("div", el("strong", "The job stands still"), el("p", first), class_="notice error")
    waits = list(status.get("waiting") or ()) if outcome is None and not _routine(snapshot) else []
    if waits:
        shown = [
            *waits[:_WAITS],
            *([f"and {len(waits) - _WAITS:,} more"] if len(waits) > _WAITS else []),
        ]
        yield el(
            "div",
            el("strong", "Waiting"),
            el("ul", [el("li", reason) for reason in shown]),
            class_="notice moved",
        )


def _what_to_do(hint: str) -> Child:
    """Return the next step, with a command in its own element for copying."""
    lead, told, line = hint.rpartition("with: ")
    return [
        el("p", "What to do: ", lead + told or line, class_="hint"),
        command(line) if told else None,
    ]


def command(line: str, identity: str | None = None) -> Html:
    """Return a command that one click selects.

    It breaks only between words, not at the hyphens of a flag, unless a word exceeds the line.
    """
    return el(
        "pre", [[el("span", word), " "] for word in line.split(" ")], class_="command", id=identity
    )


def head(snapshot: Mapping[str, Any]) -> Html:
    """Return the whole head."""
    tone, word = state_of(snapshot)
    status = snapshot["status"]
    message = str(status.get("message") or "").partition("\n")[0]
    message = "" if snapshot.get("outcome") is not None or message == word else message
    return el(
        "div",
        el(
            "p",
            el("span", word, id="state", class_=f"state {tone}"),
            el("span", message, id="message"),
            class_="line",
        ),
        progress(snapshot),
        el("div", notices(snapshot), id="notices", role="status"),
        el("dl", [fact(one) for one in facts(snapshot)], id="facts"),
        class_="head",
    )


def fact(one: Fact) -> Html:
    """Return a label, a figure and a note."""
    note = el("small", one.note) if one.note else None
    return el(
        "div",
        el("dt", one.label),
        el("dd", one.value, " " if note else None, note),
        class_=one.tone or None,
    )
