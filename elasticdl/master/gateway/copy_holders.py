"""The processes that can have copies of the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.master.gateway.sessions import Sessions
from elasticdl.master.journal.copies import CopyHolder


@final
class CopyHolders:
    """Attached processes that serve a master. Use it from one event loop."""

    def __init__(self, sessions: Sessions, role: Role, node: Callable[[ProcessName], str]) -> None:
        """`role`: servers if the job has any. They stay, and run no code of users.

        `node` returns where a process runs; '' if that is not known.
        """
        self._sessions, self._role, self._node = sessions, role, node

    def attached(self) -> list[CopyHolder]:
        """Return those that can be asked to have a copy, the oldest names first."""
        serving = {
            name: session.control_address
            for name, session in self._sessions
            if name.role is self._role and session.announced and session.control_address
        }
        return [
            CopyHolder(str(name), serving[name])
            for name in sorted(serving, key=lambda name: (name.index, name.incarnation))
        ]

    def lives(self, name: str) -> bool:
        """Return whether a process has neither ended nor been given up."""
        return ProcessName.parse(name) in self._sessions

    def node(self, name: str) -> str:
        return self._node(ProcessName.parse(name))
