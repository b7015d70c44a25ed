"""The sections of a job: every field is one flag (`--kebab-case`) and one YAML key.

This file and `kubernetes_flags.py` declare its name, type, default, limits and help. Names are
unique over all sections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)
from pydantic.fields import FieldInfo

from elasticdl.addresses import local_path, only_address, path_or_address, place_of_job
from elasticdl.errors import SpecError
from elasticdl.flag import (
    DATA,
    DIRECTORY,
    INT64_END,
    MAX_COUNT,
    PLACE,
    NeededBy,
    UnusedOnRing,
    UsedBy,
    Value,
    mark,
)
from elasticdl.flag_values import (
    MAX_WORKERS,
    Scalar,
    ServerRange,
    WorkerRange,
    check_envs,
    parse_envs,
    parse_params,
    parse_staleness,
    parse_tracker,
)
from elasticdl.job_choices import (
    TLS_AUTO,
    Action,
    GlobalBatch,
    RateScaling,
    Shuffle,
    Strategy,
    WirePrecision,
)
from elasticdl.job_problems import flag_of
from elasticdl.kubernetes_flags import KubernetesSection, object_name
from elasticdl.original_names import FLAGS


class Section(BaseModel):
    """A frozen group of flags; unknown ones are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_PAIRS = Value("KEY=VALUE", repeats=True)
Params: TypeAlias = Annotated[Mapping[str, Scalar], BeforeValidator(parse_params), _PAIRS]
Envs: TypeAlias = Annotated[
    Mapping[str, str], BeforeValidator(parse_envs), AfterValidator(check_envs), _PAIRS
]
Directory: TypeAlias = Annotated[str, AfterValidator(local_path), DIRECTORY]
Place: TypeAlias = Annotated[str, AfterValidator(path_or_address), PLACE]
Data: TypeAlias = Annotated[str, AfterValidator(path_or_address), DATA]
_TRAIN, _EVALUATE, _PREDICT = (Action.TRAIN,), (Action.EVALUATE,), (Action.PREDICT,)
_NO_SERVERS = "there are no parameter servers"
LEAST_PART = 8
"""Records of a minibatch's part that batch normalization still has usable statistics of."""


class ModelSection(Section):
    """Which model."""

    model_zoo: Directory = Field(
        description="Directory of model modules; default on a cluster: /model_zoo in the image."
    )
    model_def: Annotated[str, Value("MODULE")] = Field(
        description="Module, or module.function, that builds the model: "
        "`iris` or `mnist.cnn.Model`."
    )
    model_params: Params = Field(
        default_factory=dict,
        description="`key=value;…`: arguments of custom_model, typed, never evaluated.",
    )


class DataSection(Section):
    """Which records, and how they are cut and ordered."""

    training_data: Annotated[Data, UsedBy(_TRAIN), NeededBy(_TRAIN)] = Field(
        default="",
        description=(
            "Data to train on: file, directory, glob, address such as s3://bucket/key, or what"
            " custom_data_reader accepts."
        ),
    )
    validation_data: Annotated[Data, UsedBy(_TRAIN + _EVALUATE), NeededBy(_EVALUATE)] = Field(
        default="",
        description=(
            "Data to evaluate on: file, directory, glob, address such as s3://bucket/key, or what"
            " custom_data_reader accepts."
        ),
    )
    prediction_data: Annotated[Data, UsedBy(_PREDICT), NeededBy(_PREDICT)] = Field(
        default="",
        description=(
            "Data to predict for: file, directory, glob, address such as s3://bucket/key, or what"
            " custom_data_reader accepts."
        ),
    )
    data_reader_params: Params = Field(
        default_factory=dict, description="`key=value;…`: arguments of custom_data_reader."
    )
    minibatch_size: int = Field(
        default=64, ge=1, le=MAX_COUNT, description="Records per training step of a worker."
    )
    records_per_task: int = Field(
        default=0,
        ge=0,
        lt=INT64_END,
        description="Records per shard; 0 selects 64 minibatches, fewer if the data is small.",
    )
    num_epochs: Annotated[int, UsedBy(_TRAIN)] = Field(
        default=1, ge=1, le=MAX_COUNT, description="Passes over the training data."
    )
    shuffle: Annotated[Shuffle, UsedBy(_TRAIN)] = Field(
        default=Shuffle.RECORDS,
        description="What to shuffle: none, shards, or also records within shards.",
    )
    seed: int = Field(
        default=0, ge=0, lt=INT64_END, description="Seed for shuffling and initial weights."
    )
    max_bad_records: int = Field(
        default=0,
        ge=0,
        lt=INT64_END,
        description="Number of unreadable records to skip before the job fails.",
    )


class TrainingSection(Section):
    """How to train."""

    distribution_strategy: Strategy = Field(
        default=Strategy.PARAMETER_SERVER, description="How workers share one model."
    )
    evaluation_steps: Annotated[int, UsedBy(_TRAIN)] = Field(
        default=0,
        ge=0,
        lt=INT64_END,
        description="Evaluate every N steps; 0 evaluates only at the end.",
    )
    evaluation_seconds: Annotated[float, UsedBy(_TRAIN)] = Field(
        default=0,
        ge=0,
        le=MAX_COUNT,
        allow_inf_nan=False,
        description="Evaluate at this interval; 0 disables it.",
    )
    max_staleness: Annotated[
        int | Literal["auto"],
        BeforeValidator(parse_staleness),
        UsedBy(_TRAIN),
        UnusedOnRing("all members of a ring share each step, none is stale"),
        Value("N|auto"),
    ] = Field(
        default="auto",
        description=(
            "Maximum number of a worker's own unacknowledged updates per step; auto: 0, or 1 while"
            " pull and push take a large share of a step and the job is not short."
        ),
    )
    wire_precision: Annotated[WirePrecision, UsedBy(_TRAIN), UnusedOnRing(_NO_SERVERS)] = Field(
        default=WirePrecision.FLOAT32,
        description=(
            "Parameter servers: precision of gradients, and of weights for training, between"
            " workers and servers. float32 sends every bit; auto: bfloat16 while a worker measures"
            " that it saves time, but float32 in synchronous steps and for float64 models. Servers"
            " store and add in full precision."
        ),
    )
    sync: Annotated[bool | None, UsedBy(_TRAIN), UnusedOnRing("a ring is synchronous")] = Field(
        default=None,
        description=(
            "Parameter servers: apply the mean of --grads-to-wait gradients, computed at the same"
            " version, as one step. The default is yes if several workers train with momentum, or"
            " in few steps."
        ),
    )
    grads_to_wait: Annotated[int, UsedBy(_TRAIN), UnusedOnRing("a ring is synchronous")] = Field(
        default=0,
        ge=0,
        le=MAX_WORKERS,
        description=(
            "With --sync: gradients per step, whatever the number of workers; 0: --num-workers"
            " (MAX of a range) less --backup-workers, fewer if each would have less than"
            f" {LEAST_PART} records."
        ),
    )
    backup_workers: Annotated[int, UsedBy(_TRAIN), UnusedOnRing("a ring waits for all")] = Field(
        default=0,
        ge=0,
        le=MAX_WORKERS,
        description=(
            "With --sync: workers that a step does not wait for. Minibatches that come too late are"
            " trained again."
        ),
    )
    embedding_threshold_bytes: Annotated[
        int, UnusedOnRing(f"{_NO_SERVERS}, and embeddings are ordinary variables of every worker")
    ] = Field(
        default=2 << 20,
        ge=0,
        lt=INT64_END,
        description=(
            "Minimum size of a keras.layers.Embedding layer whose rows live on the parameter"
            " servers."
        ),
    )
    global_batch: Annotated[GlobalBatch, UsedBy(_TRAIN)] = Field(
        default=GlobalBatch.FIXED,
        description=(
            "AllReduce and --sync: --minibatch-size is per step (fixed) or per gradient (scaled)."
        ),
    )
    lr_scaling: Annotated[RateScaling, UsedBy(_TRAIN)] = Field(
        default=RateScaling.NONE,
        description=("AllReduce, scaled: how the learning rate grows with the number of members."),
    )
    virtual_workers: Annotated[int, UsedBy(_TRAIN)] = Field(
        default=0,
        ge=0,
        le=MAX_WORKERS,
        description=(
            "AllReduce: cut each minibatch into the parts of N virtual workers, which the members"
            " share. The weights are then the same bit for bit for any number of members up to N;"
            " 0: a part for each member."
        ),
    )
    max_nonfinite_steps: Annotated[
        int,
        UsedBy(_TRAIN),
        UnusedOnRing(
            "all members of a ring share each step, and the first with NaN or Inf ends the job"
        ),
    ] = Field(
        default=3,
        ge=1,
        le=MAX_COUNT,
        description="Consecutive steps with NaN or Inf before the job fails.",
    )
    max_failed_shards: int = Field(
        default=0,
        ge=0,
        le=MAX_COUNT,
        description="Number of shards to skip, after three failures each, before the job fails.",
    )


class CheckpointSection(Section):
    """What to keep: checkpoints, the exported model or predictions, and curves."""

    checkpoint_steps: Annotated[int, UsedBy(_TRAIN)] = Field(
        default=0, ge=0, lt=INT64_END, description="Take a checkpoint every N steps; 0 disables it."
    )
    checkpoint_seconds: Annotated[float, UsedBy(_TRAIN)] = Field(
        default=60,
        ge=0,
        le=MAX_COUNT,
        allow_inf_nan=False,
        description=(
            "Take a checkpoint at this interval if the processes share a place for it. The interval"
            " is at least 50 times as long as the last checkpoint took; 0 disables it."
        ),
    )
    keep_checkpoint_max: Annotated[int, UsedBy(_TRAIN)] = Field(
        default=3,
        ge=0,
        le=MAX_COUNT,
        description="Number of newest checkpoints to keep; 0 keeps all.",
    )
    checkpoint_dir: Annotated[Place, AfterValidator(only_address), UsedBy(_TRAIN)] = Field(
        default="",
        description=(
            "Address in an object store, such as s3://bucket/key, to copy each checkpoint to; with"
            " --resume also where to look for newer ones than in --job-dir. On a cluster without a"
            " volume it is the only place of checkpoints. Default if --job-dir is an address:"
            " checkpoints below it."
        ),
    )
    checkpoint_dir_for_init: Annotated[Place, NeededBy(_EVALUATE + _PREDICT)] = Field(
        default="",
        description=(
            "Checkpoint directory, or the address of copies in an object store, to initialize the"
            " parameters from."
        ),
    )
    resume: Annotated[bool, UsedBy(_TRAIN)] = Field(
        default=False,
        description=(
            "Resume the job in --job-dir from its newest checkpoint, or from the start if it has"
            " none yet."
        ),
    )
    output: Annotated[Place, UsedBy(_TRAIN + _PREDICT)] = Field(
        default="",
        description=(
            "Directory, or address such as s3://bucket/key, for the exported model, or for"
            " predictions if the module has no PredictionOutputsProcessor."
        ),
    )
    export_seconds: Annotated[
        float,
        UsedBy(_TRAIN),
        UnusedOnRing("all members of a ring would stop during each export"),
    ] = Field(
        default=0,
        ge=0,
        le=MAX_COUNT,
        allow_inf_nan=False,
        description=(
            "While the job trains, export at this interval to numbered folders of --output, such as"
            " --output/1, as TensorFlow Serving reads them; the last export is one of them. 0"
            " exports once, at the end, to --output itself."
        ),
    )
    keep_export_max: Annotated[int, UsedBy(_TRAIN)] = Field(
        default=3,
        ge=0,
        le=MAX_COUNT,
        description="Number of newest numbered exports to keep; 0 keeps all.",
    )
    tensorboard_log_dir: Annotated[Place, UsedBy(_TRAIN + _EVALUATE)] = Field(
        default="",
        description=(
            "Directory, or address in an object store, for TensorBoard logs: loss and metrics by"
            " model version."
        ),
    )
    tracker: Annotated[
        str,
        AfterValidator(parse_tracker),
        UsedBy(_TRAIN + _EVALUATE),
        Value("mlflow[:URI]|wandb"),
    ] = Field(
        default="",
        description=(
            "Send parameters, loss, metrics and receipt to MLflow or Weights & Biases, as their own"
            " environment variables say; URI takes precedence over MLFLOW_TRACKING_URI."
        ),
    )


class ClusterSection(Section):
    """Where to run, and with how many processes."""

    job_name: Annotated[str, Value("NAME")] = Field(
        default="", description="Name of the job; default: model and time."
    )
    job_dir: Annotated[Place, AfterValidator(place_of_job)] = Field(
        default="",
        description=(
            "Directory for the job's files, or for a local job an address such as s3://bucket/key"
            " to copy them to; default: jobs/NAME."
        ),
    )
    num_workers: Annotated[WorkerRange, BeforeValidator(WorkerRange.parse), Value("N|MIN:MAX")] = (
        Field(default=WorkerRange(low=1, high=1), description="Number of workers, as N or MIN:MAX.")
    )
    autoscale: Annotated[bool, UsedBy(_TRAIN + _PREDICT)] = Field(
        default=False,
        description=(
            "Begin with MIN of --num-workers MIN:MAX and of --num-ps-pods MIN:MAX. Raise a number"
            " while more processes are shown to speed the job up, and give back those that add"
            " less than 5 %."
        ),
    )
    num_ps_pods: Annotated[ServerRange, BeforeValidator(ServerRange.parse), Value("N|MIN:MAX")] = (
        Field(
            default=ServerRange(low=1, high=1),
            description=(
                "Number of parameter servers, as N or MIN:MAX; only `train` uses more than MIN."
                " AllreduceStrategy has none."
            ),
        )
    )
    max_relaunches: int = Field(
        default=3,
        ge=0,
        le=MAX_COUNT,
        description="Failures in user code to retry before the job fails.",
    )
    stall_seconds: float = Field(
        default=60,
        ge=0,
        le=MAX_COUNT,
        allow_inf_nan=False,
        description="Act on a job that made no progress for this long; 0 only reports it.",
    )
    status_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port of the local status page; 0 selects a free one.",
    )
    tls: Annotated[str, AfterValidator(object_name), Value("auto|on|off|SECRET")] = Field(
        default=TLS_AUTO,
        description=(
            "Encrypt the job's connections: auto is on for a cluster, off for a local job. SECRET"
            " is a kubernetes.io/tls Secret with a certificate for the status page."
        ),
    )
    envs: Envs = Field(
        default_factory=dict, description="`KEY=value;…`: environment variables of all processes."
    )


SECTIONS: Mapping[str, type[BaseModel]] = {
    "model": ModelSection,
    "data": DataSection,
    "training": TrainingSection,
    "checkpoint": CheckpointSection,
    "cluster": ClusterSection,
    "kubernetes": KubernetesSection,
}


FIELDS: Mapping[str, FieldInfo] = {
    name: field for section in SECTIONS.values() for name, field in section.model_fields.items()
}
"""Every flag by its flat name, as declared above and in `kubernetes_flags.py`."""


def is_used(name: str, action: str) -> bool:
    """Whether an action uses a flag.

    A file may serve several actions, so an unused flag in it is no error.
    """
    used_by = mark(FIELDS[name], UsedBy)
    return used_by is None or action in used_by.actions


def is_needed(name: str, action: str) -> bool:
    """Whether an action requires a flag."""
    needed_by = mark(FIELDS[name], NeededBy)
    return FIELDS[name].is_required() or (needed_by is not None and action in needed_by.actions)


def refuse_unused(action: Action, names: Iterable[str]) -> None:
    """Raise SpecError for the first of these flags, in snake case, that an action does not use."""
    for name in names:
        if name in FIELDS and not is_used(name, action):
            takers = "`, `".join(f"elasticdl {taker}" for taker in Action if is_used(name, taker))
            raise SpecError(
                f"`elasticdl {action}` does not accept {flag_of(name)}",
                hint=f"remove it; only `{takers}` accepts it",
            )


def refuse_unknown(keys: Iterable[str]) -> None:
    """Raise SpecError for the first key, in kebab or snake case, that is not a field of a job."""
    for key in keys:
        name = key.replace("-", "_")
        if name not in FIELDS:
            import difflib

            near = difflib.get_close_matches(name, FIELDS, n=1)
            hint = FLAGS.get(name) or (
                f"did you mean {near[0].replace('_', '-')}?"
                if near
                else "see `elasticdl train --help`"
            )
            raise SpecError(f"unknown key {key!r}", hint=hint)
