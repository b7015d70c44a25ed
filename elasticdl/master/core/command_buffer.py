"""Collects the commands of one event, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.commands import Announce, Command


class ImpossibleTransition(Exception):
    """The state machine contradicts itself, which is a bug and never a sender's fault.

    The message lists the last events.
    """


@final
class CommandBuffer:
    """Commands of the event that is being handled."""

    def __init__(self) -> None:
        self._commands: list[Command] = []

    def give(self, *commands: Command) -> None:
        """Add commands, to be executed after those already given."""
        self._commands.extend(commands)

    def announce(
        self,
        kind: str,
        text: str,
        *,
        process: ProcessName | None = None,
        cause: str = "",
        level: str = "info",
        details: Mapping[str, float | int | str] | None = None,
    ) -> None:
        """Announce one line to people."""
        name = str(process) if process else ""
        self.give(
            Announce(
                kind, text, process=name, cause=cause, level=level, details=dict(details or {})
            )
        )

    @property
    def given(self) -> Sequence[Command]:
        """The commands of the current event so far."""
        return self._commands

    def take(self) -> list[Command]:
        """Remove and return all commands."""
        # A new list: the driver still iterates over the old one.
        taken, self._commands = self._commands, []
        return taken
