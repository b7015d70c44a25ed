"""Progress of a running job on stderr: a live picture on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO, final

from elasticdl.cli.views import progress
from elasticdl.cli.views.console import plain, tell
from elasticdl.formatting import number, spoken
from elasticdl.job_status import JobStatus

if TYPE_CHECKING:
    from rich.console import Group

_LINE_EVERY_S = 10.0
_SHOWN_EVENTS = 8
_SHOWN_PROCESSES = 16
_SHORTEST_BAR, _LONGEST_BAR, _BESIDE_A_BAR = 3, 32, 40


class View(Protocol):
    """Shows a job to the user. Methods are called from one thread."""

    def say(self, text: str) -> None:
        """Print one permanent line."""

    def show(self, status: JobStatus | None, events: Sequence[Mapping[str, Any]]) -> None:
        """Show the newest status and the events since the last call.

        The status is None while the master does not answer.
        """

    def close(self) -> None:
        """Restore the screen."""


@final
class LineView:
    """Prints events as they arrive, and progress at once and every ten seconds."""

    def __init__(self, stream: TextIO, every_s: float = _LINE_EVERY_S) -> None:
        self._stream = stream
        self._every_s = every_s
        self._said_at_s = float("-inf")
        self._line, self._since_s = "", 0.0

    def say(self, text: str) -> None:
        tell(text, self._stream)

    def show(self, status: JobStatus | None, events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            if event.get("level") != "detail":
                self.say(progress.event_line(event))
        # An event gives the reason of the job's end already, and the command prints its outcome.
        goes_on = status is not None and status.exit_code is None
        if status is not None and goes_on and time.monotonic() - self._said_at_s >= self._every_s:
            now_s = self._said_at_s = time.monotonic()
            if (line := progress.head(status)) != self._line:
                self._line, self._since_s = line, now_s
            elif now_s > self._since_s:
                line += f", for {spoken(now_s - self._since_s)}"
            self.say(line)

    def close(self) -> None:
        pass


@final
class NoView:
    """Shows nothing."""

    def say(self, text: str) -> None:
        pass

    def show(self, status: JobStatus | None, events: Sequence[Mapping[str, Any]]) -> None:
        pass

    def close(self) -> None:
        pass


@final
class LiveView:
    """A picture that is redrawn twice a second."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._events: deque[str] = deque(maxlen=_SHOWN_EVENTS)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def say(self, text: str) -> None:
        self._console.print(plain(text), markup=False, highlight=False, soft_wrap=True)

    def show(self, status: JobStatus | None, events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            if event.get("level", "info") != "info":
                self.say(progress.event_line(event))
            self._events.append(progress.event_line(event))
        if status is not None:
            self._live.update(picture(status, self._events, self._console.width), refresh=True)

    def close(self) -> None:
        self._live.stop()


def picture(status: JobStatus, events: Sequence[str], columns: int = 80) -> Group:
    """Build the live picture: progress, measures, processes, waits, last events.

    `columns` is the width of the terminal.
    """
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    job, epoch = progress.job_share(status), progress.epoch_share(status)
    bars = Table.grid(padding=(0, 1))
    shown = [("job", job)] + ([("epoch", epoch)] if status.epochs > 1 else [])
    bar = min(_LONGEST_BAR, max(_SHORTEST_BAR, columns - _BESIDE_A_BAR))
    for title, share in shown:
        label = f"{share.percent:>5}  {share.done:,} of {share.expected:,}"
        bars.add_row(title, ProgressBar(total=1.0, completed=share.fraction, width=bar), label)
    parts: list[Any] = [
        Text(plain(status.message), style="bold"),
        bars,
        Text(progress.facts(status)),
        _process_table(status),
    ]
    parts += [Text(f"waiting: {plain(reason)}", style="yellow") for reason in status.waiting[:4]]
    parts += [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in events]
    return Group(*parts)


def _process_table(status: JobStatus) -> Any:  # noqa: ANN401 - rich's own type would import it for everybody
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    live = progress.processes(status)
    for process in live[:_SHOWN_PROCESSES]:
        gauges = status.gauges.get(process.name, {})
        rate = f"{number(gauges['records_per_s'])}/s" if gauges.get("records_per_s") else ""
        state = Text(process.state, style="green" if process.state == "ready" else "yellow")
        # Escape markup: `[…]` in a message is plain text.
        table.add_row(
            Text(plain(process.name)),
            state,
            rate,
            Text(plain(process.shard or process.message)),
        )
    if (more := len(live) + status.processes_left_out - _SHOWN_PROCESSES) > 0:
        table.add_row(f"and {more:,} more")
    return table


def view_for() -> View:
    """Choose the live picture for a capable terminal on stderr, lines otherwise."""
    import os

    may_paint = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    if sys.stderr.isatty() and may_paint:
        return LiveView()
    return LineView(sys.stderr)


def view_of_script(title: str, *, show: bool) -> View:
    """Choose the view for a job started from Python: under the notebook's cell, else on stderr."""
    if not show:
        return NoView()
    from elasticdl.cli.views.notebook import NotebookView, shower

    shows = shower()
    return NotebookView(shows, title) if shows is not None else LineView(sys.stderr)
