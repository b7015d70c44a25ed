"""The processes that can have copies of the journal."""

from __future__ import annotations

from typing import final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.master.gateway.sessions import Sessions
from elasticdl.master.journal.copies import CopyHolder


@final
class CopyHolders:
    """Attached processes that serve a master. Use it from one event loop."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def attached(self) -> list[CopyHolder]:
        """Return those that can be asked to have a copy: servers first, since they stay."""
        serving = [
            (name.role is not Role.PS, name.index, CopyHolder(str(name), session.control_address))
            for name, session in self._sessions
            if session.announced and session.control_address
        ]
        return [holder for _, _, holder in sorted(serving, key=lambda one: one[:2])]

    def lives(self, name: str) -> bool:
        """Return whether a process has neither ended nor been given up."""
        return ProcessName.parse(name) in self._sessions
