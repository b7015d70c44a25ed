"""The flags of a job that apply only to a Kubernetes cluster.

They are plain values; `cluster/kubernetes/planning.py` makes objects of them. Quantities,
tolerations, affinity and volume sources have Kubernetes's own syntax and travel unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from elasticdl.errors import SpecError
from elasticdl.flag import INT64_END, MAX_COUNT, Offer, UnusedOnRing, UsedBy, Value
from elasticdl.job_choices import Action
from elasticdl.json_values import as_texts, is_json, parse_json

ZOO_OF_IMAGES = "/model_zoo"
"""Where `elasticdl zoo build` puts the model modules."""
_QUANTITY = re.compile(
    r"([0-9]+\.?[0-9]*|\.[0-9]+)(?:([eE][+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i))?"
)
_CORES = re.compile(r"[0-9]+\.?[0-9]*[num]?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_LABEL = r"[a-zA-Z0-9](?:[-a-zA-Z0-9]*[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*(?::[0-9]+)?"
IMAGE = re.compile(
    rf"(?:(?:{_HOST}|\[[0-9a-fA-F:]+\](?::[0-9]+)?)/)?{_PART}(?:/{_PART})*(?::[\w][\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?",
    re.ASCII,
)
"""The grammar of the distribution project's image references."""
_LABEL_TEXT = re.compile(r"[a-zA-Z0-9](?:[-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9])?")
_OUR_LABEL_DOMAINS = ("elasticdl.org", "batch.kubernetes.io")
_OUR_LABELS = (
    *(f"app.kubernetes.io/{name}" for name in ("name", "instance", "component", "managed-by")),
    "job-name",
    "controller-uid",
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
INTERNAL_PATHS = ("/", "/tmp", "/var/run/elasticdl", "/var/run/elasticdl-page", "/var/run/secrets")  # noqa: S108 - places in a pod
"""Where no volume of the user may be: the pods of a job have their own there."""


class PullPolicy(StrEnum):
    """When a node pulls the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class LadderUse(StrEnum):
    """Whether a job's pods stand on the cluster's priority ladder."""

    AUTO = "auto"
    """If the cluster has one that the job may use: decided at submission."""
    ON = "on"
    OFF = "off"


def quantity(text: str) -> Decimal:
    """The value of a Kubernetes quantity: `500m` is 0.5, `2Gi` 2147483648. Raises ValueError."""
    parts = _QUANTITY.fullmatch(text)
    if parts is None:
        raise ValueError(f"invalid quantity {text!r}: expected for example 2, 500m, 512Mi or 4G")
    number, exponent, suffix = parts[1], parts[2] or "", parts[3] or ""
    if suffix in _BINARY:
        return Decimal(number) * Decimal(1024 ** _BINARY[suffix])
    return Decimal(f"{number}{exponent}").scaleb(_DECIMAL[suffix])


def quantity_bytes(text: str) -> int:
    """`2Gi` as bytes. Raises ValueError."""
    return int(quantity(text))


def parse_pairs(value: object) -> object:
    """`"cpu=1,memory=2Gi"`, JSON or a mapping, to strings."""
    if is_json(value):
        value = parse_json(value)
    if isinstance(value, str):
        pairs: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in value.split(","))):
            key, sign, text = part.partition("=")
            if not sign or not key.strip() or not text.strip():
                raise ValueError(f"expected key=value,…, got {part!r}")
            if key.strip() in pairs:
                raise ValueError(f"{key.strip()} is given twice")
            pairs[key.strip()] = text.strip()
        return pairs
    return as_texts(value) if isinstance(value, Mapping) else value


def parse_names(value: object) -> object:
    """`"a,b"`, JSON or a list."""
    if is_json(value):
        return parse_json(value)
    return (
        tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, str)
        else value
    )


def parse_volumes(value: object) -> object:
    """A list of volumes, from JSON, from mappings, or from texts.

    A text is like `"claim_name=c1,mount_path=/data;host_path=/x,mount_path=/y"`.
    """
    if is_json(value):
        parsed = parse_json(value)
        return parsed if isinstance(parsed, list) else [parsed]
    if isinstance(value, str):
        return [parse_pairs(part) for part in value.split(";") if part.strip()]
    if isinstance(value, (list, tuple)):
        parsed = [parse_volumes(part) if isinstance(part, str) else [part] for part in value]
        return [
            volume for part in parsed for volume in (part if isinstance(part, list) else [part])
        ]
    return value


def _no_nothing(value: object) -> object:
    return () if value is None else value


_RESOURCES = {
    "disk": "give ephemeral-storage",
    "gpu": "give the name of the device plugin, such as nvidia.com/gpu",
}
"""What the original ElasticDL called resources."""


def _all_quantities(pairs: Mapping[str, str]) -> Mapping[str, str]:
    for key, text in pairs.items():
        if (known_as := _RESOURCES.get(key)) is not None:
            raise ValueError(f"{key}={text}: Kubernetes has no resource {key!r}: {known_as}")
        try:
            amount = quantity(text)
        except ValueError as error:
            raise ValueError(f"{key}={text}: {error}") from error
        if key == "cpu" and not _CORES.fullmatch(text):
            raise ValueError(f"cpu={text}: expected cores, for example 2, 0.5 or 500m")
        if not 0 < amount < INT64_END:
            expected = "more than 0" if amount <= 0 else "less than 8Ei"
            raise ValueError(f"{key}={text}: expected {expected}")
    return pairs


def _memory(text: str) -> str:
    if text and quantity(text) >= INT64_END:
        raise ValueError(f"{text}: expected less than 8Ei")
    return text


def object_name(text: str) -> str:
    """Validate the name of a cluster object, or ''.

    It becomes part of a URL, so that no other text may pass. Raises ValueError.
    """
    if text and not _OBJECT.fullmatch(text):
        raise ValueError(
            f"invalid object name {text!r}: expected a-z, 0-9, '-' and '.', with a letter or"
            " digit at both ends"
        )
    return text


def namespace_name(text: str) -> str:
    """Validate the name of a namespace, or ''. Raises ValueError."""
    if text and not _NAMESPACE.fullmatch(text):
        raise ValueError(
            f"invalid namespace {text!r}: expected at most 63 of a-z, 0-9 and '-', with a letter"
            " or digit at both ends"
        )
    return text


def _class_name(text: str) -> str:
    if re.fullmatch(r"[01]?\.\d+", text):
        raise ValueError(
            f"{text!r} is a share of pods, not a priority class: name one class for all pods of the"
            " role, or a priority ladder with {rung}"
        )
    object_name(text.replace("{rung}", "1"))
    return text


def _object_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(object_name, names))


def _image(text: str) -> str:
    if text and not IMAGE.fullmatch(text):
        raise ValueError(f"invalid image name {text!r}: expected REGISTRY/NAME:TAG in lower case")
    return text


class Mount(BaseModel):
    """A volume and its path in the pods: a claim, a path of the node, or a Kubernetes `source`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mount_path: str
    claim_name: str = ""
    host_path: str = ""
    type: str = ""
    source: Mapping[str, Any] = Field(default_factory=dict)
    sub_path: str = ""
    read_only: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = [key for key in ("claim_name", "host_path", "source") if getattr(self, key)]
        if len(sources) != 1:
            raise ValueError(
                "expected one of claim_name, host_path and source, got"
                f" {' and '.join(sources) or 'none'}"
            )
        if self.type and not self.host_path:
            raise ValueError(f"type={self.type} requires a host_path")
        object_name(self.claim_name)
        path = PurePosixPath(self.mount_path)
        if (
            not path.is_absolute()
            or self.mount_path.startswith("//")
            or ".." in path.parts
            or str(path) in INTERNAL_PATHS
            or ":" in self.mount_path
        ):
            raise ValueError(
                f"mount_path {self.mount_path!r}: expected an absolute path other than"
                f" {', '.join(INTERNAL_PATHS)}"
            )
        return self

    def holds(self, path: str) -> bool:
        """Whether a path in the pods is on this volume."""
        return PurePosixPath(path).is_relative_to(PurePosixPath(self.mount_path))


def _apart(mounts: tuple[Mount, ...]) -> tuple[Mount, ...]:
    places = [str(PurePosixPath(mount.mount_path)) for mount in mounts]
    for place in places:
        if places.count(place) > 1:
            raise ValueError(f"two volumes have mount_path {place}")
    return mounts


def _labels(pairs: Mapping[str, str]) -> Mapping[str, str]:
    for key, text in pairs.items():
        prefix, _, name = key.rpartition("/")
        valid_prefix = _OBJECT.fullmatch(prefix) if "/" in key else True
        if not (valid_prefix and _LABEL_TEXT.fullmatch(name)):
            raise ValueError(
                f"invalid label {key!r}: expected NAME or DOMAIN/NAME, the name with at most 63 of"
                " letters, digits, '-', '_' and '.'"
            )
        if not _LABEL_TEXT.fullmatch(text):
            raise ValueError(
                f"invalid value {text!r} of label {key}: expected at most 63 of letters, digits,"
                " '-', '_' and '.', with a letter or digit at both ends"
            )
        if key in _OUR_LABELS or prefix in _OUR_LABEL_DOMAINS:
            raise ValueError(f"label {key} is set by ElasticDL or Kubernetes: choose another one")
    return pairs


Pairs: TypeAlias = Annotated[Mapping[str, str], BeforeValidator(parse_pairs), Value("KEY=VALUE,…")]
Labels: TypeAlias = Annotated[Pairs, AfterValidator(_labels)]
Resource: TypeAlias = Annotated[Pairs, AfterValidator(_all_quantities)]
ObjectName: TypeAlias = Annotated[str, AfterValidator(object_name), Value("NAME")]
ClassName: TypeAlias = Annotated[str, AfterValidator(_class_name), Value("NAME")]
_NO_SERVERS = UnusedOnRing("there are no parameter servers")


class KubernetesSection(BaseModel):
    """Flags of a job on a Kubernetes cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image_name: Annotated[str, AfterValidator(_image), Value("IMAGE")] = Field(
        default="",
        description="Image of all processes. With it, the job runs on a Kubernetes cluster.",
    )
    image_pull_policy: PullPolicy = Field(
        default=PullPolicy.IF_NOT_PRESENT, description="When to pull the image."
    )
    image_pull_secrets: Annotated[
        tuple[str, ...],
        BeforeValidator(parse_names),
        AfterValidator(_object_names),
        Value("NAME,…"),
    ] = Field(default=(), description="`a,b`: Secrets with the registry's credentials.")
    kube_context: Annotated[str, Value("NAME", Offer.CONTEXTS)] = Field(
        default="", description="Context of the kubeconfig; default: the current one."
    )
    namespace: Annotated[str, AfterValidator(namespace_name), Value("NAME", Offer.NAMESPACES)] = (
        Field(default="", description="Namespace of the job; default: the context's.")
    )
    service_account: ObjectName = Field(
        default="elasticdl",
        description="Service account of the master; docker/rbac.yaml creates one.",
    )
    volume: Annotated[
        tuple[Mount, ...],
        BeforeValidator(parse_volumes),
        AfterValidator(_apart),
        Value("VOLUME", repeats=True),
    ] = Field(
        default=(),
        description=(
            "Volumes to mount: `claim_name=C,mount_path=/data;host_path=P,mount_path=/x`, with"
            " optional sub_path and read_only; JSON or YAML with `source` for other kinds."
        ),
    )
    fs_group: int = Field(
        default=1000,
        ge=0,
        le=MAX_COUNT,
        description="Group that owns the files of volumes; 0 keeps the volume's group.",
    )
    run_as_user: int = Field(
        default=0,
        ge=0,
        le=MAX_COUNT,
        description="User id of the processes; 0 keeps the image's user.",
    )
    master_resource_request: Resource = Field(
        default_factory=dict, description="Resource requests of the master: `cpu=1,memory=2Gi,…`."
    )
    master_resource_limit: Resource = Field(
        default_factory=dict, description="Resource limits of the master."
    )
    worker_resource_request: Resource = Field(
        default_factory=dict, description="Resource requests of each worker."
    )
    worker_resource_limit: Resource = Field(
        default_factory=dict,
        description="Resource limits of each worker, such as `nvidia.com/gpu=1`.",
    )
    ps_resource_request: Annotated[Resource, _NO_SERVERS] = Field(
        default_factory=dict, description="Resource requests of each parameter server."
    )
    ps_resource_limit: Annotated[Resource, _NO_SERVERS] = Field(
        default_factory=dict, description="Resource limits of each parameter server."
    )
    master_pod_priority: ClassName = Field(default="", description="Priority class of the master.")
    worker_pod_priority: ClassName = Field(
        default="",
        description="Priority class of workers; `{rung}` stands for the worker's rung, from 1.",
    )
    ps_pod_priority: Annotated[ClassName, _NO_SERVERS] = Field(
        default="", description="Priority class of parameter servers."
    )
    priority_ladder: LadderUse = Field(
        default=LadderUse.AUTO,
        description=(
            "Share the cluster by the priority ladder of `elasticdl cluster setup`; auto: if the"
            " cluster has it. A --*-pod-priority takes precedence."
        ),
    )
    weight: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Share of a full cluster, relative to jobs of weight 1, on the ladder.",
    )
    gang: Annotated[bool, UsedBy((Action.TRAIN,))] = Field(
        default=False,
        description=(
            "Schedule the servers and MIN workers together or not at all; a plain N is MIN. Needs a"
            " cluster with PodGroups."
        ),
    )
    labels: Labels = Field(
        default_factory=dict, description="Labels of the Job and of all pods: `key=value,…`."
    )
    scheduler_name: ObjectName = Field(
        default="", description="Scheduler of all pods; default: the cluster's own."
    )
    node_selector: Pairs = Field(
        default_factory=dict, description="Labels that nodes must have: `key=value,…`."
    )
    tolerations: Annotated[
        tuple[Mapping[str, Any], ...],
        BeforeValidator(lambda v: _no_nothing(parse_json(v))),
        Value("JSON"),
    ] = Field(default=(), description="List of Kubernetes tolerations, as JSON or YAML.")
    affinity: Annotated[Mapping[str, Any] | None, BeforeValidator(parse_json), Value("JSON")] = (
        Field(
            default=None,
            description=(
                "Kubernetes affinity, as JSON or YAML; default: workers near servers, servers"
                " on different nodes of a rack. `{}` is none."
            ),
        )
    )
    ttl_seconds: int = Field(
        default=24 * 3600,
        ge=0,
        le=MAX_COUNT,
        description="Time to keep the Kubernetes objects of an ended job.",
    )
    oom_memory_limit: Annotated[str, AfterValidator(_memory), Value("QUANTITY")] = Field(
        default="",
        description=(
            "Maximum memory limit, such as 8Gi, for a process restarted after running out of"
            " memory; default: twice its first limit."
        ),
    )

    def memory_limit_bytes(self, role: str) -> int | None:
        """The initial memory limit of a role (`worker`, `ps`, `master`); None: no limit."""
        text = getattr(self, f"{role}_resource_limit").get("memory")
        return None if text is None else quantity_bytes(text)

    def oom_limit_bytes(self, role: str) -> int | None:
        """The highest memory limit after running out of memory.

        None if there is no limit to raise.
        """
        first = self.memory_limit_bytes(role)
        if first is None:
            return None
        return (
            max(first, quantity_bytes(self.oom_memory_limit))
            if self.oom_memory_limit
            else 2 * first
        )

    def volume_of(self, path: str) -> Mount | None:
        """The volume that contains a path in the pods; None: the path is lost with its pod."""
        mounts = [mount for mount in self.volume if mount.holds(path)]
        return max(
            mounts, key=lambda mount: len(PurePosixPath(mount.mount_path).parts), default=None
        )

    def keeps(self, path: str) -> bool:
        """Whether all pods share what is written there, and it outlives them."""
        mount = self.volume_of(path) if path else None
        return mount is not None and not mount.read_only

    def check(self) -> None:
        """Raise SpecError for a flag that has no effect without a cluster, or without rungs."""
        if self.image_name:
            named = self.worker_pod_priority
            rungs = "{rung}" in named if named else self.priority_ladder is not LadderUse.OFF
            if self.weight != 1 and not rungs:
                raise SpecError(
                    f"--weight {self.weight}, but the workers have no rungs",
                    hint="remove --weight, or --priority-ladder off and --worker-pod-priority",
                )
            return
        for name, value in self:
            if value != type(self).model_fields[name].get_default(call_default_factory=True):
                raise SpecError(
                    f"--{name.replace('_', '-')} without --image-name",
                    hint="set --image-name to run on a Kubernetes cluster, or remove the flag",
                )
