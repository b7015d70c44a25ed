"""The job as one frozen, validated value. Flags, `job.yaml` and `elasticdl.train()` all become one, and it travels to
the master whole, as JSON.

Every field of a section is one flag (`--kebab-case`) and one YAML key; names are unique over all sections. Nothing
here reads files or knows TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from elasticdl.errors import SpecError
from elasticdl.job_problems import flag_of, missing, problem_of
from elasticdl.kubernetes_section import ZOO_OF_IMAGES, KubernetesSection


class Action(StrEnum):
    """What the job does."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    PREDICT = "predict"


class Strategy(StrEnum):
    """How workers keep one model."""

    PARAMETER_SERVER = "ParameterServerStrategy"
    """Asynchronous: workers pull weights from parameter servers and push gradients."""
    ALLREDUCE = "AllreduceStrategy"
    """Synchronous: every worker has all weights, and gradients are averaged over a ring of workers."""


class GlobalBatch(StrEnum):
    """What `--minibatch-size` means on a ring."""

    FIXED = "fixed"
    """The records of a step of the whole ring: members share them, however many there are."""
    SCALED = "scaled"
    """The records of a step of each member."""


class RateScaling(StrEnum):
    """How the learning rate follows the records of a step, relative to `--minibatch-size`."""

    NONE = "none"
    LINEAR = "linear"
    SQRT = "sqrt"


class Shuffle(StrEnum):
    """What is put in a seeded random order each epoch, in training only."""

    NONE = "none"
    SHARDS = "shards"
    RECORDS = "records"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WorkerRange(_Section):
    """How many workers: between `low` and `high`. Written `N` or `MIN:MAX`."""

    low: int = Field(ge=1)
    high: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"MIN {self.low} is above MAX {self.high}")
        return self

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"

    @classmethod
    def parse(cls, value: object) -> object:
        """`3`, `"3"` or `"1:3"` to fields; anything else is left for validation to refuse."""
        if isinstance(value, int) and not isinstance(value, bool):
            return {"low": value, "high": value}
        if isinstance(value, str):
            low, _, high = value.partition(":")
            if not re.fullmatch(r"\d+(:\d+)?", value.strip()):
                raise ValueError(f"expected N or MIN:MAX, got {value!r}")
            return {"low": int(low), "high": int(high or low)}
        return value


Scalar: TypeAlias = bool | int | float | str


def parse_params(value: object) -> object:
    """`"a=1;b=x"`, a list of `key=value`, or a mapping, to typed scalars. Values are never evaluated."""
    if isinstance(value, str):
        value = [part for part in value.split(";") if part.strip()]
    if isinstance(value, (list, tuple)):
        pairs: dict[str, Scalar] = {}
        for part in value:
            key, sign, text = str(part).partition("=")
            if not sign or not key.strip().isidentifier():
                raise ValueError(f"expected key=value, got {part!r}")
            if key.strip() in pairs:
                raise ValueError(f"{key.strip()} is there twice")
            pairs[key.strip()] = _scalar(text.strip())
        return pairs
    return value


def _scalar(text: str) -> Scalar:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def parse_envs(value: object) -> object:
    """`"A=1;B=x"` or a mapping to strings."""
    parsed = parse_params(value) if isinstance(value, (str, list, tuple)) else value
    return {key: str(item) for key, item in parsed.items()} if isinstance(parsed, Mapping) else parsed


Params: TypeAlias = Annotated[Mapping[str, Scalar], BeforeValidator(parse_params)]


class ModelSection(_Section):
    """Which model."""

    model_zoo: str = Field(description="Directory of model modules; on a cluster by default /model_zoo of the image.")
    model_def: str = Field(description="Module, or module.function, that makes the model: `iris` or `mnist.cnn.Model`.")
    model_params: Params = Field(default_factory=dict, description="`key=value;…` for custom_model; typed, not evaluated.")


class DataSection(_Section):
    """Which records, and how they are cut and ordered."""

    training_data: str = Field(
        default="", description="Data to train on: file, directory, glob, or what the module's own reader takes."
    )
    validation_data: str = Field(
        default="", description="Data to evaluate on: file, directory, glob, or what the module's own reader takes."
    )
    prediction_data: str = Field(
        default="", description="Data to predict for: file, directory, glob, or what the module's own reader takes."
    )
    data_reader_params: Params = Field(default_factory=dict, description="`key=value;…` for the data reader.")
    minibatch_size: int = Field(default=64, ge=1, description="Records a worker trains on in one step.")
    records_per_task: int = Field(default=0, ge=0, description="Records in a shard; 0: 64 minibatches, fewer if the data is small.")
    num_epochs: int = Field(default=1, ge=1, description="Passes over the training data.")
    shuffle: Shuffle = Field(default=Shuffle.RECORDS, description="Order of training data: none, shards, or records too.")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of shuffling and of initial weights.")
    max_bad_records: int = Field(default=0, ge=0, description="Unreadable records to leave out before the job fails.")


class TrainingSection(_Section):
    """How to train."""

    distribution_strategy: Strategy = Field(default=Strategy.PARAMETER_SERVER, description="How workers keep one model.")
    evaluation_steps: int = Field(
        default=0, ge=0, description="Evaluate each time the model's version grew by this, one a step; 0: at the end only."
    )
    evaluation_seconds: float = Field(
        default=0, ge=0, allow_inf_nan=False, description="Evaluate each time so many seconds passed; 0: never for that."
    )
    max_staleness: int = Field(default=1, ge=0, le=8, description="A worker's own updates that a step may be computed without.")
    embedding_threshold_bytes: int = Field(
        default=2 << 20,
        ge=0,
        description="keras.layers.Embedding layers of at least this size live on the parameter servers by row.",
    )
    global_batch: GlobalBatch = Field(
        default=GlobalBatch.FIXED, description="AllReduce: --minibatch-size is that of the whole ring, or of each member (scaled)."
    )
    lr_scaling: RateScaling = Field(
        default=RateScaling.NONE, description="AllReduce, scaled: how the learning rate grows with the members: none, linear, sqrt."
    )
    max_nonfinite_steps: int = Field(default=3, ge=1, description="Steps in a row with NaN or Inf before the job fails.")
    max_failed_shards: int = Field(default=0, ge=0, description="Shards that may be given up after three failures each.")


class CheckpointSection(_Section):
    """What is kept."""

    checkpoint_steps: int = Field(
        default=0, ge=0, description="Checkpoint each time the model's version grew by this, one a step; 0: never."
    )
    keep_checkpoint_max: int = Field(default=3, ge=0, description="Newest checkpoints to keep; 0 keeps all.")
    checkpoint_dir_for_init: str = Field(default="", description="Checkpoint directory to take the parameters from.")
    resume: bool = Field(default=False, description="Go on with the job in --job-dir from its newest checkpoint.")
    output: str = Field(
        default="",
        description="Directory for the exported model, or for predictions, unless a PredictionOutputsProcessor takes them.",
    )
    tensorboard_log_dir: str = Field(default="", description="Directory for TensorBoard: loss and metrics by model version.")


class ClusterSection(_Section):
    """Where and with how many processes."""

    job_name: str = Field(default="", description="Name of the job; default: from the model and the time.")
    job_dir: str = Field(default="", description="Directory for all that the job leaves; default: jobs/NAME.")
    num_workers: Annotated[WorkerRange, BeforeValidator(WorkerRange.parse)] = Field(
        default=WorkerRange(low=1, high=1), description="Workers, as N or MIN:MAX."
    )
    num_ps_pods: int = Field(default=1, ge=0, description="Parameter servers; none with AllreduceStrategy.")
    max_relaunches: int = Field(default=3, ge=0, description="Failures by the user's own code to retry before the job fails.")
    status_port: int = Field(default=0, ge=0, le=65535, description="Port of the status page on this machine; 0: any that is free.")
    envs: Annotated[Mapping[str, str], BeforeValidator(parse_envs)] = Field(
        default_factory=dict, description="`KEY=value;…` for the environment of all processes."
    )


JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")


class JobSpec(_Section):
    """Everything a job is. Build it with `from_flags`; `model_dump_json` and `model_validate_json` carry it."""

    action: Action
    model: ModelSection
    data: DataSection
    training: TrainingSection
    checkpoint: CheckpointSection
    cluster: ClusterSection
    kubernetes: KubernetesSection = KubernetesSection()
    workers_anew: bool = False
    """`--num-workers` was given to the command that made this job: a --resume begins with it, whatever the job was scaled to before."""

    @classmethod
    def from_flags(cls, action: Action, flags: Mapping[str, Any], *, workers_anew: bool = False) -> JobSpec:
        """From flat names, kebab or snake case. Raises SpecError that names the flag, the value and what is expected."""
        refuse_unknown(flags)
        given = {key.replace("-", "_"): value for key, value in flags.items()}
        if given.get("distribution_strategy") == Strategy.ALLREDUCE:
            given.setdefault("num_ps_pods", 0)
        if given.get("image_name"):
            given.setdefault("model_zoo", ZOO_OF_IMAGES)
        nested = {
            section: {name: given[name] for name in model.model_fields if name in given} for section, model in SECTIONS.items()
        }
        try:
            spec = cls(action=action, workers_anew=workers_anew, **nested)  # type: ignore[arg-type]
        except ValidationError as error:
            raise problem_of(error, SECTIONS, action, _needed(action, given)) from error
        spec.check()
        return spec

    def flags(self) -> dict[str, Any]:
        """Every field under its flat name, as plain values: `from_flags` makes the same job of it."""
        found = {name: value for section in SECTIONS for name, value in getattr(self, section).model_dump(mode="json").items()}
        return {**found, "num_workers": str(self.cluster.num_workers)}

    def told(self) -> dict[str, Any]:
        """Those of `flags` that are not what they are by default."""
        fields = {name: field for model in SECTIONS.values() for name, field in model.model_fields.items()}
        plain = {section: getattr(self, section) for section in SECTIONS}
        values = {name: getattr(section, name) for section in plain.values() for name in type(section).model_fields}
        flags = self.flags()
        return {
            name: flags[name]
            for name, field in fields.items()
            if field.is_required() or values[name] != field.get_default(call_default_factory=True)
        }

    @property
    def on_kubernetes(self) -> bool:
        """Its processes are pods of a cluster."""
        return bool(self.kubernetes.image_name)

    @property
    def keeps_checkpoints(self) -> bool:
        """There is a place that all processes see."""
        return not self.on_kubernetes or self.kubernetes.keeps(self.cluster.job_dir)

    def made_by(self, strategy: Strategy) -> JobSpec:
        """The same job as one of that strategy: with servers, or without."""
        servers = 0 if strategy is Strategy.ALLREDUCE else max(1, self.cluster.num_ps_pods)
        training = self.training.model_copy(update={"distribution_strategy": strategy})
        return self.model_copy(update={"training": training, "cluster": self.cluster.model_copy(update={"num_ps_pods": servers})})

    def check(self) -> None:
        """What one field alone cannot show. Raises SpecError."""
        if lacking := _needed(self.action, self.flags()):
            raise missing(lacking, self.action)
        self._check_strategy()
        if self.cluster.job_name and not JOB_NAME.fullmatch(self.cluster.job_name):
            raise SpecError(
                f"--job-name {self.cluster.job_name!r} is not usable",
                hint="at most 52 characters of a-z, 0-9 and '-', beginning with a letter, not ending with '-'",
            )
        if (self.training.evaluation_steps or self.training.evaluation_seconds) and not self.data.validation_data:
            raise SpecError(
                "--evaluation-steps or --evaluation-seconds without --validation-data", hint="name the data to evaluate on"
            )
        self.kubernetes.check()
        if self.on_kubernetes:
            self._check_places()

    def _check_places(self) -> None:
        """On a cluster, what is to be kept must not go with a pod."""
        if self.cluster.status_port:
            raise SpecError(
                f"--status-port {self.cluster.status_port} with --image-name",
                hint="it is for jobs on this machine: the page of one on a cluster is opened by `elasticdl dashboard`",
            )
        kept, job_dir = self.checkpoint, self.cluster.job_dir
        if kept.output and not self.kubernetes.keeps(kept.output):
            raise SpecError(f"--output {kept.output} is on no --volume that can be written: it would go with its pod", hint=_VOLUME)
        if kept.tensorboard_log_dir and not self.kubernetes.keeps(kept.tensorboard_log_dir):
            raise SpecError(
                f"--tensorboard-log-dir {kept.tensorboard_log_dir} is on no --volume that can be written: it would go with its pod",
                hint=_VOLUME,
            )
        if (kept.checkpoint_steps or kept.resume) and not self.kubernetes.keeps(job_dir):
            flag = "--checkpoint-steps" if kept.checkpoint_steps else "--resume"
            where = (
                f"--job-dir {job_dir} is on no --volume that can be written" if job_dir else "no --job-dir on a --volume is given"
            )
            raise SpecError(f"{flag} needs a place that all pods see, and {where}", hint=_VOLUME)

    def _check_strategy(self) -> None:
        training, servers = self.training, self.cluster.num_ps_pods
        ring = training.distribution_strategy is Strategy.ALLREDUCE
        if ring and servers:
            raise SpecError(
                f"--num-ps-pods {servers} with --distribution-strategy {Strategy.ALLREDUCE}",
                hint="leave it out: on a ring every worker has all weights, there are no parameter servers",
            )
        if not ring and not servers:
            raise SpecError(
                "--num-ps-pods 0", hint=f"give at least one, or train without any: --distribution-strategy {Strategy.ALLREDUCE}"
            )
        if training.lr_scaling is not RateScaling.NONE and training.global_batch is not GlobalBatch.SCALED:
            raise SpecError(
                f"--lr-scaling {training.lr_scaling} with --global-batch {training.global_batch}",
                hint="a step has the same number of records whatever the number of workers; add --global-batch scaled",
            )
        if ring and self.action is Action.TRAIN:
            self._check_heeded()
        if not ring and training.global_batch is not GlobalBatch.FIXED:
            raise SpecError("--global-batch scaled is of a ring", hint=f"add --distribution-strategy {Strategy.ALLREDUCE}")

    def _check_heeded(self) -> None:
        """What a ring would leave unheeded."""
        for section, name, why in _NOT_OF_RINGS:
            given = getattr(self, section)
            if getattr(given, name) != type(given).model_fields[name].get_default(call_default_factory=True):
                raise SpecError(
                    f"--{name.replace('_', '-')} with --distribution-strategy {Strategy.ALLREDUCE}", hint=f"leave it out: {why}"
                )


_NO_SERVERS = "there are no parameter servers"
_NOT_OF_RINGS = (
    ("training", "max_staleness", "a ring's steps are in common, none is stale"),
    ("training", "max_nonfinite_steps", "a ring's steps are in common, and the first one that gives NaN or Inf ends the job"),
    ("training", "embedding_threshold_bytes", f"{_NO_SERVERS}, and embeddings are ordinary variables of every worker"),
    ("kubernetes", "ps_resource_request", _NO_SERVERS),
    ("kubernetes", "ps_resource_limit", _NO_SERVERS),
    ("kubernetes", "ps_pod_priority", _NO_SERVERS),
)
"""Section, field, and why it makes no difference to training on a ring."""
_VOLUME = "for example --volume claim_name=CLAIM,mount_path=/data --job-dir /data/NAME --output /data/NAME/export"
SECTIONS: Mapping[str, type[BaseModel]] = {
    "model": ModelSection,
    "data": DataSection,
    "training": TrainingSection,
    "checkpoint": CheckpointSection,
    "cluster": ClusterSection,
    "kubernetes": KubernetesSection,
}


_OF_TRAINING = frozenset(
    (
        *("training_data", "num_epochs", "shuffle", "evaluation_steps", "evaluation_seconds", "max_staleness", "global_batch"),
        *("lr_scaling", "max_nonfinite_steps", "checkpoint_steps", "keep_checkpoint_max", "resume"),
    )
)
UNHEEDED: Mapping[Action, frozenset[str]] = {
    Action.TRAIN: frozenset({"prediction_data"}),
    Action.EVALUATE: _OF_TRAINING | {"prediction_data", "output"},
    Action.PREDICT: _OF_TRAINING | {"validation_data", "tensorboard_log_dir"},
}
"""Fields that make no difference to an action: no flags of its verb. In a file, which may be for several verbs, they are no error."""
NEEDED: Mapping[Action, tuple[str, ...]] = {
    Action.TRAIN: ("training_data",),
    Action.EVALUATE: ("validation_data", "checkpoint_dir_for_init"),
    Action.PREDICT: ("prediction_data", "checkpoint_dir_for_init"),
}
"""Fields that an action cannot do without, beside those that none can."""


def refuse_unheeded(action: Action, keys: Iterable[str]) -> None:
    """Raises SpecError for the first key, in kebab or snake case, that was given for an action and makes no difference to it."""
    for key in keys:
        name = key.replace("-", "_")
        if name in UNHEEDED[action]:
            takers = "`, `".join(f"elasticdl {one}" for one, unheeded in UNHEEDED.items() if name not in unheeded)
            raise SpecError(f"`elasticdl {action}` does not heed {flag_of(name)}", hint=f"leave it out: it is for `{takers}`")


def _needed(action: Action, given: Mapping[str, Any]) -> list[str]:
    """Fields that an action cannot do without and that are not there."""
    return [name for name in NEEDED[action] if not given.get(name)]


def refuse_unknown(keys: Iterable[str]) -> None:
    """Raises SpecError for the first key, in kebab or snake case, that is no field of a job."""
    known = [name for model in SECTIONS.values() for name in model.model_fields]
    for key in keys:
        name = key.replace("-", "_")
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0].replace('_', '-')}?" if near else "see `elasticdl train --help`"
            raise SpecError(f"unknown key {key!r}", hint=hint)
