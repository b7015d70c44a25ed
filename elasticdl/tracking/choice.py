"""Which tracker a job uses and where its traces go, and whether their packages are installed."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Final
from urllib.parse import urlsplit

from elasticdl.errors import SpecError
from elasticdl.job import JobSpec


class Sent(StrEnum):
    """What a process sends; also the name of its lock file."""

    CURVES = "tracker"
    TRACES = "traces"


_DATABASES = ("", "sqlite", "mysql", "postgresql", "mssql")
"""Schemes of stores that only the full package `mlflow` opens; '' is its default, a SQLite file."""


def kind_and_uri(tracker: str) -> tuple[str, str]:
    """Split `mlflow:URI`; the URI is '' where none is given."""
    kind, _, uri = tracker.partition(":")
    return kind, uri


_FOLDERS = "MLFLOW_ALLOW_FILE_STORE"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
GRPC: Final = "grpc"
_OVER_HTTP = "http/protobuf"
_EXPORTERS: Final = {
    GRPC: "opentelemetry-exporter-otlp-proto-grpc",
    _OVER_HTTP: "opentelemetry-exporter-otlp-proto-http",
}
"""The package for each protocol."""


def what_to_send(spec: JobSpec) -> tuple[Sent, ...]:
    """Return what a job sends, each by a process of its own."""
    curves = (Sent.CURVES,) if spec.checkpoint.tracker else ()
    traces = (Sent.TRACES,) if endpoint_of({**os.environ, **spec.cluster.envs}) else ()
    return (*curves, *traces)


def endpoint_of(environment: Mapping[str, str]) -> str | None:
    """Return where traces are to go, by OpenTelemetry's variables; None: nowhere."""
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if disabled or environment.get("OTEL_TRACES_EXPORTER", "") == "none":
        return None
    return next((environment[name] for name in _ENDPOINTS if environment.get(name)), None)


def protocol_of(environment: Mapping[str, str]) -> str:
    """Return the protocol of traces, by OpenTelemetry's variables."""
    return next((environment[name] for name in _PROTOCOLS if environment.get(name)), _OVER_HTTP)


def why_no_traces(environment: Mapping[str, str]) -> str | None:
    """Return why traces cannot be sent from here, and what to do; None if they can.

    No reason to refuse a job: a cluster may set these variables for all of its pods.
    """
    protocol = protocol_of(environment)
    if protocol not in _EXPORTERS:
        return (
            f"no traces: the protocol {protocol} is not supported; set OTEL_EXPORTER_OTLP_PROTOCOL"
            f" to {_OVER_HTTP} or {GRPC}, and the endpoint's port for it, often 4318 or 4317"
        )
    package = _EXPORTERS[protocol]
    try:
        version(package)
    except PackageNotFoundError:
        return f"no traces: {package} is not installed; pip install 'elasticdl[otel]'"
    return None


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
        _refuse_store(uri, {**os.environ, **spec.cluster.envs})


def is_installed(package: str) -> bool:
    """Whether a package can be imported. A folder of that name, such as W&B makes, is none."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def without_password(text: str) -> str:
    """Return a text without the credentials of its addresses, which the environment may give.

    A password may have any character, so an address with an @ in its path loses its host, too.
    """
    return re.sub(r"://\S*@", "://", text)


def _refuse_store(uri: str, environment: Mapping[str, str]) -> None:
    address = uri or environment.get("MLFLOW_TRACKING_URI", "")
    if address == "databricks":
        return
    # SQLAlchemy's names may have a driver: postgresql+psycopg2://.
    scheme = urlsplit(address).scheme.partition("+")[0]
    is_path = bool(address) and not scheme
    if is_path or scheme == "file":
        if environment.get(_FOLDERS, "").lower() not in ("true", "1"):
            raise SpecError(
                f"--tracker mlflow with the folder {address}: MLflow writes no runs to folders",
                hint="name a tracking server, mlflow:http://HOST:PORT, or a database,"
                f" mlflow:sqlite:////PATH; or set {_FOLDERS}=true",
            )
        return
    if scheme not in _DATABASES or is_installed("sqlalchemy"):
        return
    where = (
        f"the database {without_password(address)}"
        if address
        else "no address, which means a SQLite file,"
    )
    raise SpecError(
        f"--tracker mlflow with {where} needs the full package mlflow; only mlflow-skinny is"
        " installed",
        hint="pip install mlflow, or name a tracking server: --tracker mlflow:http://HOST:PORT, or"
        " MLFLOW_TRACKING_URI",
    )
