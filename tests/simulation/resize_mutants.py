"""Defects in how the number of servers changes."""

from __future__ import annotations

from tests.simulation.mutant import SERVERS, Mutant

RESIZE_MUTANTS = (
    Mutant(
        "servers admit pushes after the cut that others restore",
        SERVERS,
        "master.executor.executor:Executor._cut",
        "seal=command.seal",
        "seal=False",
        shows="updates",
    ),
    Mutant(
        "servers restore the checkpoint that they loaded before the cut",
        SERVERS,
        "master.core.ps.resizing:Resizing.saved",
        "RestoreServers(names, event.path)",
        "RestoreServers(names, move.base)",
        shows="updates",
    ),
    Mutant(
        "the seal of a change that failed is not undone",
        SERVERS,
        "master.core.ps.resizing:Resizing._withdraw",
        "context.orders.give(UnsealServers(move.snapshot))",
        "pass",
    ),
    Mutant(
        "another master leaves the seal of the one before",
        SERVERS,
        "master.core.ps.resizing:Resizing.taken_over",
        'self._withdraw(self._move, "another master continues the job")',
        "self._move = None",
    ),
)
