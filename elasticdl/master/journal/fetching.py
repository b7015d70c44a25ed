"""A next master takes the journal from a process that has a copy: docs/adr/0036."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from elasticdl.errors import ElasticDLError
from elasticdl.master.journal import files
from elasticdl.master.journal.copies import CopyHolder, CopyLimits, CopyPlace
from elasticdl.private_file import make_private, replace_atomically
from elasticdl.rpc.journal_copy import Copy

_LOG = logging.getLogger(__name__)
_LIMITS = CopyLimits()


async def fetch(place: CopyPlace, directory: Path, limits: CopyLimits = _LIMITS) -> float | None:
    """Write the copy of a holder on record into a journal's directory; return its age in s.

    Any of them has everything that a master has acted upon. It refuses earlier masters from now on,
    so they cannot act any more. None: there is no copy, which is logged. Raises OSError.
    """
    holders = place.record.holders()
    if not holders:
        _LOG.warning("no process had a copy of the journal when the master before ended")
        return None
    end_s, left = time.monotonic() + limits.fetch_s, set(holders)
    while (copy := await _first_read(left, place, limits)) is None and time.monotonic() < end_s:
        left = await _running(left, place)
        if not left:
            break
        _LOG.warning("trying again: %s runs", " and ".join(sorted(holder.name for holder in left)))
        await asyncio.sleep(limits.record_again_s)
    if copy is None:
        named = " and ".join(f"{holder.name} ({holder.address})" for holder in holders)
        _LOG.error("no copy of the journal can be read; on record: %s", named)
        return None
    make_private(directory)
    for name, data in copy.files.items():
        replace_atomically(directory / name, data, durable=False)
    return copy.age_s


async def _running(holders: set[CopyHolder], place: CopyPlace) -> set[CopyHolder]:
    """Return those of the holders that may run."""
    try:
        running = await place.running()
    except ElasticDLError as error:
        _LOG.warning("cannot look whether processes run: %s", error.message)
        return holders
    return {holder for holder in holders if holder.name in running}


async def _first_read(
    holders: set[CopyHolder], place: CopyPlace, limits: CopyLimits
) -> Copy | None:
    """Return a whole copy; if there is none, leave in `holders` those that did not answer."""
    reading = [asyncio.ensure_future(_read(holder, place, limits)) for holder in tuple(holders)]
    try:
        for done in asyncio.as_completed(reading):
            holder, copy = await done
            if copy is not None and _is_whole(holder, copy, place):
                return copy
            if copy is not None:
                holders.discard(holder)
        return None
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def _read(
    holder: CopyHolder, place: CopyPlace, limits: CopyLimits
) -> tuple[CopyHolder, Copy | None]:
    copy = place.connect(holder, place.term)
    try:
        return holder, await copy.read(timeout_s=limits.read_s)
    except ElasticDLError as error:
        _LOG.warning("cannot read the copy of the journal in %s: %s", holder.name, error.message)
        return holder, None
    finally:
        await copy.close()


def _is_whole(holder: CopyHolder, copy: Copy, place: CopyPlace) -> bool:
    if not copy.number:
        _LOG.warning("%s no longer has a copy of the journal", holder.name)
    elif not place.is_sealed(copy) or not all(map(files.is_name, copy.files)):
        _LOG.error("the copy of the journal in %s is damaged: its seal is wrong", holder.name)
    else:
        return True
    return False
