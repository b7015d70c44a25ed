"""A process with thousands of the clients of `bench.load_client`.

They share one epoll loop without tasks, so that on the cores that they share with the master they
take as little as possible of them.

The process reads JSON lines: the master's address and the job's token first, then which clients to
start and what to tell. It ends with its input.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from bench.load_client import RETRY_S, Client, Measured
from bench.load_connections import READ_BYTES, Loop
from elasticdl.cluster.base import Role
from elasticdl.own_process import raise_file_limit
from elasticdl.paused_collection import collect_rarely
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.elasticdl_pb2_grpc import (
    ParameterServerServicer,
    add_ParameterServerServicer_to_server,
)
from elasticdl.tls.contexts import client_context

LOOK_S = 0.05
"""How often a process looks whether a master that is away listens again."""
PROBE_S = 1.0
"""Deadline of a look: all clients of the process stand still meanwhile."""
_NICE = 5
"""On machines of their own, clients take nothing from the master."""


class Control(ParameterServerServicer):
    """A server that has no pushes of any worker."""

    def Fence(self, request: Any, context: Any) -> Any:
        return pb.FenceReply(seen=False)

    def Keep(self, request: Any, context: Any) -> Any:
        return pb.Done()

    def Drop(self, request: Any, context: Any) -> Any:
        return pb.Done()


class Clients:
    """All clients of this process."""

    def __init__(self, first: dict[str, Any]) -> None:
        host, _, port = first["address"].rpartition(":")
        self.loop, self.measured = Loop(), Measured()
        self.address, self.token, self.lease_s = (host, int(port)), first["token"], first["lease_s"]
        self.context = client_context(first["authority"]) if first["authority"] else None
        self._clients: list[Client] = []
        self._waiting: list[Client] = []
        self._control: grpc.Server | None = None

    def run(self, rest: bytes) -> None:
        """Take lines of the input until it ends."""
        self._lines = bytearray(rest)
        self._take_lines()
        os.set_blocking(sys.stdin.fileno(), False)
        self.loop.watch(sys.stdin.fileno(), self._read, select.EPOLLIN)
        self.loop.run()

    def _read(self, events: int) -> None:
        data = os.read(sys.stdin.fileno(), READ_BYTES)
        if not data:
            sys.exit()
        self._lines += data
        self._take_lines()

    def _take_lines(self) -> None:
        *lines, rest = bytes(self._lines).split(b"\n")
        self._lines[:] = rest
        for line in lines:
            match json.loads(line):
                case {"start": str(name)}:
                    self._start(name)
                case {"window": True}:
                    self.measured.leases_ms.clear()
                    self.measured.reports = 0
                case {"tell": True}:
                    print(json.dumps(self._told()), flush=True)

    def _start(self, name: str) -> None:
        client = Client(name, self)
        self._clients.append(client)
        client.start(self._control_address() if client.name.role is Role.PS else "")

    def _control_address(self) -> str:
        """Where other processes reach a server on this machine."""
        self._control = grpc.server(ThreadPoolExecutor(1))
        add_ParameterServerServicer_to_server(Control(), self._control)
        port = self._control.add_insecure_port("127.0.0.1:0")
        self._control.start()
        return f"127.0.0.1:{port}"

    def wait(self, client: Client) -> None:
        """Have a client connect again once the master listens.

        Clients of a job look by themselves, each on its own machine. Thousands that look from one
        process would take the cores that the next master needs to start.
        """
        if not self._waiting:
            self.loop.later(LOOK_S, self._look)
        self._waiting.append(client)

    def _look(self) -> None:
        with socket.socket() as probe:
            probe.settimeout(PROBE_S)
            if probe.connect_ex(self.address) != 0:
                self.loop.later(LOOK_S, self._look)
                return
        waiting, self._waiting = self._waiting, []
        for client in waiting:
            self.loop.later(random.uniform(0.0, RETRY_S), client.connect)

    def _told(self) -> dict[str, Any]:
        workers = [one for one in self._clients if one.name.role is Role.WORKER]
        now_s = time.monotonic()
        return {
            "terms": [one.term for one in workers if not one.failure],
            "answered_s": [round(now_s - one.answered_s, 1) for one in workers],
            "failures": {str(one.name): one.failure for one in self._clients if one.failure},
            "leases_ms": self.measured.leases_ms,
            "reports": self.measured.reports,
        }


def main() -> None:
    data = b""
    while b"\n" not in data:
        data += os.read(sys.stdin.fileno(), READ_BYTES)
    first, _, rest = data.partition(b"\n")
    Clients(json.loads(first)).run(rest)


if __name__ == "__main__":
    os.nice(_NICE)
    raise_file_limit()
    collect_rarely()
    main()
