"""A real Kubernetes on this machine, in namespaces of its own, for tests and to play with: `make
cluster`.

Needs Linux and root. The programs are built once into a cache (`programs/build`). Nothing is left
behind when it ends: processes,
mounts, interfaces and addresses go with the namespaces, cgroups and the state folder are removed
here, or by the next start where
this process was killed (`leftovers.py`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes.cluster import leftovers, store
from tests.kubernetes.layout import Built

HERE = Path(__file__).parent
NAMESPACES = (
    "unshare",
    "--mount",
    "--pid",
    "--net",
    "--uts",
    "--fork",
    "--kill-child=SIGKILL",
    "--mount-proc",
)
BUILD_LIMIT_S, START_LIMIT_S, STOP_LIMIT_S = 1800, 180, 30


@dataclass(frozen=True)
class Cluster:
    """A running cluster. Its network can be entered with `inside`; there is no way out of it."""

    pid: int
    state: Path
    programs: Path
    process: subprocess.Popen[str]
    images: tuple[str, ...] = ()
    """Identities of those that it had from the start, the newest last."""
    blobs: frozenset[str] = frozenset()
    """Digests of what these are made of."""

    @property
    def kubeconfig(self) -> Path:
        return self.state / "admin.kubeconfig"

    def inside(self, command: Sequence[str | Path]) -> list[str]:
        """The command, to be run within the cluster's network."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *map(str, command)]

    def kubectl(self, *arguments: str, text: str | None = None, timeout_s: float = 60) -> str:
        """Run kubectl as the administrator; its standard output.

        Raises RuntimeError with what it said.
        """
        command = self.inside(
            [self.programs / "kubectl", "--kubeconfig", self.kubeconfig, *arguments]
        )
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=timeout_s
        )
        if done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def kill(self, program: str) -> None:
        """`kill -9` one of the cluster's programs, `kube-apiserver` for one."""
        self._order(f"kill {program}")

    def start(self, program: str) -> None:
        """Start a killed program again."""
        self._order(f"start {program}")

    def _order(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        if (said := _first_line(self.process)) != "DONE":
            raise RuntimeError(f"{line}: {said}")

    def import_image(self, built: Built) -> None:
        """Make an image known to the node, if it is not the newest that it has from the store.

        Raises RuntimeError.
        """
        if self.images[-1:] != (built.identity,):
            self.ctr.read(built, self.blobs)

    @property
    def ctr(self) -> store.Ctr:
        """`ctr images` of its node."""
        return store.Ctr(self.state / "containerd.sock")


def why_not() -> str:
    """Why a cluster cannot run here, in words; empty if it can."""
    if not sys.platform.startswith("linux"):
        return "a Kubernetes cluster for tests needs Linux"
    if os.geteuid() != 0:
        return "a Kubernetes cluster for tests needs root, for namespaces and cgroups"
    if shutil.which("go") is None:
        return "a Kubernetes cluster for tests is built from source and needs Go"
    trial = subprocess.run(
        [*NAMESPACES, "true"], capture_output=True, text=True, timeout=STOP_LIMIT_S
    )
    if trial.returncode != 0:
        return f"a Kubernetes cluster for tests needs namespaces of its own: {trial.stderr.strip()}"
    if not any(
        os.access(path, os.W_OK) for path in (leftovers.CGROUPS, *leftovers.CGROUPS.glob("memory"))
    ):
        return (
            f"a Kubernetes cluster for tests needs cgroups of its own, and {leftovers.CGROUPS}"
            " cannot be written"
        )
    return ""


@contextlib.contextmanager
def running(
    images: Path | None = None, *, bare: bool = False, gangs: bool = False
) -> Iterator[Cluster]:
    """A cluster for as long as the context lasts.

    Raises RuntimeError with the reason if it does not come up.

    `images`: a store (`store.py`) of images that its node has from the start. `bare`: namespaces, a
    network and identities only; the caller runs the programs (`gang_control_plane.py`). `gangs`:
    its control plane is of a newer Kubernetes, which has gangs.
    """
    programs = built("programs")
    newer = built("gang_programs") if gangs else None
    leftovers.clean_up()
    state = Path(tempfile.mkdtemp(prefix=leftovers.PREFIX, dir=leftovers.STATES))
    with leftovers.claimed(state):
        had, blobs = store.kept(images) if images is not None else ((), frozenset())
        if newer is not None:
            programs = _overlaid(state / "programs", programs, newer)
        given = "" if bare else images or state / "no-images"
        process = _start(state, programs, given, gangs=gangs)
        try:
            said = _first_line(process)
            if said != "READY":
                raise RuntimeError(
                    f"the cluster did not start: {said or 'its first process ended'};"
                    f" {_tails(state)}"
                )
            yield Cluster(_only_child(process.pid), state, programs, process, had, blobs)
        finally:
            _stop(process)
            leftovers.remove(state.name)


def built(programs: str) -> Path:
    """The folder of `programs` or `gang_programs`, built if it is not in the cache."""
    done = subprocess.run(
        [HERE / programs / "build"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=True,
    )
    return Path(done.stdout.strip().splitlines()[-1])


def _overlaid(folder: Path, programs: Path, newer: Path) -> Path:
    """`folder`, with links to the newer programs, and to the others where there is none."""
    folder.mkdir()
    for name in {path.name for above in (programs, newer) for path in above.iterdir()}:
        found = newer / name
        (folder / name).symlink_to(found if found.exists() else programs / name)
    return folder


def _start(
    state: Path, programs: Path, images: Path | str, *, gangs: bool
) -> subprocess.Popen[str]:
    (state / "logs").mkdir()
    with (state / "logs/node.log").open("w") as log:
        return subprocess.Popen(
            [
                *NAMESPACES,
                sys.executable,
                "-m",
                "tests.kubernetes.cluster.node",
                str(state),
                str(programs),
                state.name,
                str(images),
                "gangs" if gangs else "",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=HERE.parents[2],
            start_new_session=True,
        )


def _tails(state: Path) -> str:
    """What its programs said last, since their logs go with the state folder."""
    logs = sorted((state / "logs").glob("*.log"))
    return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-1000:]}" for log in logs)


def _first_line(process: subprocess.Popen[str]) -> str:
    import selectors

    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return (
            process.stdout.readline().strip()
            if selector.select(START_LIMIT_S)
            else f"nothing heard in {START_LIMIT_S} s"
        )


def _only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _stop(process: subprocess.Popen[str]) -> None:
    """End PID 1 of the namespaces: the kernel ends the rest with it."""
    with contextlib.suppress(ProcessLookupError, IndexError, FileNotFoundError):
        os.kill(_only_child(process.pid), signal.SIGKILL)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def main() -> None:
    """Run one until Ctrl-C, printing how to reach it, with an image of the project and its model
    zoo.
    """
    from tests.kubernetes import image

    if reason := why_not():
        sys.exit(reason)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), running(image.store_folder()) as cluster:
        inside = " ".join(cluster.inside(["env", f"KUBECONFIG={cluster.kubeconfig}", "bash"]))
        print(
            f"Kubernetes is up. KUBECONFIG={cluster.kubeconfig}\nA shell in its network:"
            f" {inside}\nCtrl-C ends it.",
            flush=True,
        )
        print("Building the image; the first time takes ten minutes ...", flush=True)
        cluster.import_image(image.project_zoo())
        print(f"In the cluster now: --image-name {image.ZOO} --image-pull-policy Never", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
