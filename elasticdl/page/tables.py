"""Tables of the page: processes, shards, the receipt, events, logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasticdl.formatting import amount, done_word
from elasticdl.page import formatting
from elasticdl.page.bars import ROWS, empty_row, pager
from elasticdl.page.markup import Child, Html, el

PROCESS_COLUMNS = (
    ("name", "Process", ""),
    ("state", "State", ""),
    ("where", "Where", "wide"),
    ("shard", "Works on", "wide"),
    ("records", "Records", "n"),
    ("rate", "Records/s", "n"),
    ("cpu", "CPU", "n wide"),
    ("memory", "Memory", "n wide"),
    ("since", "Since", "n"),
)
_TITLES = {
    "since": "How long it has been so; of a process that has ended, when that was",
    "records": (
        "Records of the receipt that this worker did, settled with the servers; evaluation beside a"
        " training is not in it"
    ),
}
_RECEIPT = ("expected", "trained", "repeated", "bad", "lost", "left")
_DRAWN = ("done", "leased", "settling", "todo", "parked")
"""States of shards, in the order of the bar from left to right and of the words."""


def shown_first(processes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort running processes by name, then ended ones, latest first."""
    live = sorted(
        (one for one in processes if one["state"] != "ended"),
        key=lambda one: formatting.by_name(one["name"]),
    )
    return [
        *live,
        *sorted(
            (one for one in processes if one["state"] == "ended"),
            key=lambda one: (-one["since_s"], formatting.by_name(one["name"])),
        ),
    ]


def processes(snapshot: Mapping[str, Any]) -> Html:
    """Return a table with a row per process."""
    status = snapshot["status"]
    found: Sequence[Mapping[str, Any]] = status.get("processes") or ()
    gauges = status.get("gauges") or {}
    now_s = float(status.get("at_s") or 0)
    rows = [
        _process({**gauges.get(one["name"], {}), **one}, now_s) for one in shown_first(found)[:ROWS]
    ]
    done = done_word(str(status.get("action") or "")).capitalize()
    heads = [
        el(
            "th",
            done if key == "records" else word,
            scope="col",
            class_=kind,
            data_key=key,
            title=_TITLES.get(key),
        )
        for key, word, kind in PROCESS_COLUMNS
    ]
    body = rows or empty_row("no process has been ordered yet", len(heads))
    table = el(
        "table",
        el("thead", el("tr", heads)),
        el("tbody", body, id="process-rows"),
        id="process-table",
    )
    return el("div", el("div", table, class_="scroll", tabindex=0), pager("processes", len(found)))


def _process(row: Mapping[str, Any], now_s: float) -> Html:
    tone = formatting.tone_of(dict(row))
    ended, server = row["state"] == "ended", row["role"] == "ps"
    since = max(0.0, now_s - float(row["since_s"]))
    cells: Sequence[Child] = (
        el(
            "td",
            el("span", f"{tone.mark} {tone.word}", class_=f"tag {tone.name}"),
            el("span", formatting.told(str(row.get("message") or ""), tone), class_="text"),
        ),
        el("td", row.get("where") or "", class_="wide"),
        el("td", row.get("shard") or "", class_="wide"),
        el("td", "" if server else formatting.count(row.get("records") or 0), class_="n"),
        el(
            "td",
            "" if ended or server else formatting.number(row.get("records_per_s") or 0),
            class_="n",
        ),
        el("td", "" if ended else _cpu(row.get("cpu_cores")), class_="n wide"),
        el("td", "" if ended else formatting.memory(row.get("rss_bytes")), class_="n wide"),
        el("td", formatting.duration(since) + (" ago" if ended else ""), class_="n"),
    )
    return el(
        "tr",
        el("th", el("a", row["name"], href=f"?process={row['name']}#processes"), scope="row"),
        cells,
    )


def _cpu(cores: float | None) -> str:
    return formatting.NOTHING if cores is None else f"{cores:.2f}"


def shards(snapshot: Mapping[str, Any]) -> Html:
    """Return the number of shards in each state, by task."""
    found: Mapping[str, Mapping[str, int]] = snapshot["status"].get("shards") or {}
    return el(
        "div",
        [task_bar(task, counts) for task, counts in found.items()]
        or el("p", "no shards yet", class_="empty"),
        id="shard-counts",
    )


def task_bar(task: str, counts: Mapping[str, int]) -> Html:
    """Return one bar with proportional pieces, and the numbers in words."""
    states = [state for state in _DRAWN if state in counts]
    total = sum(counts[state] for state in states)
    pieces, at = [], 0.0
    for state in (name for name in states if counts[name]):
        width = 100 * counts[state] / total
        pieces.append(
            el(
                "rect",
                x=f"{at:.3f}%",
                width=f"{width:.3f}%",
                y=0,
                height=14,
                class_=f"shard-{state}",
            )
        )
        at += width
    said = [
        el(
            "li",
            el("i", class_=f"swatch shard-{state}"),
            f"{state} ",
            el("b", formatting.count(counts[state])),
        )
        for state in states
    ]
    note = el("small", f"{amount(total, 'shard')}; one is done when all of its records are")
    drawing = el("svg", pieces, width="100%", height=14, role="img", aria_label=f"{task} shards")
    return el(
        "div",
        el("div", el("h3", task), " ", note),
        drawing,
        el("ul", said, class_="legend"),
        class_="task",
    )


def receipt(snapshot: Mapping[str, Any]) -> Html:
    """Return records by epoch: the sum, then the newest epoch first.

    Expected records are trained, bad, lost or left.
    """
    found = snapshot["status"].get("receipt") or {}
    epochs: Sequence[Mapping[str, Any]] = found.get("epochs") or ()
    heads = [
        el("th", word.capitalize(), scope="col", class_="n" if word != "epoch" else None)
        for word in ("epoch", *_RECEIPT)
    ]
    total = [_receipt_row("all", found["total"], class_="total")] if found.get("total") else []
    rows = [_receipt_row(f"{row['epoch'] + 1}", row) for row in epochs[::-1]]
    table = el(
        "table",
        el("thead", el("tr", heads)),
        el("tbody", total, _to_come(found), rows, id="receipt-rows"),
        id="receipt",
    )
    notes = el(
        "p", " · ".join(_receipt_notes(snapshot["status"])), class_="empty", id="receipt-notes"
    )
    return el("div", el("div", table, class_="scroll tall", tabindex=0), notes)


def _to_come(receipt: Mapping[str, Any]) -> Html | None:
    """Return one row for all epochs that have not begun."""
    waiting = receipt.get("not_begun") or {}
    if not waiting.get("epochs"):
        return None
    epochs: Sequence[Mapping[str, Any]] = receipt.get("epochs") or ()
    first = epochs[-1]["epoch"] + 2 if epochs else 1
    last = first + waiting["epochs"] - 1
    named = f"{first:,}" if first == last else f"{first:,}–{last:,}"
    return _receipt_row(named, {"expected": waiting["records"], "left": waiting["records"]})


def _receipt_notes(status: Mapping[str, Any]) -> Iterator[str]:
    """Return explanations that the table lacks."""
    found, records = status.get("receipt") or {}, status.get("records") or {}
    if found.get("why_left"):
        yield f"Left: {str(found['why_left']).partition(chr(10))[0]}"
    if found.get("counted"):
        yield f"counted {found['counted']}"
    if records.get("resumed"):
        yield (
            f"{records['resumed']:,} of those trained were trained before the job was taken on"
            " again: no worker of now has them"
        )
    if found.get("repeated_at_least"):
        yield (
            "repeated at least so many: a run before was killed, or ended at once, after its last"
            " checkpoint"
        )
    if records.get("undone"):
        yield (
            f"{records['undone']:,} were trained and lost with the weights of the ring: they count"
            " as repeated"
        )
    if found.get("epochs_left_out"):
        yield (
            f"{amount(found['epochs_left_out'], 'earlier epoch')} not shown; receipt.json has all"
            " when the job has ended"
        )


def _receipt_row(name: str, row: Mapping[str, Any], class_: str = "") -> Html:
    bad = {"lost": "error", "bad": "moved", "repeated": "moved"}
    cells = [
        el(
            "td",
            formatting.count(row.get(key) or 0),
            class_=f"n {bad.get(key, '') if row.get(key) else ''}".strip(),
            data_label=key.capitalize(),
        )
        for key in _RECEIPT
    ]
    return el("tr", el("th", name, scope="row"), cells, class_=class_ or None)


def problems(snapshot: Mapping[str, Any]) -> Html:
    """List parked shards and bad records in full."""
    return el("div", list(_problem_lists(snapshot["status"])), id="problems")


def _problem_lists(status: Mapping[str, Any]) -> Iterator[Html]:
    for key, title in (
        ("parked", "Shards given up"),
        ("bad_examples", "Records that could not be read"),
    ):
        texts = list(status.get(key) or ())
        if texts:
            yield el(
                "section",
                el("h3", title),
                el("ol", [el("li", el("pre", text)) for text in texts[:20]], class_="texts"),
            )


def events(occurrences: Sequence[Mapping[str, Any]], limit: int, name: str = "event-rows") -> Html:
    """List events, newest first."""
    rows = [event_row(one) for one in list(occurrences)[::-1][:limit]] or [
        empty_row("nothing has happened yet", 2)
    ]
    heads = [el("th", "At", scope="col", class_="n"), el("th", "What", scope="col")]
    return el(
        "table",
        el("thead", el("tr", heads)),
        el("tbody", rows, id=name),
        class_="events",
        aria_label="What happened",
    )


def event_row(one: Mapping[str, Any]) -> Html:
    """Return an event: time, cause and text; text beyond one line is folded."""
    first, _, rest = str(one.get("text") or "").partition("\n")
    tone = formatting.CAUSES.get(str(one.get("cause") or ""))
    more: Child = el("details", el("summary", "more"), el("pre", rest)) if rest else None
    said = (
        f"{tone.mark}"
        if tone and tone.word in first
        else f"{tone.mark} {tone.word}"
        if tone
        else ""
    )
    tag: Child = [el("span", said, class_=f"tag {tone.name}"), " "] if tone else None
    level = str(one.get("level") or "info")
    kind = level if level in ("warning", "error") else None
    return el(
        "tr",
        el("td", formatting.clock(one.get("at_s")), class_="n"),
        el("td", tag, first, more),
        class_=kind,
    )
