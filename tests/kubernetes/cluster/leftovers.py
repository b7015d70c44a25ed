"""What a cluster could leave on this machine, found by its name, and removing what those left whose
test run was killed.

A cluster's name is that of its state folder. It is in the arguments or the cgroup of each of its
processes, in the paths of its
mounts and cgroups. Whoever runs a cluster holds a lock in its state folder: a cluster whose lock is
free has nobody any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

STATES = Path("/tmp")  # The path of a socket may have 107 characters: TMPDIR may be too long.
PREFIX = "elasticdl-cluster-"
CGROUPS = Path("/sys/fs/cgroup")
LINKS = ("node0", "pods0")
"""Names of a cluster's interfaces. They belong into its network namespace only."""
ELSEWHERE = (
    "/var/log/pods",
    "/var/log/containers",
    "/var/lib/cni/results",
    "/var/lib/cni/networks",
    "/var/lib/kubelet",
    "/run/netns",
)
CLEAN_LIMIT_S = 30.0


def found(name: str = PREFIX) -> list[str]:
    """Everything that is left of a cluster, or of all: a line each."""
    return [
        *(f"process {pid}: {_arguments(pid)}" for pid in processes(name)),
        *(f"mount {place}" for place in mounts(name)),
        *(f"cgroup {folder}" for folder in cgroups(name)),
        *(f"interface {link}" for link in LINKS if Path("/sys/class/net", link).exists()),
        *(f"folder {folder}" for folder in STATES.glob(f"{name}*")),
    ]


def elsewhere() -> list[str]:
    """What is there where kubelets, containerd and CNI plugins write although nobody told them
    to.
    """
    return sorted(
        str(path) for place in ELSEWHERE if Path(place).is_dir() for path in Path(place).iterdir()
    )


def processes(name: str) -> list[int]:
    """Processes of a cluster: in its cgroups, or with its name among their arguments and not of our
    own kind.
    """
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _belongs(entry, name)]


def _belongs(entry: Path, name: str) -> bool:
    try:
        if f"/{name}" in (entry / "cgroup").read_text():
            return True
        if name not in (entry / "cmdline").read_text(errors="replace"):
            return False
        inside = os.readlink(entry / "ns/pid") != os.readlink("/proc/self/ns/pid")
        return inside or (entry / "comm").read_text().strip() == "unshare"
    except OSError:
        return False  # It has ended by now.


def _arguments(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")[:200]
    except OSError:
        return "(it has ended by now)"


def mounts(name: str) -> list[str]:
    """Mount points of this process's namespace that belong to a cluster."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for place in places if f"/{name}" in place]


def cgroups(name: str) -> list[Path]:
    """The topmost cgroups of a cluster, one in each hierarchy."""
    return [
        path
        for pattern in (f"{name}*", f"*/{name}*")
        for path in CGROUPS.glob(pattern)
        if path.is_dir()
    ]


@contextlib.contextmanager
def claimed(state: Path) -> Iterator[None]:
    """The cluster of this state folder is somebody's for as long as the context lasts."""
    with (state / ".owner").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def clean_up() -> list[str]:
    """Remove what clusters left whose owner is gone. Returns their names."""
    names = [folder.name for folder in STATES.glob(f"{PREFIX}*") if _is_abandoned(folder)]
    # The folder goes last: a cgroup without one has no owner.
    names += sorted({path.name for path in cgroups(PREFIX) if not (STATES / path.name).exists()})
    for name in names:
        remove(name)
    return names


def _is_abandoned(state: Path) -> bool:
    try:
        with (state / ".owner").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except BlockingIOError:
        return False
    except FileNotFoundError:
        # It is just being made, or its maker was killed right then.
        return state.exists() and time.time() - state.stat().st_mtime > CLEAN_LIMIT_S


def remove(name: str) -> None:
    """End what runs of a cluster, and remove its cgroups and its folder.

    Raises TimeoutError that names what would not go.
    """
    deadline_s = time.monotonic() + CLEAN_LIMIT_S
    while pids := processes(name):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _pause(deadline_s, f"processes {pids}")
    for root in cgroups(name):
        for folder, _, _ in os.walk(root, topdown=False):
            while not _rmdir(folder):
                _pause(deadline_s, folder)
    shutil.rmtree(STATES / name, ignore_errors=True)


def _rmdir(folder: str) -> bool:
    """Whether it is gone. A cgroup is busy for a moment after its last process was killed."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _pause(deadline_s: float, what: str) -> None:
    if time.monotonic() > deadline_s:
        raise TimeoutError(f"not removed within {CLEAN_LIMIT_S:g} s: {what}")
    time.sleep(0.05)
