"""Values of flags that are more than one word or number: ranges, pairs, `auto`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Self, TypeAlias

from pydantic import BaseModel, Field, model_serializer, model_validator

from elasticdl.addresses import path_or_address, shows_secret
from elasticdl.json_values import as_texts, is_json, parse_json

MAX_WORKERS = 10_000
"""Each worker has a connection to the master, and two to every parameter server
(ps/native/listener.cc). docs/scale.md has what a master of so many costs."""
MAX_SERVERS = 1_000
"""More are a mistyped number."""


class CountRange(BaseModel, frozen=True, extra="forbid"):
    """A number of processes between `low` and `high`, written `N` or `MIN:MAX`, in JSON, too."""

    low: int = Field(ge=1)
    high: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"MIN {self.low} is greater than MAX {self.high}")
        return self

    @model_serializer
    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"

    @classmethod
    def just(cls, number: int) -> Self:
        """This number, and nothing to choose."""
        return cls(low=number, high=number)

    @property
    def is_open(self) -> bool:
        """Whether there is something to choose."""
        return self.low < self.high

    def nearest(self, number: int) -> int:
        return min(self.high, max(self.low, number))

    @classmethod
    def parse(cls, value: object) -> object:
        """`3`, `"3"` or `"1:3"` to fields; validation refuses anything else."""
        if isinstance(value, int) and not isinstance(value, bool):
            return {"low": value, "high": value}
        if isinstance(value, str):
            low, _, high = value.partition(":")
            # Python refuses to convert numbers of thousands of digits.
            if not re.fullmatch(r"[0-9]{1,18}(:[0-9]{1,18})?", value.strip()):
                raise ValueError(f"expected N or MIN:MAX, got {value!r}")
            return {"low": int(low), "high": int(high or low)}
        return value


class WorkerRange(CountRange, frozen=True):
    """A number of workers."""

    @model_validator(mode="after")
    def _limited(self) -> Self:
        if self.high > MAX_WORKERS:
            raise ValueError(f"{self.high} workers: a job has at most {MAX_WORKERS}")
        return self


class ServerRange(CountRange, frozen=True):
    """A number of parameter servers: 0 on a ring. In JSON one number is a number."""

    low: int = Field(ge=0)
    high: int = Field(ge=0)

    @model_serializer
    def _plain(self) -> int | str:
        return str(self) if self.is_open else self.low

    @model_validator(mode="after")
    def _limited(self) -> Self:
        if self.high and not self.low:
            raise ValueError(f"0:{self.high}: a job has parameter servers from its start, or none")
        if self.high > MAX_SERVERS:
            raise ValueError(f"{self.high} servers: a job has at most {MAX_SERVERS}")
        return self


Scalar: TypeAlias = bool | int | float | str


def parse_params(value: object) -> object:
    """`"a=1;b=x"`, JSON, a list of `key=value`, or a mapping, to typed scalars.

    Values are never evaluated.
    """
    pairs = _pairs(value)
    return (
        {key: _scalar(text) for key, text in pairs.items()} if isinstance(pairs, _Texts) else pairs
    )


def parse_envs(value: object) -> object:
    """Like `parse_params`, but values stay strings."""
    pairs = _pairs(value)
    if isinstance(pairs, _Texts):
        return {key: _unquoted(text) for key, text in pairs.items()}
    return as_texts(pairs) if isinstance(pairs, Mapping) else pairs


_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
"""What Kubernetes takes."""
_SECRETS = re.compile(
    r"AWS_(?:SECRET_ACCESS_KEY|SESSION_TOKEN)"
    r"|AZURE_(?:STORAGE_(?:ACCOUNT_KEY|KEY|SAS_TOKEN|CONNECTION_STRING)|CLIENT_SECRET)"
    r"|MLFLOW_TRACKING_(?:PASSWORD|TOKEN)|WANDB_API_KEY"
    r"|DATABRICKS_(?:TOKEN|CLIENT_SECRET|PASSWORD|REFRESH_TOKEN)"
    r"|OTEL_EXPORTER_OTLP_(?:TRACES_)?HEADERS"
    r"|PGPASSWORD|PGSSLPASSWORD"
)


_ADDRESSES = re.compile(
    r"MLFLOW_(?:TRACKING|REGISTRY)_URI|WANDB_BASE_URL|OTEL_EXPORTER_OTLP_(?:TRACES_)?ENDPOINT"
)
"""Variables whose value may contain a secret."""


def check_envs(envs: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables as they are. Raises ValueError for an odd name, and for a secret.

    The job's files, and its objects on a cluster, show them to everyone who may read those.
    """
    for name, value in envs.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(
                f"invalid name {name!r} of a variable: expected letters, digits, '_', '-' and '.',"
                " the first not a digit"
            )
        in_address = bool(_ADDRESSES.fullmatch(name)) and shows_secret(value.strip())
        if _SECRETS.fullmatch(name) or in_address:
            raise ValueError(
                f"{name} {'contains' if in_address else 'is'} a secret, which the job's files would"
                " show; set it in the environment of the command, or on a cluster put a file into a"
                " Secret, mount that with --volume and name the file's path, such as"
                " AWS_SHARED_CREDENTIALS_FILE"
            )
    return envs


class _Texts(dict[str, str]):
    """Values as typed, by key."""


def _pairs(value: object) -> object:
    """Parse `key=value` texts and JSON; return anything else as it is."""
    if isinstance(value, tuple):  # a flag that was given several times
        value = ";".join(map(str, value))
    if is_json(value):
        return parse_json(value)
    if isinstance(value, str):
        value = [part for part in value.split(";") if part.strip()]
    if not isinstance(value, list):
        return value
    pairs = _Texts()
    for part in value:
        key, sign, text = str(part).partition("=")
        if not sign:
            raise ValueError(f"expected key=value, got {part!r}")
        if not key.strip().isidentifier():
            raise ValueError(
                f"invalid name {key.strip()!r} in {part!r}: expected letters, digits and '_', the"
                " first not a digit"
            )
        if key.strip() in pairs:
            raise ValueError(f"{key.strip()} is given twice")
        pairs[key.strip()] = text.strip()
    return pairs


def _scalar(text: str) -> Scalar:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return _unquoted(text)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text


MOST_STALENESS = 8


def parse_staleness(value: object) -> int | str:
    """`auto`, or a number in digits. Raises ValueError."""
    text = str(value).strip()
    if text == "auto":
        return text
    if isinstance(value, (int, str)) and re.fullmatch(f"[0-{MOST_STALENESS}]", text):
        return int(text)
    raise ValueError(
        f"expected auto, or a whole number of at least 0 and at most {MOST_STALENESS}, got"
        f" {value!r}"
    )


def parse_tracker(text: str) -> str:
    """`mlflow`, `mlflow:URI` or `wandb`, or ''. Raises ValueError."""
    kind, sign, uri = text.partition(":")
    if kind == "wandb" and sign:
        raise ValueError("wandb takes no address: WANDB_BASE_URL, WANDB_PROJECT and others name it")
    if text and (kind not in ("mlflow", "wandb") or (sign and not uri)):
        raise ValueError(f"expected mlflow, mlflow:URI or wandb, got {text!r}")
    return kind + sign + path_or_address(uri)
