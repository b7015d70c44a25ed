"""The record of who has copies of the journal: a note in the job's Lease."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import final

from elasticdl.cluster.kubernetes.master_lease import MasterLease
from elasticdl.master.journal.copies import CopyHolder, CopyPlace, HolderRecord, Running
from elasticdl.rpc.journal_copy import GrpcJournalCopy
from elasticdl.tokens import journal_key, process_token

_LOG = logging.getLogger(__name__)
_HOLDERS = "journal-copies"


@final
class LeaseRecord:
    """`HolderRecord` in the Lease, which only the acting master can change."""

    def __init__(self, lease: MasterLease) -> None:
        """The lease is held."""
        self._lease = lease

    def holders(self) -> tuple[CopyHolder, ...]:
        """Return the holders on record; none if the note is not one of ours."""
        text = self._lease.note(_HOLDERS)
        try:
            return tuple(CopyHolder(str(name), str(at)) for name, at in json.loads(text or "[]"))
        except (TypeError, ValueError):
            _LOG.error("the job's Lease names no holders of copies of the journal: %r", text)
            return ()

    async def record(self, holders: Sequence[CopyHolder]) -> None:
        """Replace them. Raises MasterSuperseded, ApiAway, ApiRefused."""
        named = [[holder.name, holder.address] for holder in holders]
        await self._lease.record({_HOLDERS: json.dumps(named)})


def journal_copies(
    record: HolderRecord, running: Running, token: str, authority: str | None, term: int
) -> CopyPlace:
    """Return the copies of a job's journal, for the master of `term`.

    `token` is the job's. `authority` (PEM) signs the holders' certificates; None: clear text.
    """

    def connect(holder: CopyHolder, term: int) -> GrpcJournalCopy:
        own = process_token(token, holder.name)
        return GrpcJournalCopy(holder.name, holder.address, own, term, authority)

    return CopyPlace(record, connect, running, term, journal_key(token))
