"""Actions of the page: each becomes an event, and the status shows its effect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, final

from aiohttp import web

from elasticdl.cluster.base import ProcessName
from elasticdl.flag_values import MAX_SERVERS, MAX_WORKERS
from elasticdl.formatting import amount
from elasticdl.master.core.events import (
    CheckpointRequested,
    ReplaceRequested,
    ScaleRequested,
    ScaleServersRequested,
    StopRequested,
)
from elasticdl.master.status.access import body_of
from elasticdl.master.status.job_view import JobView
from elasticdl.master.status.responses import API, Refusal, answer

_LONGEST_REASON = 200


@final
class Actions:
    """Stop, scale, replace, checkpoint."""

    def __init__(self, view: JobView) -> None:
        self._view = view

    def routes(self) -> list[web.RouteDef]:
        """POST only."""
        return [
            web.post(f"{API}/stop", self.stop),
            web.post(f"{API}/scale", self.scale),
            web.post(f"{API}/replace", self.replace),
            web.post(f"{API}/checkpoint", self.checkpoint),
        ]

    async def stop(self, request: web.Request) -> web.Response:
        """Handle {"reason"}: stop the job gracefully."""
        reason = _text(await _object(request, {"reason"}), "reason", "")
        shortened = " ".join(reason.split())[:_LONGEST_REASON] or "requested on the status page"
        await self._view.post(StopRequested(self._view.at_s(), shortened))
        return answer(
            {"said": ("stopping: workers return their shards, then the last checkpoint is taken")},
            202,
        )

    async def scale(self, request: web.Request) -> web.Response:
        """Handle {"min", "max"} or {"servers"}: change the number of workers, or of servers."""
        asked = await _object(request, {"min", "max", "servers"})
        if "servers" in asked:
            return await self._scale_servers(asked)
        low, high = _whole(asked, "min"), _whole(asked, "max")
        if not 1 <= low <= high <= MAX_WORKERS:
            raise Refusal(400, f"workers {low}:{high}: expected 1 <= min <= max <= {MAX_WORKERS}")
        if why_not := self._view.core.why_not_scale(low, high):
            text = f"cannot change the number of workers to {low}:{high}: {why_not}"
            raise Refusal(409, text)
        await self._view.post(ScaleRequested(self._view.at_s(), low, high))
        message = f"scaling to {amount(low, 'worker') if low == high else f'{low}–{high} workers'}"
        if stays := self._view.core.what_steps_stay(high):
            message += f"; {stays}"
        return answer({"said": message}, 202)

    async def _scale_servers(self, asked: Mapping[str, Any]) -> web.Response:
        if len(asked) > 1:
            raise Refusal(400, "expected either min and max, or servers")
        number = _whole(asked, "servers")
        if not 1 <= number <= MAX_SERVERS:
            raise Refusal(400, f"{number} parameter servers: expected 1 to {MAX_SERVERS}")
        if why_not := self._view.core.why_not_scale_servers():
            text = f"cannot change the number of parameter servers to {number}: {why_not}"
            raise Refusal(409, text)
        await self._view.post(ScaleServersRequested(self._view.at_s(), number))
        return answer({"said": f"changing to {amount(number, 'parameter server')}"}, 202)

    async def replace(self, request: web.Request) -> web.Response:
        """Handle {"process"}: drain a worker and start another at once."""
        text = _text(await _object(request, {"process"}), "process")
        try:
            name = ProcessName.parse(text)
        except ValueError:
            raise Refusal(
                404,
                f"{text[:60]!r} is not a process of this job",
                "name a worker, such as worker-0",
            ) from None
        if why_not := self._view.core.why_not_replace(name):
            hint = (
                "take a checkpoint, then end its process: the server restores from there"
                if name.role == "ps"
                else ""
            )
            raise Refusal(
                409 if self._view.core.knows(name) else 404,
                f"cannot replace {name}: {why_not}",
                hint,
            )
        await self._view.post(ReplaceRequested(self._view.at_s(), name))
        return answer(
            {"said": f"replacing {name}: it returns its shards, and another worker starts"}, 202
        )

    async def checkpoint(self, request: web.Request) -> web.Response:
        """Handle {}: take a checkpoint now."""
        await _object(request, set())
        if why_not := self._view.core.why_not_checkpoint():
            raise Refusal(409, f"cannot take a checkpoint: {why_not}")
        await self._view.post(CheckpointRequested(self._view.at_s()))
        return answer({"said": "checkpoint requested"}, 202)


async def _object(request: web.Request, keys: set[str]) -> Mapping[str, Any]:
    """Return the body, a JSON object with only these keys. Raises Refusal (400, 415)."""
    if request.content_type != "application/json":
        raise Refusal(415, f"expected application/json, got {request.content_type[:60]}")
    try:
        body = json.loads(await body_of(request) or b"{}")
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "the body is not JSON") from error
    if not isinstance(body, dict) or not set(body) <= keys:
        raise Refusal(400, f"expected a JSON object with {', '.join(sorted(keys)) or 'no keys'}")
    return body


def _text(asked: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = asked.get(key, default)
    if not isinstance(value, str):
        raise Refusal(400, f"{key}: expected text")
    return value


def _whole(asked: Mapping[str, Any], key: str) -> int:
    value = asked.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refusal(400, f"{key}: expected a whole number")
    return value
