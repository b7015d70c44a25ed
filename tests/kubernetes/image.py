"""The project's image, built as a user would, on a base made from Debian's packages: no image registry is reachable here.

Everything is kept in the cache folder, so that a change of the project's code builds the last layers only; what the newest image
does not need is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.kubernetes.cluster import store

ROOT = Path(__file__).parents[2]
NAME = "localhost/elasticdl:test"
ZOO = "localhost/zoo:test"
GPU = "localhost/elasticdl-gpu:test"
STAGE = "localhost/elasticdl-build:test"
"""The Dockerfile's stage that compiles: named, so that its layers are not taken for waste."""
BASE = "localhost/python-base:bookworm"
_PACKAGES = "python3,python3-venv,python3-dev,g++,ca-certificates"
BUILD_LIMIT_S = 1200.0
KEEP_ARCHIVES = 2
CONTAINED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"),
)
"""A builder ends with whoever called it, and its mounts and all that it runs end with it."""


def cache() -> Path:
    """Where images and layers are kept."""
    home = os.environ.get("ELASTICDL_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elasticdl"
    folder = Path(home, "images")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def store_folder() -> Path:
    """Where the newest image is kept as nodes want it."""
    return cache() / "store"


def environment() -> dict[str, str]:
    """In which `buildah` works on the cache's images, whoever calls it."""
    settings = cache() / "storage.conf"
    text = f'[storage]\ndriver = "overlay"\ngraphroot = "{cache()}/storage"\nrunroot = "{cache()}/run"\n'
    if not settings.exists() or settings.read_text() != text:
        settings.write_text(text)
    return {**os.environ, "CONTAINERS_STORAGE_CONF": str(settings), "BUILDAH_ISOLATION": "oci"}


def flags() -> list[str]:
    """What a build needs here: where a machine has a certificate authority or a package index of its own, a build needs them, too."""
    own = [path for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]
    return ["--network=host", *(f"--volume={path}:{path}:ro" for path in own)]


def build() -> None:
    """Build NAME as the project is now. Raises RuntimeError with the end of what the builder said."""
    with _alone():
        # Containers of a build that was killed.
        _buildah("rm", "--all")
        if not _buildah("images", "-q", BASE, check=False):
            _make_base()
        _build(STAGE, "--target=build")
        wheels = cache().with_name("horovod")
        wheels.mkdir(exist_ok=True)
        _build(NAME, "--build-arg=RING=yes", f"--volume={wheels}:/var/cache/elasticdl/horovod")


def project_zoo() -> Path:
    """An OCI archive of ZOO with the project's own modules and those of the tests. Raises RuntimeError."""
    build()
    with tempfile.TemporaryDirectory() as folder:
        zoo = Path(folder, "zoo")
        for modules in (ROOT / "model_zoo", ROOT / "tests/kubernetes/zoo"):
            shutil.copytree(modules, zoo, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        return build_zoo(zoo)


def build_zoo(folder: Path) -> Path:
    """An OCI archive of ZOO: a user's modules in `folder`, made an image by `elasticdl zoo`. Raises RuntimeError."""
    elasticdl = (sys.executable, "-m", "elasticdl.cli.main", "zoo")
    _run(*elasticdl, "init", str(folder), "--base-image", NAME)
    # What is as it was need not be built again.
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))
    with _alone():
        _run(*CONTAINED, *elasticdl, "build", str(folder), "--image", ZOO, "--builder", "buildah", "--", *flags())
        archive = _archive(ZOO)
        store.add(store_folder(), archive, ZOO)
        return archive


def check_gpu() -> None:
    """Take every step of docker/Dockerfile.gpu, with shells that only read their scripts: what needs NVIDIA's packages is not run."""
    text = (ROOT / "docker/Dockerfile.gpu").read_text().replace("/build/wheels", "/build")
    with _alone(), tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "Dockerfile")
        file.write_text(re.sub("^(FROM .*)$", r'\1\nSHELL ["/bin/sh", "-n", "-c"]', text, flags=re.MULTILINE))
        # Only docker's own format of images knows SHELL.
        options = ["--format=docker", f"--build-arg=BASE_IMAGE={NAME}", f"--tag={GPU}"]
        _buildah("build", *options, *flags(), f"--file={file}", str(ROOT))


def _archive(name: str) -> Path:
    identity = _buildah("images", "-q", "--no-trunc", name).strip().rpartition(":")[2]
    path = cache() / f"{identity}.tar"
    if path.exists():
        os.utime(path)
        return path
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    _buildah("push", "--compression-format", "zstd", name, f"oci-archive:{part}:{name}")
    part.rename(path)
    _prune()
    return path


def _build(name: str, *options: str) -> None:
    common = ["--layers", f"--build-arg=BASE_IMAGE={BASE}", *flags(), *options]
    _buildah("build", *common, f"--file={ROOT / 'docker/Dockerfile'}", f"--tag={name}", str(ROOT))


def _prune() -> None:
    """Layers of the images before this one, and archives but the newest."""
    _buildah("rmi", "--prune")
    archives = sorted(cache().glob("*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in archives[KEEP_ARCHIVES:]:
        old.unlink()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One build at a time: another run may use the same cache."""
    with (cache() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_base() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root.tar")
        _run("mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root))
        container = _buildah("from", "scratch").strip()
        _buildah("add", container, str(root), "/")
        _buildah("commit", "--rm", container, BASE)


def _buildah(*arguments: str, check: bool = True) -> str:
    return _run(*CONTAINED, "buildah", *arguments, check=check)


def _run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT_S, env=environment())
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    print(f"the image of the Kubernetes tests is in {project_zoo()}")
