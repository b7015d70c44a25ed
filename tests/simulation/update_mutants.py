"""Defects in the account of updates."""

from __future__ import annotations

from tests.simulation.mutant import SERVERS, STEPS, Mutant

UPDATE_MUTANTS = (
    Mutant(
        "pushes that are reported after a server's return are not lost",
        SERVERS,
        "master.core.updates:_Updates.book",
        "self.lose(part.has, self.booked)",
        "pass",
        shows="updates were lost",
    ),
    Mutant(
        "what workers push again is lost",
        SERVERS,
        "master.core.ps.update_booking:UpdateBooking._restored",
        "again = restored > 0 and",
        "again = False and",
        shows="updates were lost",
    ),
    Mutant(
        "what a worker cannot push again is not lost",
        SERVERS,
        "master.core.updates:UpdateAccount.reported",
        "mine.lose(mine.lacking.pop(older).has, last)",
        "mine.lacking.pop(older)",
        shows="updates were lost",
    ),
    Mutant(
        "what a worker did not push again before its end is not lost",
        SERVERS,
        "master.core.updates:_Updates.lost_until",
        "if not comes_again",
        "if False",
        shows="updates were lost",
    ),
    Mutant(
        "a worker without work pushes nothing again",
        SERVERS,
        "worker.ps.trainer:PsTrainer.revive",
        "if self._turns is None",
        "if False",
        shows="with them",
    ),
    Mutant(
        "whatever a worker pushes after a server's return is lost",
        SERVERS,
        "master.core.updates:UpdateAccount.reported",
        "if self._succeeds(server, older)",
        "if False",
        shows="updates were lost",
    ),
    Mutant(
        "an update that two servers lack is lost twice",
        SERVERS,
        "master.core.updates:_joined",
        "if joined and begin <= joined[-1][1]",
        "if False",
        shows="updates were lost",
    ),
    Mutant(
        "a step that a server did not apply counts",
        STEPS,
        "master.core.updates:UpdateAccount.stepped",
        "unseen + event.complete",
        "unseen + 1",
        shows="updates were made",
    ),
    Mutant(
        "steps get old numbers again after a takeover",
        STEPS,
        "master.gateway.step_turns:StepTurns._recover",
        "max(newest, known)",
        "newest",
    ),
    Mutant(
        "the ledger of a checkpoint has the updates that are reported",
        SERVERS,
        "master.core.job_context:JobContext.update_counts",
        "if mark is None",
        "if True",
        shows="its ledger says",
    ),
    Mutant(
        "the ledger of a checkpoint lacks the pieces that are left of its shards",
        SERVERS,
        "master.core.data.resuming:ledger_json",
        "pieces = [*held, *ledger.returned]",
        "pieces = [*ledger.returned]",
        shows="other records in its weights",
    ),
)
