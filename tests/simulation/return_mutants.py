"""Defects in the return of a synchronous job to a checkpoint."""

from __future__ import annotations

from tests.simulation.mutant import STEPS, Mutant

RETURN_MUTANTS = (
    Mutant(
        "servers that lost nothing keep their newer values",
        STEPS,
        "master.core.ps.rolling_back:RollingBack._begin",
        "if server is not None and server.name != restored",
        "if False",
    ),
    Mutant(
        "a server that found its memory meanwhile has returned",
        STEPS,
        "master.core.ps.rolling_back:RollingBack._attached_meanwhile",
        "if not event.kept and event.restored_version == back.version",
        "if True",
    ),
    Mutant(
        "a step that some servers applied brings nobody back",
        STEPS,
        "master.core.ps.rolling_back:RollingBack.stepped",
        "torn = bool(event.servers) and not event.complete",
        "torn = False",
    ),
    Mutant(
        "a step of before the return counts",
        STEPS,
        "master.core.updates:UpdateAccount.is_undone",
        "return any(",
        "return False and any(",
    ),
    Mutant(
        "turns are given before all servers have returned",
        STEPS,
        "master.core.ps.outlook:outlook_of",
        "held=held_up",
        "held=False",
    ),
    Mutant(
        "a worker keeps leases that were revoked before it came to the next master",
        STEPS,
        "master.core.takeover:Takeover._take_back",
        "if process.revoked",
        "if False",
    ),
    Mutant(
        "a server has made a step of an earlier master without its gradients",
        STEPS,
        "master.gateway.step_turns:StepTurns._recover",
        "len(_pushes_of(steps, newest)) == len(pushes)",
        "True",
    ),
)
