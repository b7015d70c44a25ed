"""The project's image, built as a user would, on a base made from Debian's packages: no image registry is reachable here.

Everything is kept in the cache folder, so that a change of the project's code builds the last layers only.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = "localhost/elasticdl:test"
BASE = "localhost/python-base:bookworm"
_PACKAGES = "python3,python3-venv,python3-dev,g++,ca-certificates"
BUILD_LIMIT_S = 1200.0


def cache() -> Path:
    """Where images and layers are kept."""
    home = os.environ.get("ELASTICDL_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elasticdl"
    folder = Path(home, "images")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def build() -> Path:
    """An OCI archive of the image as it is now. Raises RuntimeError with the end of what the builder said."""
    if not _buildah("images", "-q", BASE, check=False):
        _make_base()
    # Where a machine has a certificate authority or a package index of its own, a build needs them, too.
    own = [path for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]
    volumes = [flag for path in own for flag in ("-v", f"{path}:{path}:ro")]
    options = ["--layers", "--network", "host", "--build-arg", f"BASE_IMAGE={BASE}", *volumes]
    _buildah("build", *options, "-f", str(ROOT / "docker/Dockerfile"), "-t", NAME, str(ROOT))
    return _archive()


def _archive() -> Path:
    identity = _buildah("images", "-q", "--no-trunc", NAME).strip().rpartition(":")[2]
    archive = cache() / f"{identity}.tar"
    if not archive.exists():
        for old in cache().glob("*.tar"):
            old.unlink()
        part = archive.with_suffix(".part")
        _buildah("push", "--compression-format", "zstd", NAME, f"oci-archive:{part}:{NAME}")
        part.rename(archive)
    return archive


def _make_base() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root.tar")
        _run("mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root))
        container = _buildah("from", "scratch").strip()
        _buildah("add", container, str(root), "/")
        _buildah("commit", "--rm", container, BASE)


def _buildah(*arguments: str, check: bool = True) -> str:
    place = ["--root", str(cache() / "storage"), "--runroot", str(cache() / "run"), "--storage-driver", "overlay"]
    return _run("buildah", *place, *arguments, check=check)


def _run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT_S)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout
