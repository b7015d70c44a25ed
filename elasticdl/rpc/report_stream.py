"""Reports on an open stream of orders: each costs the master half of a call."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import final

from elasticdl.rpc import elasticdl_pb2 as pb

_MOST_BYTES = 1 << 20
"""A larger report is a call: a message beyond gRPC's limit would end the stream."""
_UNREAD_S = 0.5
"""How long an answer may wait for the thread that reads the stream and now handles an order."""


@final
class ReportStream:
    """One stream. Thread-safe; one report at a time."""

    def __init__(self, term: int) -> None:
        """`term` of the master that the stream is opened to."""
        self.term = term
        self._requests: SimpleQueue[pb.ReportRequest | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._reply: pb.ReportReply | None = None
        self._unread_s: float | None = -math.inf
        """Since when nobody reads what the master sends; None: somebody does."""

    def requests(self) -> Iterator[pb.ReportRequest]:
        """Reports for gRPC to send, until the stream is closed."""
        while (request := self._requests.get()) is not None:
            yield request

    def report(self, request: pb.ReportRequest, timeout_s: float) -> pb.ReportReply | None:
        """Return the answer; None if the report has to be repeated as a call."""
        end_s = time.monotonic() + timeout_s
        with self._changed:
            if self._unread_s is not None or request.ByteSize() > _MOST_BYTES:
                return None
            self._reply = None
            self._requests.put(request)
            while (left_s := self._end_s(end_s) - time.monotonic()) > 0:
                if self._reply is not None and self._reply.sequence == request.sequence:
                    return self._reply if self._reply.taken else None
                self._changed.wait(left_s)
            return None

    def _end_s(self, end_s: float) -> float:
        return end_s if self._unread_s is None else min(end_s, self._unread_s + _UNREAD_S)

    def came(self, message: pb.Order) -> bool:
        """Take a message from the master; return whether it is an order."""
        with self._changed:
            self._unread_s = None
            if message.WhichOneof("order") != "reported":
                return True
            self._reply = message.reported
            self._changed.notify_all()
            return False

    @contextmanager
    def unread(self) -> Iterator[None]:
        """Nobody reads the stream during the body, which may take long or never end."""
        with self._changed:
            self._unread_s = time.monotonic()
            self._changed.notify_all()
        yield
        with self._changed:
            self._unread_s = None

    def close(self) -> None:
        """The stream is over."""
        with self._changed:
            self._unread_s = -math.inf
            self._changed.notify_all()
        self._requests.put(None)
