"""A copy of a list on an API server: list, then watch, until cancelled.

The copy is keyed by uid: an object created again under an old name is a different one. Any failure
leads to another list, so that nothing is missed: a watch that is too old to continue, in both its
forms, or a server that is unreachable, silent or sends invalid answers. While the server is
unreachable, this costs almost nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn, final

from elasticdl.clock import Clock
from elasticdl.cluster.kubernetes.apiserver import ApiAway, ApiRefused, ApiServer, Status
from elasticdl.cluster.kubernetes.plans import Json

_LOG = logging.getLogger(__name__)
_GONE = 410


@dataclass(frozen=True, slots=True)
class Timing:
    """Time limits.

    `silence_s`: an API server sends a bookmark every minute, so longer silence means that it is
    gone. `relist_s`: the longest interval between two full lists, whatever the watch reports.
    """

    silence_s: float = 90.0
    relist_s: float = 300.0
    first_back_off_s: float = 0.8
    last_back_off_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Sink:
    """The receiver of changes.

    `changed` gets each new version of an object, `gone` the last version of a deleted one. `listed`
    is called when the copy is complete.
    """

    changed: Callable[[Json], None]
    gone: Callable[[Json], None]
    listed: Callable[[], None]


class _StartOver(Exception):
    """The watch cannot continue where it was; a list is due."""


@final
class Reflector:
    """Use it from one event loop: `run` is a task there, and calls the sink there."""

    def __init__(
        self,
        api: ApiServer,
        path: str,
        label_selector: str,
        sink: Sink,
        clock: Clock,
        timing: Timing | None = None,
    ) -> None:
        self._api = api
        self._path = path
        self._selector = {"labelSelector": label_selector}
        self._sink = sink
        self._clock = clock
        self._timing = timing or Timing()
        self._known: dict[str, Json] = {}
        self._added: set[str] = set()
        """Uids from `add` since the last list was requested, which may lack them."""
        self._heard_s = clock.now_s()
        self._back_off_s = 0.0

    @property
    def age_s(self) -> float:
        """Seconds since the last answer of the API server."""
        return self._clock.now_s() - self._heard_s

    def add(self, item: Json) -> None:
        """Add an object that the caller has just created, so that its end is noticed."""
        if _uid(item) not in self._known:
            self._added.add(_uid(item))
            self._take(item)

    async def run(self) -> NoReturn:
        """Run until cancelled. Never raises for failures of a server or a network."""
        while True:
            try:
                await self._list_and_watch()
            except _StartOver as why:
                await self._pause(f"the watch starts over: {why}", 0.0)
            except ApiAway as away:
                await self._pause(away.message, away.retry_after_s)
            except ApiRefused as refused:
                await self._pause(refused.message, self._timing.last_back_off_s)

    async def _pause(self, why: str, at_least_s: float) -> None:
        timing = self._timing
        self._back_off_s = min(
            timing.last_back_off_s, max(timing.first_back_off_s, self._back_off_s * 2)
        )
        pause_s = min(timing.last_back_off_s, max(at_least_s, self._back_off_s)) * random.uniform(
            0.8, 1.2
        )
        _LOG.warning("%s: %s; retrying in %.1f s", self._path, why, pause_s)
        await asyncio.sleep(pause_s)

    async def _list_and_watch(self) -> None:
        version = await self._list()
        due_s = self._clock.now_s() + self._timing.relist_s
        while (left_s := due_s - self._clock.now_s()) > 0:
            version = await self._watch(version, left_s)

    async def _list(self) -> str:
        """Update the copy; returns the version of the list."""
        # Before the request: what `add` adds from now on may be missing in the answer.
        self._added.clear()
        whole = await self._api.get(self._path, self._selector)
        try:
            version = str(whole["metadata"]["resourceVersion"])
            listed = {_uid(item): item for item in whole["items"]}
        except (KeyError, TypeError) as error:
            raise ApiAway(f"the API server sent an invalid list: {error!r}") from error
        self._heard_s = self._clock.now_s()
        # Deletions between two watches appear in no event, only as a difference between lists.
        for uid in self._known.keys() - listed.keys() - self._added:
            self._sink.gone(self._known.pop(uid))
        for item in listed.values():
            self._take(item)
        self._sink.listed()
        return version

    async def _watch(self, version: str, limit_s: float) -> str:
        """Follow changes after `version` for at most `limit_s`.

        Returns the version to continue from.
        """
        query = {
            **self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, int(limit_s))),
        }
        began_s, heard = self._clock.now_s(), False
        try:
            async with aclosing(
                self._api.lines(self._path, query, self._timing.silence_s)
            ) as lines:
                async for line in lines:
                    heard = True
                    # Continue from the last event, not from the list, which may be too old by then.
                    version = self._change(line) or version
                    # Bookmarks count too: they show that the server lives.
                    self._heard_s, self._back_off_s = self._clock.now_s(), 0.0
                    if self._heard_s - began_s > limit_s:
                        # The server should have ended the watch itself.
                        break
        except ApiRefused as refused:
            if refused.status.code == _GONE:
                raise _StartOver(refused.message) from refused
            raise
        if not heard and self._clock.now_s() - began_s < self._timing.first_back_off_s:
            raise ApiAway("the API server ends every watch at once")
        return version

    def _change(self, line: bytes) -> str:
        """Apply one line of a watch; returns its version."""
        if not line.strip():
            return ""
        kind, item, version = _event(line)
        if kind == "DELETED":
            self._known.pop(_uid(item), None)
            self._sink.gone(item)
        elif kind != "BOOKMARK":
            self._take(item)
        return version

    def _take(self, item: Json) -> None:
        before = self._known.get(_uid(item))
        self._known[_uid(item)] = item
        if before is None or before["metadata"].get("resourceVersion") != item["metadata"].get(
            "resourceVersion"
        ):
            self._sink.changed(item)


def _event(line: bytes) -> tuple[str, Json, str]:
    """Kind, object and version of a watch's line.

    Raises ApiAway, or _StartOver if the watch has become too old.
    """
    try:
        event = json.loads(line)
        kind, item = str(event["type"]), event["object"]
        if kind == "ERROR":
            raise _error(item)
        if kind != "BOOKMARK":
            _uid(item)
        return kind, item, str(item["metadata"]["resourceVersion"])
    except (ValueError, KeyError, TypeError) as error:
        raise ApiAway(
            f"the API server sent an invalid event: {error!r} in {line[:200]!r}"
        ) from error


def _uid(item: Mapping[str, Any]) -> str:
    return str(item["metadata"]["uid"])


def _error(item: Mapping[str, Any]) -> Exception:
    """Map the second form of an error: a Status within a stream that had begun well."""
    status = Status(
        int(item.get("code") or 0),
        str(item.get("reason") or ""),
        str(item.get("message") or "no reason given"),
    )
    if status.code == _GONE or status.reason == "Expired":
        return _StartOver(status.message)
    return ApiAway(f"the watch broke: {status.message}", status=status)
