"""The check of a process that masters call: only the newest master is served."""

from __future__ import annotations

from typing import final

from elasticdl.rpc.channel import Caller
from elasticdl.tokens import proof_to_server


@final
class TermGuard:
    """Lets only the newest master call this process; a replaced one is refused."""

    def __init__(self, token: str) -> None:
        """`token` is this process's own."""
        self._token = token
        self._term = 0

    def proof(self, caller: Caller) -> str:
        """What a master of the caller's term shows: nobody else can name a term."""
        return proof_to_server(self._token, caller.term)

    def learn(self, term: int) -> None:
        """Note the term of a master."""
        self._term = max(self._term, term)

    def is_replaced(self, caller: Caller) -> bool:
        """Whether the caller is the master of an earlier term."""
        return caller.term < self._term

    def check(self, caller: Caller, method: str) -> str | None:
        """Why the caller is refused, or None. Its proof says that it is a master."""
        if caller.name != "master":
            return f"{caller.name or 'an unnamed process'} is not a master and may not {method}"
        if caller.term < self._term:
            return f"the master of term {self._term} has replaced that of term {caller.term}"
        # A newer master is served from its first call on; it need not say so.
        self.learn(caller.term)
        return None
