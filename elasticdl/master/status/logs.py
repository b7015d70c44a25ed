"""Serve logs of processes: a list, parts by offset, and a search.

One request reads and holds a bounded amount, however long a log is.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from aiohttp import web

from elasticdl.cluster.base import Role
from elasticdl.cluster.logs.log_files import LogPart, NoSuchLog, log_sizes, read_log
from elasticdl.master.status.job_view import JobView
from elasticdl.master.status.responses import API, Refusal, answer, number

MOST_BYTES = 1 << 20
_USUAL_BYTES = 128 << 10
_LARGEST = 1 << 60
_STEP_BYTES = 2 << 20
SEARCH_BYTES, SEARCH_S = 64 << 20, 1.0
"""Limits of one search request in bytes and time; the next request continues."""
MOST_MATCHES = 200
_LONGEST_QUERY = 200
_SHOWN_AROUND = 400
"""Bytes of a line to show on either side of a match."""
_AT_ONCE = 2
"""Maximum number of threads that may wait for an unreachable volume.

The master has few threads and needs some for its checkpoints.
"""


@final
class Logs:
    """Reads the log files of a job directory."""

    def __init__(self, view: JobView, directory: Path) -> None:
        self._view, self._directory = view, directory
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def routes(self) -> list[web.RouteDef]:
        """GET only."""
        return [
            web.get(f"{API}/logs", self.list),
            web.get(f"{API}/logs/{{process}}", self.read),
            web.get(f"{API}/logs/{{process}}/search", self.search),
        ]

    async def list(self, _request: web.Request) -> web.Response:
        """Return {"logs": [{"process", "bytes", "live"}]}."""
        async with self._turns:
            sizes = await asyncio.to_thread(log_sizes, self._directory)
        live = {f"{Role.MASTER}-0"} | {
            process.name.partition(".")[0]
            for process in self._view.reading().status.processes
            if process.state != "ended"
        }
        return answer(
            {
                "logs": [
                    {"process": name, "bytes": size_bytes, "live": name in live}
                    for name, size_bytes in sizes.items()
                ]
            }
        )

    async def read(self, request: web.Request) -> web.Response:
        """Return {"process", "start", "end", "size", "text"}: whole characters from `start`.

        A negative `start` counts from the end.
        """
        start = number(request, "start", -_USUAL_BYTES, -_LARGEST, _LARGEST)
        limit = number(request, "limit", _USUAL_BYTES, 1, MOST_BYTES)
        process = request.match_info["process"]
        # A UTF-8 character has up to four bytes, so fewer bytes might contain no whole character.
        part = await self._part(process, start, max(limit, 4))
        begin, end = _whole_characters(part)
        text = part.data[begin:end].decode("utf-8", errors="replace")
        body = {
            "process": process,
            "start": part.start + begin,
            "end": part.start + end,
            "size": part.size_bytes,
            "text": text,
        }
        return answer(body)

    async def search(self, request: web.Request) -> web.Response:
        """Return {"matches": [{"offset", "line"}], "searched_to", "more"}; ignores ASCII case."""
        wanted = request.query.get("q", "")
        start = number(request, "start", 0, 0, _LARGEST)
        needle = wanted.encode("utf-8", errors="replace").lower()
        if not needle or len(needle) > _LONGEST_QUERY:
            raise Refusal(400, f"q: expected 1 to {_LONGEST_QUERY} bytes to search for")
        matching = await self._search(request.match_info["process"], needle, start)
        matches = [{"offset": offset, "line": line} for offset, line in matching.matches]
        return answer({"matches": matches, "searched_to": matching.to, "more": matching.more})

    async def _search(self, process: str, needle: bytes, start: int) -> _LogSearch:
        search, until_s = _LogSearch(to=start), time.monotonic() + SEARCH_S
        while search.to - start < SEARCH_BYTES and len(search.matches) < MOST_MATCHES:
            part = await self._part(process, search.to, _STEP_BYTES)
            async with self._turns:
                await asyncio.to_thread(search.look, part, needle)
            if not search.more or time.monotonic() > until_s:
                break
        return search

    async def _part(self, process: str, start: int, limit_bytes: int) -> LogPart:
        try:
            async with self._turns:
                return await asyncio.to_thread(
                    read_log, self._directory, process, start, limit_bytes
                )
        except NoSuchLog as error:
            raise Refusal(404, str(error)[:500]) from error


@dataclass(slots=True)
class _LogSearch:
    """Matches so far: offset of the line (or of its excerpt) and its text.

    The search has covered everything before `to`.
    """

    to: int
    more: bool = True
    matches: list[tuple[int, str]] = field(default_factory=list)

    def look(self, part: LogPart, needle: bytes) -> None:
        """Search one part of a log, up to its last complete line unless it is the last part."""
        if not part.data:
            self.to, self.more = part.start, False
            return
        end_of_log = part.start + len(part.data) >= part.size_bytes
        cut = len(part.data) if end_of_log else part.data.rfind(b"\n") + 1
        # A line longer than a part is searched in overlapping pieces.
        cut = cut or max(1, len(part.data) - len(needle) + 1)
        self._collect(part, needle, cut)
        self.more = not end_of_log or len(self.matches) >= MOST_MATCHES

    def _collect(self, part: LogPart, needle: bytes, cut: int) -> None:
        data, lowered, at = part.data, part.data.lower(), 0
        while (at := lowered.find(needle, at, cut + len(needle) - 1)) >= 0:
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            begin = max(data.rfind(b"\n", 0, at) + 1, at - _SHOWN_AROUND)
            shown = data[begin : min(end, at + _SHOWN_AROUND)].decode("utf-8", errors="replace")
            self.matches.append((part.start + begin, shown))
            # One match per line: continue at its end.
            at = end if end < cut else cut
            if len(self.matches) >= MOST_MATCHES or at >= cut:
                self.to = part.start + min(cut, at + 1)
                return
        self.to = part.start + cut


def _whole_characters(part: LogPart) -> tuple[int, int]:
    """Return the range of whole UTF-8 characters in a part."""
    data, begin, end = part.data, 0, len(part.data)
    # 0b10xxxxxx: a continuation byte. A character has at most three of them.
    while part.start > 0 and begin < min(3, end) and data[begin] & 0xC0 == 0x80:
        begin += 1
    if part.start + end < part.size_bytes:
        for back in range(1, min(4, end - begin) + 1):
            byte = data[end - back]
            if byte & 0xC0 == 0x80:
                continue
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return begin, end - back if length > back else end
    return begin, end
