"""The job as one frozen, validated value, which travels to the master and the workers as JSON.

Every field of a section is one flag (`--kebab-case`) and one YAML key. This file and
`kubernetes_section.py` declare its name, type, default, limits and help. Names are unique over all
sections. `elasticdl.cli.request` makes a job of a user's request. This module reads no files and
does not import TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic.fields import FieldInfo

from elasticdl.errors import SpecError
from elasticdl.flag import DATA, DIRECTORY, NeededBy, UnusedOnRing, UsedBy, Value, local_path, mark
from elasticdl.flag_values import (
    MAX_WORKERS,
    Scalar,
    WorkerRange,
    parse_envs,
    parse_params,
    parse_staleness,
)
from elasticdl.job_name import LONGEST, is_valid
from elasticdl.job_problems import flag_of, missing, problem_of
from elasticdl.kubernetes_section import ZOO_OF_IMAGES, KubernetesSection, object_name


class Action(StrEnum):
    """What the job does."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    PREDICT = "predict"


class Strategy(StrEnum):
    """How workers share one model."""

    PARAMETER_SERVER = "ParameterServerStrategy"
    """Workers pull weights from parameter servers and push gradients."""
    ALLREDUCE = "AllreduceStrategy"
    """Synchronous: every worker has all weights, and a ring of workers averages gradients."""


class GlobalBatch(StrEnum):
    """What `--minibatch-size` means where workers share a step."""

    FIXED = "fixed"
    """Records per step, shared by the workers."""
    SCALED = "scaled"
    """Records per step of each member of a ring, or of each gradient of a synchronous step."""


class RateScaling(StrEnum):
    """How the learning rate grows with the records per step, relative to `--minibatch-size`."""

    NONE = "none"
    LINEAR = "linear"
    SQRT = "sqrt"


class Shuffle(StrEnum):
    """What training puts into a seeded random order each epoch."""

    NONE = "none"
    SHARDS = "shards"
    RECORDS = "records"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


TLS_AUTO, TLS_ON, TLS_OFF = "auto", "on", "off"
_PAIRS = Value("KEY=VALUE", repeats=True)
Params: TypeAlias = Annotated[Mapping[str, Scalar], BeforeValidator(parse_params), _PAIRS]
Envs: TypeAlias = Annotated[Mapping[str, str], BeforeValidator(parse_envs), _PAIRS]
Directory: TypeAlias = Annotated[str, AfterValidator(local_path), DIRECTORY]
Data: TypeAlias = Annotated[str, DATA]
_TRAIN, _EVALUATE, _PREDICT = (Action.TRAIN,), (Action.EVALUATE,), (Action.PREDICT,)
_NO_SERVERS = "there are no parameter servers"
LEAST_PART = 8
"""Records of a minibatch's part that batch normalization still has usable statistics of."""


class ModelSection(_Section):
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


class DataSection(_Section):
    """Which records, and how they are cut and ordered."""

    training_data: Annotated[Data, UsedBy(_TRAIN), NeededBy(_TRAIN)] = Field(
        default="",
        description=(
            "Data to train on: file, directory, glob, or what custom_data_reader accepts."
        ),
    )
    validation_data: Annotated[Data, UsedBy(_TRAIN + _EVALUATE), NeededBy(_EVALUATE)] = Field(
        default="",
        description=(
            "Data to evaluate on: file, directory, glob, or what custom_data_reader accepts."
        ),
    )
    prediction_data: Annotated[Data, UsedBy(_PREDICT), NeededBy(_PREDICT)] = Field(
        default="",
        description=(
            "Data to predict for: file, directory, glob, or what custom_data_reader accepts."
        ),
    )
    data_reader_params: Params = Field(
        default_factory=dict, description="`key=value;…`: arguments of custom_data_reader."
    )
    minibatch_size: int = Field(
        default=64, ge=1, description="Records per training step of a worker."
    )
    records_per_task: int = Field(
        default=0,
        ge=0,
        description="Records per shard; 0 selects 64 minibatches, fewer if the data is small.",
    )
    num_epochs: Annotated[int, UsedBy(_TRAIN)] = Field(
        default=1, ge=1, description="Passes over the training data."
    )
    shuffle: Annotated[Shuffle, UsedBy(_TRAIN)] = Field(
        default=Shuffle.RECORDS,
        description="What to shuffle: none, shards, or also records within shards.",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="Seed for shuffling and initial weights."
    )
    max_bad_records: int = Field(
        default=0, ge=0, description="Number of unreadable records to skip before the job fails."
    )


class TrainingSection(_Section):
    """How to train."""

    distribution_strategy: Strategy = Field(
        default=Strategy.PARAMETER_SERVER, description="How workers share one model."
    )
    evaluation_steps: Annotated[int, UsedBy(_TRAIN)] = Field(
        default=0, ge=0, description="Evaluate every N steps; 0 evaluates only at the end."
    )
    evaluation_seconds: Annotated[float, UsedBy(_TRAIN)] = Field(
        default=0,
        ge=0,
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
            " pull and push take a large share of a step."
        ),
    )
    sync: Annotated[bool | None, UsedBy(_TRAIN), UnusedOnRing("a ring is synchronous")] = Field(
        default=None,
        description=(
            "Parameter servers: apply the mean of --grads-to-wait gradients, computed at the same"
            " version, as one step. The default is yes if several workers train with momentum."
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
    max_nonfinite_steps: Annotated[
        int,
        UsedBy(_TRAIN),
        UnusedOnRing(
            "all members of a ring share each step, and the first with NaN or Inf ends the job"
        ),
    ] = Field(
        default=3, ge=1, description="Consecutive steps with NaN or Inf before the job fails."
    )
    max_failed_shards: int = Field(
        default=0,
        ge=0,
        description="Number of shards to skip, after three failures each, before the job fails.",
    )


class CheckpointSection(_Section):
    """What to keep: checkpoints, the exported model or predictions, and curves."""

    checkpoint_steps: Annotated[int, UsedBy(_TRAIN)] = Field(
        default=0, ge=0, description="Take a checkpoint every N steps; 0 disables it."
    )
    keep_checkpoint_max: Annotated[int, UsedBy(_TRAIN)] = Field(
        default=3, ge=0, description="Number of newest checkpoints to keep; 0 keeps all."
    )
    checkpoint_dir_for_init: Annotated[Directory, NeededBy(_EVALUATE + _PREDICT)] = Field(
        default="", description="Checkpoint directory to initialize the parameters from."
    )
    resume: Annotated[bool, UsedBy(_TRAIN)] = Field(
        default=False, description="Resume the job in --job-dir from its newest checkpoint."
    )
    output: Annotated[Directory, UsedBy(_TRAIN + _PREDICT)] = Field(
        default="",
        description=(
            "Directory for the exported model, or for predictions if the module has no"
            " PredictionOutputsProcessor."
        ),
    )
    tensorboard_log_dir: Annotated[Directory, UsedBy(_TRAIN + _EVALUATE)] = Field(
        default="", description="Directory for TensorBoard logs: loss and metrics by model version."
    )


class ClusterSection(_Section):
    """Where to run, and with how many processes."""

    job_name: Annotated[str, Value("NAME")] = Field(
        default="", description="Name of the job; default: model and time."
    )
    job_dir: Directory = Field(
        default="", description="Directory for the job's files; default: jobs/NAME."
    )
    num_workers: Annotated[WorkerRange, BeforeValidator(WorkerRange.parse), Value("N|MIN:MAX")] = (
        Field(default=WorkerRange(low=1, high=1), description="Number of workers, as N or MIN:MAX.")
    )
    num_ps_pods: int = Field(
        default=1, ge=0, description="Number of parameter servers; AllreduceStrategy has none."
    )
    max_relaunches: int = Field(
        default=3,
        ge=0,
        description="Failures in user code to retry before the job fails.",
    )
    stall_seconds: float = Field(
        default=60,
        ge=0,
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


class JobSpec(_Section):
    """A whole job.

    Build it with `from_flags`; `model_dump_json` and `model_validate_json` carry it.

    Fields that are not sections are not flags: the command that creates the job sets them.
    """

    action: Action
    model: ModelSection
    data: DataSection
    training: TrainingSection
    checkpoint: CheckpointSection
    cluster: ClusterSection
    kubernetes: KubernetesSection = KubernetesSection()
    workers_anew: bool = False
    """Whether the command that created this job has `--num-workers`.

    If so, --resume begins with that number, whatever the job was scaled to before.
    """
    generated_name: bool = False
    """Whether the name is generated; such a name gives way to an existing job of that name."""
    resume_command: str = ""
    """For a job on a cluster: the command that resumes it from its newest checkpoint."""
    restart_command: str = ""
    """For a job on a cluster: the command that starts it again from the beginning."""

    @property
    def trains_on_ring(self) -> bool:
        """Whether the job trains on a ring; other actions use none, whatever the strategy."""
        ring = self.training.distribution_strategy is Strategy.ALLREDUCE
        return ring and self.action is Action.TRAIN

    @property
    def trains_in_steps(self) -> bool:
        """Whether workers of parameter servers train in synchronous steps."""
        return bool(self.training.sync) and self.action is Action.TRAIN and not self.trains_on_ring

    @property
    def gradients_per_step(self) -> int:
        """Gradients in a full synchronous step; 0 without such steps."""
        if not self.trains_in_steps:
            return 0
        training = self.training
        if training.grads_to_wait:
            return training.grads_to_wait
        most = self.cluster.num_workers.high - training.backup_workers
        if training.global_batch is GlobalBatch.SCALED:
            return most
        return max(1, min(most, self.data.minibatch_size // LEAST_PART))

    @property
    def training_window(self) -> int:
        """Records that a worker of parameter servers computes a gradient of."""
        batch = self.data.minibatch_size
        if not self.trains_in_steps or self.training.global_batch is GlobalBatch.SCALED:
            return batch
        return max(1, round(batch / self.gradients_per_step))

    @classmethod
    def from_flags(cls, action: Action, flags: Mapping[str, Any]) -> JobSpec:
        """Build a job from flat names in kebab or snake case.

        Raises SpecError that names the flag, its value and what is expected.
        """
        refuse_unknown(flags)
        given = {key.replace("-", "_"): value for key, value in flags.items()}
        if given.get("distribution_strategy") == Strategy.ALLREDUCE:
            given.setdefault("num_ps_pods", 0)
        if given.get("image_name"):
            given.setdefault("model_zoo", ZOO_OF_IMAGES)
        nested = {
            section: {name: given[name] for name in model.model_fields if name in given}
            for section, model in SECTIONS.items()
        }
        try:
            spec = cls.model_validate({"action": action, **nested})
        except ValidationError as error:
            raise problem_of(error, SECTIONS, action, _lacking(action, given)) from error
        spec._check(given)
        return spec

    def flags(self, *, defaults: bool = True) -> dict[str, Any]:
        """Plain values by flat name, as `from_flags` takes them.

        `defaults` False omits default values.
        """
        sections = (getattr(self, section) for section in SECTIONS)
        dumps = (
            section.model_dump(mode="json", exclude_defaults=not defaults) for section in sections
        )
        return {name: value for dump in dumps for name, value in dump.items()}

    def replace(self, **values: object) -> JobSpec:
        """The same job with other values of these fields, by flat name, without validation."""
        parts = {
            section: {name: values.pop(name) for name in model.model_fields if name in values}
            for section, model in SECTIONS.items()
        }
        changed = {
            section: getattr(self, section).model_copy(update=part)
            for section, part in parts.items()
            if part
        }
        assert values.keys() <= type(self).model_fields.keys(), values
        return self.model_copy(update=changed | values)

    @property
    def on_kubernetes(self) -> bool:
        """Whether its processes are pods of a cluster."""
        return bool(self.kubernetes.image_name)

    @property
    def uses_tls(self) -> bool:
        """Whether the job's processes encrypt and verify their connections."""
        tls = self.cluster.tls
        return self.on_kubernetes if tls == TLS_AUTO else tls != TLS_OFF

    @property
    def page_secret(self) -> str | None:
        """The Secret with the status page's certificate; None: the job's own authority signs it."""
        return None if self.cluster.tls in (TLS_AUTO, TLS_ON, TLS_OFF) else self.cluster.tls

    def origins(self) -> tuple[str, ...]:
        """The data that the action uses, as it is named."""
        data = self.data
        match self.action:
            case Action.TRAIN:
                named: tuple[str, ...] = (data.training_data, data.validation_data)
            case Action.EVALUATE:
                named = (data.validation_data,)
            case Action.PREDICT:
                named = (data.prediction_data,)
        return tuple(origin for origin in named if origin)

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether all processes share a place for checkpoints."""
        return not self.on_kubernetes or self.kubernetes.keeps(self.cluster.job_dir)

    def with_strategy(self, strategy: Strategy) -> JobSpec:
        """The same job with this strategy: with parameter servers or without."""
        servers = 0 if strategy is Strategy.ALLREDUCE else max(1, self.cluster.num_ps_pods)
        return self.replace(distribution_strategy=strategy, num_ps_pods=servers)

    def _check(self, given: Mapping[str, Any]) -> None:
        """Check the fields that depend on one another. Raises SpecError."""
        if lacking := _lacking(self.action, given):
            raise missing(lacking, self.action)
        self._check_strategy()
        if self.cluster.job_name and not is_valid(self.cluster.job_name):
            raise SpecError(
                f"invalid --job-name {self.cluster.job_name!r}",
                hint=(
                    f"use at most {LONGEST} characters of a-z, 0-9 and '-', beginning with a"
                    " letter and not ending with '-'"
                ),
            )
        if (
            self.training.evaluation_steps or self.training.evaluation_seconds
        ) and not self.data.validation_data:
            raise SpecError(
                "--evaluation-steps or --evaluation-seconds without --validation-data",
                hint="set --validation-data to the data to evaluate on",
            )
        self.kubernetes.check()
        if not self.on_kubernetes and self.page_secret is not None:
            raise SpecError(
                f"--tls {self.page_secret} without --image-name",
                hint="a Secret is for a job on a cluster; set --tls on, off or auto",
            )
        if self.on_kubernetes:
            self._check_places()

    def _check_places(self) -> None:
        """On a cluster, check that results outlive the pods."""
        if self.cluster.status_port:
            raise SpecError(
                f"--status-port {self.cluster.status_port} with --image-name",
                hint=(
                    "--status-port is for local jobs; use `elasticdl dashboard` to open the page"
                    " of a job on a cluster"
                ),
            )
        kept, job_dir = self.checkpoint, self.cluster.job_dir
        if kept.output and not self.kubernetes.keeps(kept.output):
            raise SpecError(
                f"--output {kept.output} is not on a writable --volume, so it would be lost with"
                " its pod",
                hint=_VOLUME,
            )
        if kept.tensorboard_log_dir and not self.kubernetes.keeps(kept.tensorboard_log_dir):
            raise SpecError(
                f"--tensorboard-log-dir {kept.tensorboard_log_dir} is not on a writable --volume,"
                " so it would be lost with its pod",
                hint=_VOLUME,
            )
        if (kept.checkpoint_steps or kept.resume) and not self.kubernetes.keeps(job_dir):
            flag = "--checkpoint-steps" if kept.checkpoint_steps else "--resume"
            where = (
                f"--job-dir {job_dir} is not on a writable --volume"
                if job_dir
                else "no --job-dir is given"
            )
            raise SpecError(
                f"{flag} needs a --job-dir on a volume that all pods share, but {where}",
                hint=_VOLUME,
            )

    def _check_strategy(self) -> None:
        training, servers = self.training, self.cluster.num_ps_pods
        ring = training.distribution_strategy is Strategy.ALLREDUCE
        if ring and servers:
            raise SpecError(
                f"--num-ps-pods {servers} with --distribution-strategy {Strategy.ALLREDUCE}",
                hint=(
                    "remove --num-ps-pods: on a ring every worker has all weights, and there are no"
                    " parameter servers"
                ),
            )
        if not ring and not servers:
            raise SpecError(
                f"--num-ps-pods 0 with --distribution-strategy {Strategy.PARAMETER_SERVER}",
                hint=(
                    "set at least 1, or train without parameter servers: --distribution-strategy"
                    f" {Strategy.ALLREDUCE}"
                ),
            )
        if (
            training.lr_scaling is not RateScaling.NONE
            and training.global_batch is not GlobalBatch.SCALED
        ):
            raise SpecError(
                f"--lr-scaling {training.lr_scaling} with --global-batch {training.global_batch}",
                hint=(
                    "with a fixed batch the learning rate needs no scaling; add --global-batch"
                    " scaled, or remove --lr-scaling"
                ),
            )
        if ring and self.action is Action.TRAIN:
            self._refuse_unused_on_ring()
        self._check_steps()
        if not ring and training.global_batch is not GlobalBatch.FIXED and not training.sync:
            raise SpecError(
                "--global-batch scaled requires a ring or --sync",
                hint=f"add --distribution-strategy {Strategy.ALLREDUCE}, or --sync",
            )
        if not ring and training.lr_scaling is not RateScaling.NONE:
            raise SpecError(
                f"--lr-scaling {training.lr_scaling} requires a ring",
                hint=f"add --distribution-strategy {Strategy.ALLREDUCE}, or remove --lr-scaling",
            )

    def _check_steps(self) -> None:
        training, most = self.training, self.cluster.num_workers.high
        if not training.sync:
            for name in ("grads_to_wait", "backup_workers"):
                if getattr(training, name):
                    raise SpecError(
                        f"{flag_of(name)} without --sync",
                        hint=f"add --sync, or remove {flag_of(name)}",
                    )
            return
        if training.max_staleness != "auto":
            raise SpecError(
                f"--max-staleness {training.max_staleness} with --sync",
                hint="remove --max-staleness: no gradient of a synchronous step is stale",
            )
        wanted = (training.grads_to_wait or 1) + training.backup_workers
        if training.backup_workers and wanted > most:
            raise SpecError(
                f"--backup-workers {training.backup_workers} with --num-workers"
                f" {self.cluster.num_workers}: a step needs at least {wanted} workers",
                hint=(
                    "workers beyond --grads-to-wait are the backups: raise --num-workers, or lower"
                    " --grads-to-wait or --backup-workers"
                ),
            )

    def _refuse_unused_on_ring(self) -> None:
        used = self.flags(defaults=False)
        for name, field in FIELDS.items():
            if name in used and (unused := mark(field, UnusedOnRing)):
                raise SpecError(
                    f"{flag_of(name)} with --distribution-strategy {Strategy.ALLREDUCE}",
                    hint=f"remove it: {unused.why}",
                )


_VOLUME = (
    "for example --volume claim_name=CLAIM,mount_path=/data --job-dir /data/NAME --output"
    " /data/NAME/export"
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
"""Every flag by its flat name, as declared above and in `kubernetes_section.py`."""


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
            hint = (
                f"did you mean {near[0].replace('_', '-')}?"
                if near
                else "see `elasticdl train --help`"
            )
            raise SpecError(f"unknown key {key!r}", hint=hint)


def _lacking(action: Action, given: Mapping[str, Any]) -> list[str]:
    """Optional fields that the action requires and that are not given."""
    return [
        name
        for name, field in FIELDS.items()
        if not field.is_required() and is_needed(name, action) and not given.get(name)
    ]
