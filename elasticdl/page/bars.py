"""The membership timeline: a row per process from its launch to its end, coloured by cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasticdl.page import formatting
from elasticdl.page.markup import Child, Html, el
from elasticdl.page.sketch import percent, ticks

ROWS = 100
_LINES = 60
_BUCKETS = 240


def timeline(snapshot: Mapping[str, Any]) -> Html:
    """Return axis, number of workers, a row per process, and the generations of a ring."""
    line = snapshot.get("timeline") or {}
    bars = sorted(
        line.get("bars") or (),
        key=lambda bar: (bar["ordered_s"], formatting.by_name(bar["process"])),
    )
    generations: Sequence[Mapping[str, Any]] = line.get("generations") or ()
    span = max(1.0, float(line.get("now_s") or 0))
    marks = [one["at_s"] for one in generations][-_LINES:]
    rows = [bar_row(bar, span, marks) for bar in bars[:ROWS]]
    heads = [
        el("th", word, scope="col", class_=class_)
        for word, class_ in (("Process", "who"), (None, "when"), ("Now, or why it ended", "why"))
    ]
    heads[1] = el(
        "th",
        el("span", "From its order to its end", class_="unseen"),
        axis(span, generations[-_LINES:], (line.get("marks") or ())[-ROWS:]),
        scope="col",
        class_="when",
    )
    crowd = el(
        "tr",
        el("th", "Workers", scope="row"),
        el("td", presence(bars, span)),
        el("td", _peak(bars, span)),
        class_="crowd",
    )
    rows = rows or [empty_row("no process has been ordered yet", 3)]
    return el(
        "div",
        el(
            "table",
            el("thead", el("tr", heads), crowd if len(bars) > 1 else None),
            el("tbody", rows, id="bars"),
            class_="bars",
            aria_label="Processes over time",
        ),
        pager("bars", len(bars)),
        ring(generations) if generations else None,
    )


def pager(name: str, total: int) -> Html:
    """Return the controls for further rows; without the script, the number of rows."""
    text = f"{ROWS:,} of {total:,}" if total > ROWS else ""
    return el("div", text, class_="pager", id=f"{name}-pager")


def axis(
    span: float, generations: Sequence[Mapping[str, Any]], marks: Sequence[Mapping[str, Any]]
) -> Html:
    """Return the time axis, with generations above it and a tick below per mark."""
    times = [
        el(
            "text",
            formatting.clock(at),
            x=percent(at, span),
            y=26,
            class_="last" if at > 0.94 * span else "first" if at == 0 else None,
        )
        for at in ticks(span)
    ]
    numbers, last = [], -1.0
    for one in generations:
        share = one["at_s"] / span
        if share - last >= 0.03:
            numbers.append(
                el(
                    "text",
                    f"{one['generation']}",
                    x=percent(one["at_s"], span),
                    y=10,
                    class_="generation",
                )
            )
            last = share
    noted = [
        el(
            "line",
            el(
                "title", f"{formatting.clock(one['at_s'])} {str(one['text']).partition(chr(10))[0]}"
            ),
            x1=percent(one["at_s"], span),
            x2=percent(one["at_s"], span),
            y1=28,
            y2=32,
            class_="saved" if one["kind"] == "checkpoint" else "noted",
        )
        for one in marks
    ]
    return el(
        "svg", numbers, noted, times, width="100%", height=32, class_="axis", aria_hidden="true"
    )


def bar_row(bar: Mapping[str, Any], span: float, marks: Sequence[float]) -> Html:
    """Return name, bar, and end in words."""
    tone = formatting.tone_of(dict(bar))
    return el(
        "tr",
        el("th", el("a", bar["process"], href=f"?process={bar['process']}#processes"), scope="row"),
        el("td", drawing(bar, span, marks, tone)),
        el(
            "td",
            el("span", f"{tone.mark} {tone.word}", class_=f"tag {tone.name}"),
            el("span", formatting.told(str(bar.get("text") or ""), tone), class_="text"),
        ),
    )


def drawing(
    bar: Mapping[str, Any], span: float, marks: Sequence[float], tone: formatting.Tone
) -> Html:
    """Draw a bar: thin while waiting, full while working."""
    ordered, end = (
        float(bar["ordered_s"]),
        float(bar["ended_s"] if bar.get("ended_s") is not None else span),
    )
    ready = bar.get("ready_s")
    shapes: list[Child] = [
        el("line", x1=percent(at, span), x2=percent(at, span), y1=0, y2=20, class_="mark")
        for at in marks
    ]
    wait_end = float(ready) if ready is not None else end
    shapes.append(
        el(
            "rect",
            x=percent(ordered, span),
            width=percent(wait_end - ordered, span),
            y=8,
            height=4,
            class_="waited",
        )
    )
    if ready is not None:
        shapes.append(
            el(
                "rect",
                x=percent(ready, span),
                width=percent(end - ready, span),
                y=4,
                height=12,
                rx=2,
                class_=tone.name,
            )
        )
    if bar.get("ended_s") is not None:
        shapes.append(
            el(
                "line",
                x1=percent(end, span),
                x2=percent(end, span),
                y1=2,
                y2=18,
                class_=f"end {tone.name}",
            )
        )
    until = formatting.clock(bar["ended_s"]) if bar.get("ended_s") is not None else "now"
    label = f"{bar['process']}: {formatting.clock(ordered)} to {until}, {tone.word}"
    return el("svg", shapes, width="100%", height=20, role="img", aria_label=label)


def presence(bars: Sequence[Mapping[str, Any]], span: float) -> Html:
    """Draw the number of ready workers over time as an area."""
    levels = _levels(bars, span)
    top = max(levels) or 1
    points = " ".join(
        f"{index},{24 - 22 * level / top:.1f} {index + 1},{24 - 22 * level / top:.1f}"
        for index, level in enumerate(levels)
    )
    return el(
        "svg",
        el("polygon", points=f"0,24 {points} {_BUCKETS},24"),
        viewBox=f"0 0 {_BUCKETS} 24",
        preserveAspectRatio="none",
        width="100%",
        height=24,
        role="img",
        aria_label=f"workers ready over time, at most {max(levels):,}",
    )


def empty_row(text: str, columns: int) -> Html:
    """Return the text of a table without rows."""
    return el("tr", el("td", text, colspan=columns, class_="empty"), data_id=text)


def _peak(bars: Sequence[Mapping[str, Any]], span: float) -> str:
    now = sum(
        1
        for bar in bars
        if bar["role"] == "worker" and bar.get("ready_s") is not None and bar.get("ended_s") is None
    )
    all_of_them = sum(bar["role"] == "worker" for bar in bars)
    return f"{now:,} ready now, {max(_levels(bars, span)):,} at most, {all_of_them:,} in all"


def _levels(bars: Sequence[Mapping[str, Any]], span: float) -> list[int]:
    changes = [0] * (_BUCKETS + 1)
    for bar in bars:
        if bar["role"] == "worker" and bar.get("ready_s") is not None:
            changes[_bucket(bar["ready_s"], span)] += 1
            changes[
                _bucket(bar["ended_s"], span) if bar.get("ended_s") is not None else _BUCKETS
            ] -= 1
    levels, level = [], 0
    for change in changes[:_BUCKETS]:
        level += change
        levels.append(level)
    return levels


def _bucket(at_s: float, span: float) -> int:
    return max(0, min(_BUCKETS - 1, int(_BUCKETS * at_s / span)))


def ring(generations: Sequence[Mapping[str, Any]]) -> Html:
    """List the generations, newest first."""
    rows = list(_generations(generations[-ROWS:]))[::-1]
    heads = [
        el("th", word, scope="col", class_=kind)
        for word, kind in (("Generation", "n"), ("At", "n"), ("Members", ""), ("Why", ""))
    ]
    return el(
        "section",
        el("h3", "Ring generations"),
        el(
            "div",
            el(
                "table",
                el("thead", el("tr", heads)),
                el("tbody", rows, id="generations"),
                class_="narrow",
            ),
            class_="scroll",
            tabindex=0,
        ),
    )


def _generations(generations: Sequence[Mapping[str, Any]]) -> Iterator[Html]:
    for one in generations:
        members = [str(name) for name in one["members"]]
        named = ", ".join(members[:12]) + (
            f" and {len(members) - 12:,} more" if len(members) > 12 else ""
        )
        reason = str(one.get("reason") or "").partition("\n")[0]
        yield el(
            "tr",
            el("td", f"{one['generation']}", class_="n"),
            el("td", formatting.clock(one["at_s"]), class_="n"),
            el("td", f"{len(members):,}: ", named),
            el("td", reason),
        )
