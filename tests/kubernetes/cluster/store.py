"""Images as a node's containerd keeps them, unpacked once and shared by all clusters of this
machine.

To unpack the project's image takes a node 20 s of work and 3 GiB, each time. Here a containerd that
runs for that alone does it: of an
image that differs in its last layers, only those. A node mounts what is here below what is its own,
and changes nothing of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Container, Iterator
from pathlib import Path

from tests.kubernetes.layout import Built

KEPT = 2
"""Images of the newest builds: clusters may run with those before the last."""
LIMIT_S = 300.0
_CONTENT, _BOLT, _LAYERS = (
    f"io.containerd.{part}"
    for part in ("content.v1.content", "metadata.v1.bolt", "snapshotter.v1.overlayfs")
)
_SETTINGS = """
version = 2
root = "{folder}/containerd"
state = "{state}/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "{state}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{state}/opt"
"""


def images(folder: Path) -> list[str]:
    """Which images the store has, by their identities, the newest last."""
    try:
        return list(json.loads((folder / "images.json").read_text()))
    except (FileNotFoundError, ValueError):
        return []


def kept(folder: Path) -> tuple[tuple[str, ...], frozenset[str]]:
    """Which images the store has, and the digests of all that these are made of."""
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder, fcntl.LOCK_SH):
        known, content = tuple(images(folder)), folder / "containerd" / _CONTENT / "blobs/sha256"
        return known, frozenset(path.name for path in content.iterdir()) if known else frozenset()


def add(folder: Path, built: Built) -> None:
    """Have the store keep an image.

    Only those of its layers are read that the store does not have. Raises RuntimeError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder, fcntl.LOCK_EX):
        known = images(folder)
        if known[-1:] == [built.identity]:
            return
        # Whoever is killed in between leaves a store that has nothing, and is filled again.
        (folder / "images.json").unlink(missing_ok=True)
        content = folder / "containerd" / _CONTENT / "blobs/sha256"
        with _containerd(folder) as ctr:
            there = (
                {path.name for path in content.iterdir()} if known and content.exists() else set()
            )
            ctr.read(built, there)
            # The next image takes this one's name: under another one its layers stay for clusters
            # that run.
            ctr("tag", "--force", built.name, f"localhost/kept:{built.identity}")
            known = [*(one for one in known if one != built.identity), built.identity]
            for old in known[:-KEPT]:
                ctr("rm", "--sync", f"localhost/kept:{old}")
        (folder / "images.json").write_text(json.dumps(known[-KEPT:]))
        built.share(content)


@contextlib.contextmanager
def held(folder: Path, how: int) -> Iterator[None]:
    """Nobody changes the store meanwhile, or (LOCK_EX) reads it."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, how)
        yield


def mount(folder: Path, root: Path) -> None:
    """Make the store's images those of a containerd that is not started yet and has its data below
    `root`.

    In a mount namespace of its own: nothing else takes the mounts away again.
    """
    if not images(folder):
        return
    with held(folder, fcntl.LOCK_SH):
        source, layers = folder / "containerd", root / _LAYERS / "snapshots"
        (root / _BOLT).mkdir(parents=True)
        layers.mkdir(parents=True)
        shutil.copy(source / _BOLT / "meta.db", root / _BOLT)
        shutil.copy(source / _LAYERS / "metadata.db", root / _LAYERS)
        for layer in (source / _LAYERS / "snapshots").iterdir():
            (layers / layer.name).mkdir()
            _run("mount", "--bind", str(layer), str(layers / layer.name))
            _run("mount", "-o", "remount,bind,ro", str(layers / layer.name))
        above = root / "above"
        for part in (root / _CONTENT, above / "upper", above / "work"):
            part.mkdir(parents=True)
        options = f"lowerdir={source / _CONTENT},upperdir={above}/upper,workdir={above}/work"
        _run("mount", "-t", "overlay", "-o", options, "overlay", str(root / _CONTENT))


@contextlib.contextmanager
def _containerd(folder: Path) -> Iterator[Ctr]:
    with tempfile.TemporaryDirectory(prefix="elasticdl-store-", dir="/tmp") as state:
        settings = Path(state, "containerd.toml")
        settings.write_text(_SETTINGS.format(folder=folder, state=state))
        with Path(state, "log").open("w") as log:
            command = ["setpriv", "--pdeathsig", "KILL", "containerd", "--config", str(settings)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            ctr = Ctr(Path(state, "containerd.sock"))
            deadline_s = time.monotonic() + LIMIT_S
            while not ctr.address.exists():
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise RuntimeError(
                        f"containerd did not start: {Path(state, 'log').read_text()[-1000:]}"
                    )
                time.sleep(0.05)
            yield ctr
        finally:
            process.terminate()
            process.wait(LIMIT_S)


class Ctr:
    """`ctr images` of a containerd."""

    def __init__(self, address: Path) -> None:
        self.address = address

    def __call__(self, verb: str, *arguments: str) -> None:
        """Raises RuntimeError."""
        _run(*self._command(verb, *arguments))

    def read(self, built: Built, there: Container[str] = ()) -> None:
        """Import an image, of which the blobs `there` are known already. Raises RuntimeError."""
        with tempfile.TemporaryFile() as said:
            command = self._command("import", "--all-platforms", "-")
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said)
            assert process.stdin is not None
            with process.stdin as archive, contextlib.suppress(BrokenPipeError):
                built.write(archive, without=there)
            if process.wait(LIMIT_S) != 0:
                said.seek(0)
                raise RuntimeError(
                    f"importing {built.name} ended with {process.returncode}:"
                    f" {said.read().decode()[-500:]}"
                )

    def _command(self, *arguments: str) -> list[str]:
        return ["ctr", "-a", str(self.address), "-n", "k8s.io", "images", *arguments]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-500:]}"
        )
