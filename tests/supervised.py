"""A real supervisor whose master is the test itself."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from elasticdl.cluster.local.parent_death import PARENT_PID_VARIABLE
from elasticdl.cluster.local.supervisor.link import SupervisorLink
from elasticdl.cluster.local.supervisor.messages import Message, Welcome
from elasticdl.jobdir.layout import JobDirectory
from tests.waiting import gone

LIMIT_S = 30.0
# A master that hands its socket to the test, and ends with the test's connection or by a signal.
RELAY = """
import os, socket, sys
from elasticdl.cluster.local.parent_death import die_with_parent
die_with_parent()
with socket.socket(socket.AF_UNIX) as test:
    test.connect(sys.argv[1])
    numbers = f"{os.getpid()} {os.environ['ELASTICDL_RESTART']}"
    socket.send_fds(test, [numbers.encode()], [0])
    os.close(0)
    code = test.recv(16)
sys.exit(int(code or 0))
"""


def job_processes(directory: Path) -> dict[int, str]:
    """Supervisor, master, template, workers and servers of a job, with their commands."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = f"ELASTICDL_JOB_DIR={directory}".encode()
            if ours in (entry / "environ").read_bytes().split(b"\0") and not gone(int(entry.name)):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode()
    return found


class RelayedMaster:
    """One master of the supervisor, played by the test."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(LIMIT_S)
        text, descriptors, _, _ = socket.recv_fds(connection, 32, 1, socket.MSG_CMSG_CLOEXEC)
        self._connection = connection
        self.pid, self.restart = map(int, text.split())
        sock = socket.socket(fileno=descriptors[0])
        sock.settimeout(LIMIT_S)
        self._socket = sock
        self.link = SupervisorLink(sock)
        self.welcome: Welcome = self.link.welcome()

    def next_message(self) -> Message:
        """The next message, before an event loop takes the socket over."""
        return self.link.receive()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.close()

    def exit(self, code: int) -> None:
        self._connection.sendall(str(code).encode())
        self.close()

    def close(self) -> None:
        self._socket.close()
        self._connection.close()


class Supervised:
    """A supervisor process. The test plays its masters, one after the other."""

    def __init__(self, directory: Path, imports: str = "", path: Path | None = None) -> None:
        """`path` is a folder of modules for `imports`."""
        directory.mkdir(exist_ok=True)
        self.directory = JobDirectory(directory)
        address = directory / "test.sock"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.settimeout(LIMIT_S)
        # The path of a temporary directory may be too long for a socket's address.
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._listening.bind(f"/proc/self/fd/{folder}/{address.name}")
        os.close(folder)
        self._listening.listen()
        command = [sys.executable, "-c", RELAY, str(address)]
        self.directory.logs.mkdir()
        with self.directory.master_log.open("ab") as log:
            self.process = self._start([imports, *command], path, log)
        self._masters: list[RelayedMaster] = []

    def _start(
        self, arguments: list[str], path: Path | None, log: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "elasticdl.cluster.local.supervisor", *arguments],
            env={
                **os.environ,
                **({"PYTHONPATH": str(path)} if path else {}),
                "ELASTICDL_JOB_DIR": str(self.directory.path),
                PARENT_PID_VARIABLE: str(os.getpid()),
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def master(self) -> RelayedMaster:
        """The next master, when the supervisor has started it."""
        connection, _ = self._listening.accept()
        self._masters.append(RelayedMaster(connection))
        return self._masters[-1]

    def has_next(self) -> bool:
        """Whether another master than those so far has connected."""
        return bool(select.select([self._listening], [], [], 0)[0])

    def close(self) -> None:
        for master in self._masters:
            master.close()
        self._listening.close()
        self.process.kill()
        self.process.wait(LIMIT_S)
