"""What browsers may take of the page's server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from aiohttp import web


@final
@dataclass(frozen=True, slots=True)
class PageLimits:
    """Connections, streams and times in seconds."""

    most_connections: int = 256
    """Half of them for those who have shown the token."""
    speak_within_s: float = 15.0
    """A connection without a request is closed after this time, so that idle ones block no one."""
    body_s: float = 10.0
    """For the body of a request."""
    most_streams: int = 64
    keep_alive_s: float = 15.0
    stuck_s: float = 20.0
    """A browser that reads nothing for this long is disconnected; it may reconnect."""


LIMITS = web.AppKey("limits", PageLimits)
"""Where handlers find the limits of their application."""
