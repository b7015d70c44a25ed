"""`python -m elasticdl.cluster.local.template_process FD TARGET...`: import once, fork often.

Each target is MODULE or MODULE:FUNCTION; it is imported, and the function called. Then the process
receives one socket per process to start over the socket FD, and forks twice: the process in between
ends at once, so that the owner, which is a subreaper at this moment, becomes the parent of the new
process. See `template.py` for the owner's end.

It must start no thread and open no connection: only the forking thread exists in the new process.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from elasticdl.cluster.local.parent_death import PARENT_PID_VARIABLE, die_with_parent
from elasticdl.cluster.local.process_wait import ends_within

ROOM_VARIABLE = "ELASTICDL_ROOM"
"""Filler in the template's environment, where `/proc/PID/environ` of a fork shows its variables."""
MOST_BYTES = 64 << 10
"""The largest request. The buffer of a socket takes one of this size at once."""
_ARG_START, _ENV_START = 45, 47
"""Fields of /proc/PID/stat, counted from the one after the name; see proc(5)."""


@dataclass(frozen=True, slots=True)
class Request:
    """A process to run: `python` with these arguments, and these variables besides ours."""

    arguments: list[str]
    variables: dict[str, str]

    def to_bytes(self) -> bytes:
        """Encode for the socket; any text, even undecodable bytes of paths, survives as JSON."""
        return json.dumps([self.arguments, self.variables]).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Request:
        return cls(*json.loads(data))


def main() -> None:
    """Serve the owner until it ends; returns in each forked process, after its program."""
    owner = int(os.environ[PARENT_PID_VARIABLE])
    die_with_parent()
    # C code that has kept a pointer to a variable must not see the filler change.
    os.environ.pop(ROOM_VARIABLE, None)
    for target in sys.argv[2:]:
        module, _, function = target.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()
    if threading.active_count() > 1:
        raise SystemExit(f"{sys.argv[2:]} started threads, which a fork loses")
    gc.freeze()  # A fork's collections would otherwise write to all pages, and so copy them.
    control = socket.socket(fileno=int(sys.argv[1]))
    control.sendall(b"+")
    request = serve(control, owner)
    if request is not None:
        run(request)


def serve(control: socket.socket, owner: int) -> Request | None:
    """Fork a process for each socket received; returns a request in that process only.

    Returns None when the owner has closed its end.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return None
        with socket.socket(fileno=descriptors[0]) as channel:
            middle = os.fork()
            if middle:
                os.waitpid(middle, 0)
                continue
            middle = os.getpid()
            if _forked():
                os._exit(0)
            control.close()
            return _receive(channel, middle, owner)


def _forked() -> bool:
    """Whether this is the parent; ends the process if the kernel refuses to fork.

    The owner notices by the end of the channel.
    """
    try:
        return os.fork() != 0
    except OSError:
        os._exit(1)


def _receive(channel: socket.socket, middle: int, owner: int) -> Request:
    """In the new process: announce it to the owner, and wait for what it should run.

    The owner answers once it watches this process and its group, so no user code runs before that.
    """
    os.setsid()
    try:
        ends_within(middle)  # After that, we have another parent.
        if os.getppid() != owner:
            os._exit(1)  # The owner has ended or has given up: nobody waits for this process.
        channel.sendall(str(os.getpid()).encode())
        data, descriptors, _, _ = socket.recv_fds(channel, MOST_BYTES, 3)
    except OSError:
        os._exit(1)
    if not data:
        os._exit(1)
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    return Request.from_bytes(data)


def run(request: Request) -> None:
    """Run `python -m MODULE` or `python -c CODE` as the interpreter does."""
    os.environ.update(request.variables)
    _show(request)
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()  # All processes would draw the same numbers. `random` does it itself.
    option, program, *arguments = request.arguments
    sys.argv[:] = [option, *arguments]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = ""
        sys.modules["__main__"] = module = ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), module.__dict__)  # noqa: S102 - `python -c`


def _show(request: Request) -> None:
    """Have `ps` and /proc show this process's own command and variables, as far as they fit.

    The kernel shows memory of the process itself, where it put them before `main`. Nothing else
    uses that of the arguments, which Python copies, and of the filler.
    """
    stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    arguments = Path("/proc/self/cmdline").read_bytes()
    _overwrite(int(stat[_ARG_START]), len(arguments), [sys.executable, *request.arguments])
    environment = Path("/proc/self/environ").read_bytes()
    begin = environment.find(f"{ROOM_VARIABLE}=".encode())
    if begin >= 0:
        length = environment.index(b"\0", begin) - begin
        variables = [f"{name}={value}" for name, value in request.variables.items()]
        _overwrite(int(stat[_ENV_START]) + begin, length, variables)


def _overwrite(address: int, length: int, texts: Iterable[str]) -> None:
    data = b"\0".join(map(os.fsencode, texts))[: length - 1]
    ctypes.memmove(address, data.ljust(length, b"\0"), length)


if __name__ == "__main__":
    main()
