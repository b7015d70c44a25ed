"""Whole folders: an object whose name is known comes last, and says that the rest is complete."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path

from elasticdl.storage.address import below
from elasticdl.storage.attempts import STARTING, Limits
from elasticdl.storage.store import store_of


def upload(folder: Path, names: Iterable[str], address: str, last: str) -> None:
    """Upload files of a folder; the file `last` comes last, after all others are there.

    An object `last` from before is removed first, so that it never stands beside new objects.
    """
    store = store_of(address)
    store.remove(below(address, last))
    for name in names:
        if name != last:
            store.upload(folder / name, below(address, name))
    store.upload(folder / last, below(address, last))


def replace(folder: Path, address: str, last: str) -> None:
    """Make the objects below an address those of a folder; `last` as for `upload`."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    upload(folder, names, address, last)
    store = store_of(address)
    kept = {below(address, name) for name in names}
    for entry in store.listed(address, deep=True):
        if not entry.is_folder and entry.address not in kept:
            store.remove(entry.address)


def names_in(address: str, limits: Limits = STARTING) -> list[str]:
    """The names directly below an address, sorted, without hidden ones; none if it is absent."""
    entries = store_of(address, limits).listed(address, limits=limits)
    names = (entry.address.rpartition("/")[2] for entry in entries)
    return sorted(name for name in names if name and not name.startswith("."))


def try_to_write(address: str) -> None:
    """Write a small object below an address and remove it. Raises the errors of `Store.write`."""
    probe = below(address, f".elasticdl-{uuid.uuid4().hex}")
    store = store_of(address, STARTING)
    store.write(probe, b"", STARTING)
    store.remove(probe, STARTING)
