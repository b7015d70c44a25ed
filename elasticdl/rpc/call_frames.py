"""The frames that calls to a master travel in, over TCP or TLS; docs/adr/0038 says why.

Both ends send GREETING first. Then the master says its term, and a client who it is, in a frame
with the method HELLO. The client makes calls: a call has a number, and so has each answer. A call
is answered with one message, or with many (`MORE`) and an end, or with a status and why. All
numbers are little endian.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import grpc
from google.protobuf.message_factory import GetMessageClass

from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.channel import MAX_MESSAGE_BYTES

GREETING: Final = b"elasticdl master calls 2\n"
REQUEST: Final = struct.Struct("<IIBq")
"""Bytes of the message that follows, number of the call, method, the master's term."""
REPLY: Final = struct.Struct("<IIB")
"""Bytes of the message that follows, number of the call, outcome: a gRPC status, or MORE."""
HELLO: Final = 255
CANCEL: Final = 0
"""As a method: nobody waits for the answer any more."""
OK: Final = 0
MORE: Final = 255
"""As an outcome: a message of a stream, and others may follow."""
TERM: Final = 254
"""As an outcome, of no call: the master's term, as TERM_NUMBER."""
TERM_NUMBER: Final = struct.Struct("<q")
ATTACHED: Final = frozenset({"RequestLease", "TakeTurn", "EndTurn", "Report", "Orders"})
"""Methods for processes that have attached to this master, and not only to an earlier one."""

_SILENCE_S: Final = 10
_PROBES, _PROBE_S = 5, 1


Answer: TypeAlias = Any
"""A message of the class that a method answers with."""


@final
@dataclass(frozen=True, slots=True)
class Method:
    """A method of the service, with the classes of its messages."""

    number: int
    name: str
    request: Any
    reply: Any
    streams: bool
    """Whether the answer is a stream."""


METHODS: Final = {
    method.name: Method(
        number,
        method.name,
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        method.server_streaming,
    )
    for number, method in enumerate(pb.DESCRIPTOR.services_by_name["Master"].methods, 1)
}
"""By name; the number is the place in the .proto file."""


@final
class CallFailed(grpc.RpcError):
    """A call that has no answer, as of gRPC: its code says why."""

    def __init__(self, code: grpc.StatusCode, details: str = "") -> None:
        super().__init__(details)
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        """Return the reason in words."""
        return self._details


class NotOurProtocol(ValueError):
    """The peer does not begin with GREETING."""


@final
class Frames:
    """Cuts what arrives at one end of a connection into frames."""

    def __init__(self, header: struct.Struct, most_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._header = header
        self.most_bytes = most_bytes
        """The largest message that may come next."""
        self._rest = bytearray(0)
        self._greeted = False

    def feed(self, data: bytes | bytearray) -> Generator[tuple[tuple[int, ...], bytes]]:
        """Yield the frames that are complete now: the header's fields after its size, and the
        message. Exhaust or close the generator before the next data: closed, it keeps the rest.

        Raises ValueError for a frame that is too large, and NotOurProtocol.
        """
        if self._rest:
            self._rest += data
            data = self._rest
        position = 0
        if not self._greeted:
            if bytes(data[: len(GREETING)]) != GREETING[: len(data)]:
                raise NotOurProtocol("the peer uses another protocol")
            if len(data) < len(GREETING):
                self._keep(data, 0)
                return
            self._greeted, position = True, len(GREETING)
        header = self._header
        try:
            while len(data) - position >= header.size:
                size, *fields = header.unpack_from(data, position)
                if size > self.most_bytes:
                    raise ValueError(f"a message of {size} bytes; the limit is {self.most_bytes}")
                begin = position + header.size
                if len(data) - begin < size:
                    break
                position = begin + size
                yield tuple(fields), bytes(data[begin:position])
        finally:
            self._keep(data, position)

    def _keep(self, data: bytes | bytearray, position: int) -> None:
        if data is self._rest:
            del self._rest[:position]
        elif position < len(data):
            self._rest = bytearray(data[position:])


def notice_vanished_peers(connection: socket.socket) -> None:
    """Have the system break a connection whose peer vanished without a word, within 15 s.

    A network may lose a single probe, so there are five. The peer's kernel answers these probes, so
    they say nothing of the process itself.
    """
    for option, value in (
        (socket.TCP_KEEPIDLE, _SILENCE_S),
        (socket.TCP_KEEPINTVL, _PROBE_S),
        (socket.TCP_KEEPCNT, _PROBES),
        (socket.TCP_USER_TIMEOUT, 1000 * (_SILENCE_S + _PROBES * _PROBE_S)),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
