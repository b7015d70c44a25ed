"""List the shards of a job, a page at a time."""

from __future__ import annotations

from dataclasses import asdict
from typing import final

from aiohttp import web

from elasticdl.master.core.data.shard_list import MOST_ROWS, ShardQuery, ShardState
from elasticdl.master.status.job_view import JobView
from elasticdl.master.status.responses import API, Refusal, answer, number

_USUAL_ROWS = 100
_FAR = 1 << 40


@final
class Shards:
    """Serves the shards and their workers."""

    def __init__(self, view: JobView) -> None:
        self._view = view

    def routes(self) -> list[web.RouteDef]:
        """GET only."""
        return [web.get(f"{API}/shards", self.list)]

    async def list(self, request: web.Request) -> web.Response:
        """Return {"total", "shards": […]} of ?state=&offset=&limit=."""
        state = request.query.get("state", "")
        if state and state not in list(ShardState):
            raise Refusal(
                400, f"state={state[:40]!r}: expected {', '.join(ShardState)}, or none of them"
            )
        offset = number(request, "offset", 0, 0, _FAR)
        limit = number(request, "limit", _USUAL_ROWS, 1, MOST_ROWS)
        query = ShardQuery(ShardState(state) if state else None, offset, limit)
        page = self._view.core.shards(query)
        return answer({"total": page.total, "shards": [asdict(row) for row in page.rows]})
