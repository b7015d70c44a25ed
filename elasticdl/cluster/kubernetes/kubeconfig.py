"""Which clusters are set up here, from files and variables only: asks no cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def in_pod() -> bool:
    """Whether this process runs in a pod of a cluster."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def kubeconfig_path() -> str:
    """What the variable KUBECONFIG names; '' if it is not set."""
    return os.environ.get("KUBECONFIG", "")


def no_cluster() -> str | None:
    """Why there is no cluster to ask; None if one is set up."""
    if in_pod():
        return None
    files = _files()
    if any(file.is_file() for file in files):
        return None
    return f"no cluster is set up here (there is no {' and no '.join(map(str, files))})"


def contexts() -> list[str]:
    """Names of the kube contexts, in the order of their files. An unreadable file has none."""
    return list(dict.fromkeys(name for file in _files() for name in _contexts_of(file)))


def _files() -> list[Path]:
    paths = kubeconfig_path()
    return [Path(part) for part in paths.split(os.pathsep) if part] or [
        Path.home() / ".kube" / "config"
    ]


def _contexts_of(file: Path) -> Iterator[str]:
    import yaml

    try:
        document = yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except (OSError, yaml.YAMLError):
        return
    listed = document.get("contexts") if isinstance(document, dict) else None
    for context in listed if isinstance(listed, list) else ():
        if isinstance(context, dict) and isinstance(context.get("name"), str):
            yield context["name"]
