"""The ring on Horovod; only this module uses Horovod.

Horovod's background thread notices a closed connection at once, and silence after `SILENCE_S`. It
then fails every operation in progress on every remaining member. A member with a long step is not
silent: that thread keeps communicating.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, final

import tensorflow as tf

from elasticdl.model.horovod import horovod
from elasticdl.tls.relay import RelayThread
from elasticdl.worker.ring.base import RingBroken, RingMembership, Tensor

_log = logging.getLogger(__name__)

SILENCE_S: Final = 4
"""A member that is silent for this long is lost.

Waiting members hear from each other continuously, however long a step takes.
"""

_OURS: Final = "elasticdl_ring_"


@final
class HorovodRing:
    """The `Ring` on Horovod with Gloo; one per process, since Horovod's state is global."""

    def __init__(
        self,
        *,
        master_host: str = "127.0.0.1",
        silence_s: int = SILENCE_S,
        relay: RelayThread | None = None,
    ) -> None:
        """`master_host` selects the network by which members reach each other.

        `relay` leads to the rendezvous, since Horovod has no TLS; None: it is in clear text.

        Raises CannotRun without Horovod.
        """
        # Horovod reads these at each init, and they never change.
        os.environ.update(settings(os.environ, silence_s, interface_to(master_host)))
        self._horovod = horovod()
        self._relay = relay
        self._inside = False
        with tf.device("CPU:0"):
            self._beginning = tf.Variable([0], dtype=tf.int32, trainable=False)

    def enter(self, membership: RingMembership) -> None:
        # Horovod keeps its state per process: a second init without a shutdown would be ignored.
        self.leave()
        os.environ.update(_environment(self._relayed(membership)))
        try:
            self._horovod.init()
        except (ValueError, RuntimeError) as error:
            # A failed init leaves half-open connections behind.
            self._horovod.shutdown()
            problem = self._relay.problem if self._relay is not None else ""
            raise RingBroken(
                f"cannot join generation {membership.generation} of the ring: {problem or error}"
            ) from error
        self._inside = True

    def _relayed(self, membership: RingMembership) -> RingMembership:
        if self._relay is None or not membership.rendezvous:
            return membership
        address, _, scope = membership.rendezvous.partition("/")
        host, _, port = address.rpartition(":")
        return replace(membership, rendezvous=f"{self._relay.to(host, int(port))}/{scope}")

    def leave(self) -> None:
        if self._inside:
            self._inside = False
            self._horovod.shutdown()

    def reduced(self, name: str, tensor: Tensor) -> Tensor:
        tensor = self._not_constant(tensor)
        return self._horovod.allreduce(
            tensor, op=self._horovod.Sum, name=_OURS + name, ignore_name_scope=True
        )

    def gathered(self, name: str, tensor: Tensor) -> Tensor:
        result = self._horovod.allgather(
            self._not_constant(tensor), name=_OURS + name, ignore_name_scope=True
        )
        result.set_shape([None, *tensor.shape[1:]])
        return result

    def _not_constant(self, tensor: Tensor) -> Tensor:
        """The same values as a slice whose begin is known only at run time; nothing is copied.

        TensorFlow evaluates what depends only on constants once, when it optimizes a function. A
        member with nothing to contribute reduces zeros. It would not take part any more, and the
        others would wait for it.
        """
        begin = tf.concat([self._beginning, tf.zeros([tensor.shape.rank - 1], tf.int32)], 0)
        return tf.ensure_shape(tf.slice(tensor, begin, tf.shape(tensor)), tensor.shape)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            # An error of the model must not pass for a broken ring, which would be retried forever.
            if _OURS not in error.message and "orovod" not in error.message:
                raise
            raise RingBroken(_first_line(error.message)) from error


def interface_to(host: str) -> str:
    """The network interface by which this machine reaches `host`; '' if unknown."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing
            address = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                if _address_of(name, probe) == address:
                    return name
    except OSError:
        return ""
    return ""


def _address_of(interface: str, probe: socket.socket) -> str:
    get_address = 0x8915  # SIOCGIFADDR
    try:
        answer = fcntl.ioctl(
            probe.fileno(), get_address, struct.pack("256s", interface.encode()[:15])
        )
    except OSError:  # the interface has no address
        return ""
    return socket.inet_ntoa(answer[20:24])


def settings(environment: Mapping[str, str], silence_s: int, interface: str) -> dict[str, str]:
    """The variables by which Horovod and NCCL are set that are not set in `environment`.

    `interface` is the network of the members; '' if unknown.
    """
    defaults = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(silence_s),
        # Added by scripts/horovod.patch: an idle Horovod does not poll, and operations begin at
        # once.
        "HOROVOD_IDLE_CYCLE_TIME": "20",
        # The worker's hang watch reports long steps.
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_LOG_LEVEL": "fatal",
    }
    interface = environment.get("HOROVOD_GLOO_IFACE") or interface
    if interface:
        defaults["HOROVOD_GLOO_IFACE"] = interface
        # With `=` the name is not a prefix of names.
        defaults["NCCL_SOCKET_IFNAME"] = f"={interface}"
    # A user's own settings win.
    return {name: value for name, value in defaults.items() if name not in environment}


def _environment(membership: RingMembership) -> Mapping[str, str]:
    """Make Horovod see one rank per node, so that it makes no further connections between ranks."""
    address, _, rest = membership.rendezvous.partition(":")
    port, _, scope = rest.partition("/")
    return {
        "HOROVOD_RANK": str(membership.rank),
        "HOROVOD_SIZE": str(membership.size),
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        # Horovod builds http://ADDR:PORT/SECTION/KEY, so it connects to what precedes the first
        # slash.
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{address}:{port}/{scope}" if scope else address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port or "0",
    }


def _first_line(message: str) -> str:
    """Horovod's message, without TensorFlow's frame."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    relevant = (
        [line for line in lines if "orovod" in line or "gloo" in line]
        or lines
        or ["no reason was given"]
    )
    return relevant[-1][:300]
