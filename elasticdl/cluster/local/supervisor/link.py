"""The master's end of the socket to its supervisor."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self, final

from elasticdl.cluster.local.supervisor.channel import Channel, FrameParser, frame, read
from elasticdl.cluster.local.supervisor.messages import Message, Welcome, error_of
from elasticdl.errors import PermanentError

_ANSWER_S: Final = 30.0
_HINT: Final = "`elasticdl train` starts the supervisor, and the supervisor the master"


@final
@dataclass(slots=True)
class SupervisorLink:
    """Asks the supervisor; methods block.

    Use it before there is an event loop, and after `channel` only to `tell`.
    """

    _socket: socket.socket
    _parser: FrameParser = field(default_factory=FrameParser)
    _early: list[Message] = field(default_factory=list)
    """Messages that came while an answer was waited for."""
    _asked: int = 0

    @classmethod
    def on_stdin(cls) -> Self:
        """Take over the socket that the supervisor made this process's stdin.

        Raises PermanentError if it is something else.
        """
        try:
            sock = socket.socket(fileno=os.dup(0))
        except OSError as error:
            raise PermanentError("this master has no supervisor", hint=_HINT) from error
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        sock.settimeout(_ANSWER_S)
        return cls(sock)

    def welcome(self) -> Welcome:
        """Return the first message. Raises PermanentError."""
        try:
            return Welcome.of(self.receive())
        except (KeyError, TypeError, ValueError) as error:
            raise PermanentError("this master has no supervisor", hint=_HINT) from error

    def keep(self, key: str, value: str) -> None:
        """Have the next master get this value. It stays in the supervisor's memory."""
        self.tell({"keep": {key: value}})

    def reserve(self, key: str, host: str, port: int) -> int:
        """Return the job's port of this key; 0 selects any free port.

        Raises OSError if the port is taken.
        """
        self._asked -= 1  # Requests on the channel count upwards.
        request = {"id": self._asked, "do": "reserve", "key": key, "host": host, "port": port}
        self.tell(request)
        while (answer := self.receive()).get("id") != self._asked:
            self._early.append(answer)
        if (error := error_of(answer)) is not None:
            raise error
        return int(answer["port"])

    def tell(self, message: Message) -> None:
        """Send a message, if the supervisor still runs."""
        self._socket.settimeout(_ANSWER_S)
        with suppress(OSError):  # Its end is ours, too.
            self._socket.sendall(frame(message))

    def channel(self) -> tuple[Channel, list[Message]]:
        """Return the socket on the running loop, and the messages that came before."""
        # The loop's end must not close the socket.
        return Channel(self._socket.dup(), self._parser), self._early

    def receive(self) -> Message:
        """Return the next message. Raises PermanentError."""
        while (received := self._parser.next()) is None:
            try:
                going = read(self._socket, self._parser)
            except TimeoutError as error:
                raise PermanentError(
                    f"the supervisor of this master has not answered for {_ANSWER_S:g} s",
                    hint="the machine may be overloaded",
                ) from error
            if not going:
                raise PermanentError("the supervisor of this master has ended", hint=_HINT)
        return received.message
