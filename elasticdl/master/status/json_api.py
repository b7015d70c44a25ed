"""The job as JSON: status, snapshot, events, timeline, curves, shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import final

from aiohttp import web

from elasticdl.cluster.logs.log_tails import ends_in
from elasticdl.history.snapshot import StatusReading
from elasticdl.master.core.data.shard_list import MOST_ROWS, ShardQuery, ShardState
from elasticdl.master.status.change_feed import ChangeFeed
from elasticdl.master.status.job_view import JobView
from elasticdl.master.status.responses import API, NO_STORE, Refusal, answer, encoded, number, ready

_MOST_EVENTS = 1000
_FAR = 1 << 53
_USUAL_ROWS, _MOST_SHARDS = 100, 1 << 40


@final
class JsonApi:
    """Serves JSON; identical answers within half a second are encoded once."""

    def __init__(self, view: JobView, change_feed: ChangeFeed, log_directory: Path) -> None:
        self._view, self._change_feed = view, change_feed
        self._log_directory = log_directory
        self._made: dict[str, tuple[StatusReading, bytes]] = {}

    def routes(self) -> list[web.RouteDef]:
        """GET only."""
        return [
            web.get(f"{API}/status", self.status),
            web.get(f"{API}/snapshot", self.snapshot),
            web.get(f"{API}/events", self.events),
            web.get(f"{API}/timeline", self.timeline),
            web.get(f"{API}/series", self.series),
            web.get(f"{API}/shards", self.shards),
            web.get("/metrics", self.metrics),
        ]

    async def status(self, _request: web.Request) -> web.Response:
        return self._once("status", lambda: self._view.reading().to_json())

    async def snapshot(self, request: web.Request) -> web.Response:
        """Return `snapshot_of`; with `?logs=1` also the ends of the logs, for a report."""
        await self._view.all_events_read()
        if "logs" in request.query:
            status = self._view.reading().status
            logs = await asyncio.to_thread(ends_in, self._log_directory, status)
            return answer({**snapshot_of(self._view, self._change_feed), "logs": logs})
        return self._once("snapshot", lambda: snapshot_of(self._view, self._change_feed))

    async def events(self, request: web.Request) -> web.Response:
        """Return {"events", "dropped"} of ?after=&limit=: later events, oldest first."""
        after = number(request, "after", -1, -1, _FAR)
        limit = number(request, "limit", _MOST_EVENTS, 1, _MOST_EVENTS)
        event_log = self._view.event_log
        events = [event.as_dict() for event in event_log.after(after, limit)]
        return answer({"events": events, "dropped": event_log.dropped})

    async def timeline(self, _request: web.Request) -> web.Response:
        await self._view.all_events_read()
        return self._once("timeline", self._view.timeline)

    async def series(self, _request: web.Request) -> web.Response:
        """Return the current curves."""
        return self._once("series", self._view.collector.as_list)

    async def shards(self, request: web.Request) -> web.Response:
        """Return {"total", "shards": […]} of ?state=&offset=&limit=."""
        state = request.query.get("state", "")
        if state and state not in list(ShardState):
            raise Refusal(
                400, f"state={state[:40]!r}: expected {', '.join(ShardState)}, or none of them"
            )
        offset = number(request, "offset", 0, 0, _MOST_SHARDS)
        limit = number(request, "limit", _USUAL_ROWS, 1, MOST_ROWS)
        query = ShardQuery(ShardState(state) if state else None, offset, limit)
        page = self._view.core.shards(query)
        return answer({"total": page.total, "shards": [asdict(row) for row in page.rows]})

    async def metrics(self, _request: web.Request) -> web.Response:
        """Return the metrics for Prometheus."""
        # Its library is a twentieth of a master's start, and few jobs are scraped.
        from elasticdl.master.status.metrics import CONTENT_TYPE, render

        body = self._made_once(
            "metrics", lambda: render(self._view.reading().status, self._view.about)
        )
        return web.Response(body=body, headers={**NO_STORE, "Content-Type": CONTENT_TYPE})

    def _once(self, what: str, make: Callable[[], object]) -> web.Response:
        return ready(self._made_once(what, lambda: encoded(make())))

    def _made_once(self, what: str, make: Callable[[], bytes]) -> bytes:
        reading = self._view.reading()
        if what not in self._made or self._made[what][0] is not reading:
            self._made[what] = (reading, make())
        return self._made[what][1]


def snapshot_of(view: JobView, change_feed: ChangeFeed) -> dict[str, object]:
    """Return the snapshot and its position in the stream."""
    change_feed.heed()
    return {**view.snapshot(), "stream_id": change_feed.feed.id(change_feed.feed.newest)}
