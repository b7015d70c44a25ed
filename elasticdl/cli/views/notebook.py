"""A job's live view in a notebook: one piece of HTML that is updated while the job runs."""

from __future__ import annotations

import importlib
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Protocol, TypeAlias, final

from elasticdl.cli.views import progress
from elasticdl.cli.views.console import plain, without_token
from elasticdl.cli.views.progress import Share
from elasticdl.formatting import amount
from elasticdl.job_status import JobStatus

_EVERY_S = 1.0
_SHOWN_EVENTS, _SHOWN_PROCESSES = 6, 12


class Shown(Protocol):
    """Something on the screen: IPython's `DisplayHandle`."""

    def update(self, obj: object) -> None:
        """Replace what is shown."""


Show: TypeAlias = Callable[[object], Shown]


@final
class Html:
    """HTML in a notebook, plain text elsewhere."""

    def __init__(self, html: str, text: str) -> None:
        self._html, self._text = html, text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


@final
class NotebookView:
    """A `View` under the current cell.

    Create it in the cell's thread; use it from any one thread.
    """

    def __init__(self, show: Show, title: str, every_s: float = _EVERY_S) -> None:
        self._title = title
        self._every_s = every_s
        self._events: deque[str] = deque(maxlen=_SHOWN_EVENTS)
        self._status: JobStatus | None = None
        self._painted_at_s = float("-inf")
        self._shown = show(self._picture())

    def say(self, text: str) -> None:
        # Notebooks are saved and shared with their output, so it must not contain a token.
        self._events.append(without_token(text))
        self._paint()

    def show(self, status: JobStatus | None, events: Sequence[Mapping[str, Any]]) -> None:
        self._events.extend(progress.event_line(event) for event in events)
        self._status = status if status is not None else self._status
        over = status is not None and status.phase == "ended"
        if events or over or time.monotonic() - self._painted_at_s >= self._every_s:
            self._paint()

    def close(self) -> None:
        self._paint()

    def _paint(self) -> None:
        self._painted_at_s = time.monotonic()
        self._shown.update(self._picture())

    def _picture(self) -> Html:
        return picture(self._title, self._status, self._events)


def picture(title: str, status: JobStatus | None, events: Sequence[str] = ()) -> Html:
    """Return a job as HTML, in the surrounding colours, and as text."""
    parts = [f"<b>{_text(title)}</b>"]
    texts = [title]
    if status is not None:
        parts[0] += f": {_text(status.message)}"
        parts += [
            _bars(status),
            f"<div>{_text(progress.facts(status))}</div>",
            _processes(status),
        ]
        parts += [f"<div><i>waiting: {_text(reason)}</i></div>" for reason in status.waiting[:4]]
        texts.append(progress.head(status))
    parts += [f'<div style="opacity:.7">{_text(line)}</div>' for line in events]
    return Html(
        f'<div style="font-size:90%;line-height:1.5">{"".join(parts)}</div>', ": ".join(texts)
    )


def _bars(status: JobStatus) -> str:
    shares = [("job", progress.job_share(status))]
    if status.epochs > 1:
        shares.append(("epoch", progress.epoch_share(status)))
    return "".join(_bar(title, share) for title, share in shares if share.expected)


def _bar(title: str, share: Share) -> str:
    label = f"{title}: {share.percent}, {share.done:,} of {amount(share.expected, 'record')}"
    return (
        f'<div><progress max="1" value="{share.fraction:.4f}" aria-label="{_text(label)}"'
        f' style="width:16em"></progress> {_text(label)}</div>'
    )


def _processes(status: JobStatus) -> str:
    live = progress.processes(status)
    rows = "".join(
        f"<tr><td>{_text(process.name)}</td><td>{_text(process.state)}</td>"
        f"<td>{_text(process.shard or process.message)}</td></tr>"
        for process in live[:_SHOWN_PROCESSES]
    )
    if (more := len(live) + status.processes_left_out - _SHOWN_PROCESSES) > 0:
        rows += f'<tr><td colspan="3">and {more:,} more</td></tr>'
    return (
        "<table><thead><tr><th>process</th><th>state</th><th>works"
        f" on</th></tr></thead><tbody>{rows}</tbody></table>"
        if rows
        else ""
    )


def _text(value: object) -> str:
    return escape(plain(str(value)))


def shower() -> Show | None:
    """Return a function that shows something under the current cell; None outside of a notebook.

    Never imports IPython itself.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display = importlib.import_module("IPython.display").display

    def show(what: object) -> Shown:
        shown: Shown = display(what, display_id=True)
        return shown

    return show
