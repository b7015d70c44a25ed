"""The project's image, built as a user would, on a base made from Debian's packages: no image
registry is reachable here.

Everything is kept in the cache folder, so that a change of the project's code builds the last
layers only; what the newest image
does not need is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.kubernetes.cluster import store
from tests.kubernetes.layout import Built, export

ROOT = Path(__file__).parents[2]
NAME = "localhost/elasticdl:test"
ZOO = "localhost/zoo:test"
GPU = "localhost/elasticdl-gpu:test"
STAGE = "localhost/elasticdl-{}:test"
"""The Dockerfile's stages that take minutes, as images with names: so their layers are not taken
for waste.
"""
_PACKAGES = "python3,python3-venv,python3-dev,g++,libssl-dev,ca-certificates"
BASE = f"localhost/python-base:bookworm-{hashlib.sha256(_PACKAGES.encode()).hexdigest()[:8]}"
MODULES = (ROOT / "model_zoo", ROOT / "tests/kubernetes/zoo")
BUILD_LIMIT_S = 1200.0
CONTAINED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"),
)
"""A builder ends with whoever called it, and its mounts and all that it runs end with it."""


def cache() -> Path:
    """Where images and layers are kept."""
    home = (
        os.environ.get("ELASTICDL_CACHE_DIR")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elasticdl"
    )
    folder = Path(home, "images")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def store_folder() -> Path:
    """Where the newest image is kept as nodes want it."""
    return cache() / "store"


def environment() -> dict[str, str]:
    """The environment in which `buildah` works on the cache's images."""
    settings = cache() / "storage.conf"
    text = (
        f'[storage]\ndriver = "overlay"\ngraphroot = "{cache()}/storage"\nrunroot ='
        f' "{cache()}/run"\n'
    )
    if not settings.exists() or settings.read_text() != text:
        settings.write_text(text)
    return {**os.environ, "CONTAINERS_STORAGE_CONF": str(settings), "BUILDAH_ISOLATION": "oci"}


def flags() -> list[str]:
    """What a build needs here: where a machine has a certificate authority or a package index of
    its own, a build needs them, too.
    """
    own = [path for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]
    return ["--network=host", *(f"--volume={path}:{path}:ro" for path in own)]


def build() -> None:
    """Build NAME as the project is now.

    Raises RuntimeError with the end of what the builder said.
    """
    with _alone():
        # Containers of a build that was killed.
        _buildah("rm", "--all")
        if not _buildah("images", "-q", BASE, check=False):
            _make_base()
        _build_runtime()
        _build("build", STAGE.format("build"))
        _build_last()


def _build_runtime() -> None:
    """All but the project itself, if what it is made of has changed: a builder that looks itself
    reads all of it, 2 GB, to see that.
    """
    made = cache() / "runtime.json"
    wanted = (
        "docker/Dockerfile",
        "docker/requirements.lock",
        "scripts/horovod",
        "scripts/horovod.patch",
    )
    sources = hashlib.sha256(b"\0".join((ROOT / name).read_bytes() for name in wanted)).hexdigest()
    name = STAGE.format("runtime")
    if (
        made.exists()
        and json.loads(made.read_text()) == sources
        and _buildah("images", "-q", name, check=False)
    ):
        return
    for stage in ("ring", "runtime"):
        _build(stage, STAGE.format(stage))
    made.write_text(json.dumps(sources))


def _build_last() -> None:
    """The Dockerfile's last stage, on what its other stages were made into."""
    last = "FROM " + (ROOT / "docker/Dockerfile").read_text().rpartition("\nFROM ")[2]
    for stage in ("runtime", "build"):
        last = re.sub(rf"(FROM |--from=){stage}\b", rf"\g<1>{STAGE.format(stage)}", last)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "Dockerfile")
        file.write_text(last)
        _buildah("build", "--layers", f"--file={file}", f"--tag={NAME}", folder)


def project_zoo() -> Built:
    """ZOO with the project's own modules and those of the tests, in the store. Raises RuntimeError.

    What was built before of the same files is not built again: processes that test side by side all
    ask for it.
    """
    made = cache() / "built.json"
    with _alone():
        sources = _sources()
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
            before = json.loads(made.read_text())
            if before["sources"] == sources and store.images(store_folder())[-1:] == [
                before["identity"]
            ]:
                return Built(cache() / "layout", ZOO, before["identity"])
    build()
    with tempfile.TemporaryDirectory() as folder:
        zoo = Path(folder, "zoo")
        for modules in MODULES:
            shutil.copytree(
                modules, zoo, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        built = build_zoo(zoo)
    made.write_text(json.dumps({"sources": sources, "identity": built.identity}))
    return built


def _sources() -> str:
    """Changes when anything does that the image is made of."""
    kept = [
        *(
            line[1:]
            for line in (ROOT / ".dockerignore").read_text().splitlines()
            if line.startswith("!")
        ),
        "docker/Dockerfile",
    ]
    roots = [*(ROOT / name for name in kept), *MODULES, Path(__file__)]
    files = sorted(
        path
        for root in roots
        for path in (root.rglob("*") if root.is_dir() else [root])
        if _counts(path)
    )
    digest = hashlib.sha256(" ".join(flags()).encode())
    for path in files:
        digest.update(f"{path}:{path.stat().st_mode}:{path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _counts(path: Path) -> bool:
    made = (
        path.suffix == ".so"
        or "_pb2" in path.name
        or "vendor" in path.parts
        or "__pycache__" in path.parts
    )
    return path.is_file() and not made


def build_zoo(folder: Path) -> Built:
    """ZOO, a user's modules in `folder`, made an image by `elasticdl zoo` and put into the store.

    Raises RuntimeError.
    """
    elasticdl = (sys.executable, "-m", "elasticdl.cli.main", "zoo")
    _run(*elasticdl, "init", str(folder), "--base-image", NAME)
    # What is as it was need not be built again.
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))
    with _alone():
        _run(
            *CONTAINED,
            *elasticdl,
            "build",
            str(folder),
            "--image",
            ZOO,
            "--builder",
            "buildah",
            "--",
            *flags(),
        )
        built = export(_buildah, ZOO, cache() / "storage", cache() / "layout")
        store.add(store_folder(), built)
        # Layers of the images before this one; and what older versions kept.
        _buildah("rmi", "--prune")
        for old in cache().glob("*.tar"):
            old.unlink()
        return built


def check_gpu() -> None:
    """Take every step of docker/Dockerfile.gpu, with shells that only read their scripts: what
    needs NVIDIA's packages is not run.
    """
    text = (ROOT / "docker/Dockerfile.gpu").read_text().replace("/build/wheels", "/build")
    with _alone(), tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "Dockerfile")
        file.write_text(
            re.sub("^(FROM .*)$", r'\1\nSHELL ["/bin/sh", "-n", "-c"]', text, flags=re.MULTILINE)
        )
        # Only docker's own format of images knows SHELL.
        options = ["--format=docker", f"--build-arg=BASE_IMAGE={NAME}", f"--tag={GPU}"]
        _buildah("build", *options, *flags(), f"--file={file}", str(ROOT))


def _build(stage: str, name: str) -> None:
    folders = [cache().with_name(name) for name in ("horovod", "objects")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    mounted = [f"--volume={folder}:/var/cache/elasticdl/{folder.name}" for folder in folders]
    common = [
        "--layers",
        f"--target={stage}",
        f"--build-arg=BASE_IMAGE={BASE}",
        "--build-arg=RING=yes",
        *mounted,
        *flags(),
    ]
    _buildah("build", *common, f"--file={ROOT / 'docker/Dockerfile'}", f"--tag={name}", str(ROOT))


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
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_LIMIT_S, env=environment()
    )
    if check and done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}:"
            f" {(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


if __name__ == "__main__":
    print(f"the image of the Kubernetes tests is {project_zoo().identity}")
