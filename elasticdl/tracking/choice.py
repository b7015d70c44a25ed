"""Which tracker a job uses, and whether its package is installed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from elasticdl.errors import SpecError
from elasticdl.job import JobSpec

_DATABASES = ("", "sqlite", "mysql", "postgresql", "mssql")
"""Schemes of stores that only the full package `mlflow` opens; '' is its default, a SQLite file."""


def kind_and_uri(tracker: str) -> tuple[str, str]:
    """Split `mlflow:URI`; the URI is '' where none is given."""
    kind, _, uri = tracker.partition(":")
    return kind, uri


def refuse_missing_package(spec: JobSpec) -> None:
    """Raise SpecError if the job's tracker needs a package that is not installed here."""
    kind, uri = kind_and_uri(spec.checkpoint.tracker)
    if not kind:
        return
    if not is_installed(kind):
        raise SpecError(
            f"--tracker {kind} needs the package {kind}, which is not installed",
            hint=f"pip install 'elasticdl[{kind}]'",
        )
    if kind == "mlflow":
        _refuse_missing_database(uri, {**os.environ, **spec.cluster.envs})


def is_installed(package: str) -> bool:
    """Whether a package can be imported. A folder of that name, such as W&B makes, is none."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def _refuse_missing_database(uri: str, environment: Mapping[str, str]) -> None:
    address = uri or environment.get("MLFLOW_TRACKING_URI", "")
    if address == "databricks":
        return
    # SQLAlchemy's names may have a driver: postgresql+psycopg2://.
    scheme = urlsplit(address).scheme.partition("+")[0]
    is_path = bool(address) and not scheme
    if is_path or scheme not in _DATABASES or is_installed("sqlalchemy"):
        return
    where = f"the database {address}" if address else "no address, which means a SQLite file,"
    raise SpecError(
        f"--tracker mlflow with {where} needs the full package mlflow; only mlflow-skinny is"
        " installed",
        hint="pip install mlflow, or name a tracking server: --tracker mlflow:http://HOST:PORT, or"
        " MLFLOW_TRACKING_URI",
    )
