"""Connections and who may use them: options, credentials, and the server's check of every call."""

from __future__ import annotations

import logging
import resource
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias, final

import grpc
from google.protobuf.message import DecodeError

from elasticdl.tokens import MOST_TERM, same

MAX_MESSAGE_BYTES = 16 << 20
"""Larger messages fail with RESOURCE_EXHAUSTED; only metric states come near, never tensors."""

_AUTHORIZATION = "authorization"
_NAME = "x-elasticdl-name"
_TERM = "x-elasticdl-term"
_INSTANCE = "x-elasticdl-instance"
_MOST_DETAILS_BYTES = 2000

Options: TypeAlias = list[tuple[str, int | str]]

_SHARED: Options = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A ping with every message would measure the bandwidth, which these small ones do not need.
    ("grpc.http2.bdp_probe", 0),
]


def channel_options() -> Options:
    """Options of clients: notice a silent peer within 15 s, reconnect within 1 s, use no proxy.

    A peer has 5 s to accept a connection.
    """
    return [
        *_SHARED,
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # This is the limit of an attempt to connect, not a pause. With a short one, thousands of
        # clients hang up on a busy server and come again, and it accepts none of them.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.enable_http_proxy", 0),
        # Channels to a server that came back at the same address must not share the broken
        # connection.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options() -> Options:
    """Options of servers: allow the clients' pings.

    A port belongs to one process only. Strangers lose connections on which they say nothing, and
    take half of the open files at most: the bulk plane has the other half. A peer that vanished
    without a word is noticed within 15 s, as by clients.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(files // 2, 64)
    return [
        *_SHARED,
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 1_000),
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 120_000),
        ("grpc.max_allowed_incoming_connections", most),
    ]


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who calls, and the proof of that for one kind of server; see `tokens`.

    `instance` distinguishes two processes with one name.
    """

    proof: str = field(repr=False)
    name: str
    instance: str = field(default_factory=lambda: secrets.token_hex(8))

    def metadata(self, term: int) -> tuple[tuple[str, str], ...]:
        """Metadata of every call to a master, or from the master of `term`."""
        return (
            (_AUTHORIZATION, f"Bearer {self.proof}"),
            (_NAME, self.name),
            (_TERM, str(term)),
            (_INSTANCE, self.instance),
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a method. Servers check first that it is who it says."""

    name: str
    term: int
    instance: str


def caller_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller:
    """The caller in invocation metadata.

    Raises ValueError if the term is not a number from 0 to MOST_TERM.
    """
    values = {
        key: value if isinstance(value, str) else value.decode("utf-8", "replace")
        for key, value in metadata or ()
    }
    term = int(values.get(_TERM, "") or 0)
    if not 0 <= term <= MOST_TERM:
        raise ValueError(f"term {term}")
    return Caller(values.get(_NAME, ""), term, values.get(_INSTANCE, ""))


Proof = Callable[[Caller], str]
"""The proof that a caller has to show, if it is who it says."""


def status_details(message: str) -> str:
    """Cut a message to what fits into the status of a call.

    gRPC may break a call whose metadata exceed 8 KiB; a byte outside ASCII takes three of them.
    """
    data = message.encode()
    if len(data) <= _MOST_DETAILS_BYTES:
        return message
    return data[:_MOST_DETAILS_BYTES].decode(errors="ignore") + " …"


class CallDenied(str):
    """Why a call is refused, in words."""

    code = grpc.StatusCode.FAILED_PRECONDITION


@final
class AttachAgain(CallDenied):
    """The caller knows an earlier master only: the call works after it has attached again."""

    code = grpc.StatusCode.ABORTED


@final
class Superseded(CallDenied):
    """This master was replaced: the caller reaches the next one if it tries again."""

    code = grpc.StatusCode.UNAVAILABLE


Check = Callable[[Caller, str], str | None]
"""(caller, method such as "Report") -> why it is refused, None if it is not; see `CallDenied`."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The status of a call that is refused, and why."""

    code: grpc.StatusCode
    details: str


@final
class _Undecodable(logging.Filter):
    """Lets gRPC log one line every 10 s about undecodable messages, not a traceback for each."""

    _EVERY_S = 10.0

    def __init__(self) -> None:
        super().__init__()
        self._logged_s = -self._EVERY_S
        self._unlogged = 0

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, DecodeError):
            return True
        now_s = time.monotonic()
        if now_s - self._logged_s < self._EVERY_S:
            self._unlogged += 1
            return False
        record.msg, record.args = (
            "refused an undecodable message: %s (and %d before)",
            (
                error,
                self._unlogged,
            ),
        )
        record.exc_info, record.exc_text = None, None
        self._logged_s, self._unlogged = now_s, 0
        return True


_UNDECODABLE = _Undecodable()


def _log_undecodable_messages_once() -> None:
    for name in ("grpc._cython.cygrpc", "grpc._server", "grpc._common"):
        logging.getLogger(name).addFilter(_UNDECODABLE)


Handler: TypeAlias = "grpc.RpcMethodHandler[object, object]"


def refusal_of(proof: Proof, check: Check, call: grpc.HandlerCallDetails) -> Refusal | None:
    """Return why a call is refused; None if it is not."""
    metadata = tuple(call.invocation_metadata or ())
    try:
        caller = caller_of(metadata)
    except ValueError:
        message = f"{_TERM} is not a number from 0 to {MOST_TERM}"
        return Refusal(grpc.StatusCode.INVALID_ARGUMENT, message)
    tokens = [str(value) for key, value in metadata if key == _AUTHORIZATION]
    if len(tokens) != 1 or not same(tokens[0], f"Bearer {proof(caller)}"):
        message = "the token is missing or wrong, or another process's"
        return Refusal(grpc.StatusCode.UNAUTHENTICATED, message)
    reason = check(caller, call.method.rpartition("/")[2])
    if not reason:
        return None
    code = reason.code if isinstance(reason, CallDenied) else CallDenied.code
    return Refusal(code, str(reason))


@final
class SyncChecks(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """For `grpc.server`: refuse calls without the right `proof`, or that `check` refuses.

    The status is UNAUTHENTICATED or FAILED_PRECONDITION.
    """

    def __init__(self, proof: Proof, check: Check) -> None:
        self._proof = proof
        self._check = check
        _log_undecodable_messages_once()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        refusal = refusal_of(self._proof, self._check, handler_call_details)
        if refusal is None:
            return continuation(handler_call_details)

        # As a stream, whatever the method is: the server of a unary call reads the message first.
        def refuse(requests: Iterator[object], context: grpc.ServicerContext) -> NoReturn:
            context.abort(refusal.code, refusal.details)

        return grpc.stream_stream_rpc_method_handler(refuse)
