"""The job as one frozen, validated value, which travels to the master and the workers as JSON.

`job_flags.py` declares its fields; here is what must hold between them. `elasticdl.cli.request`
makes a job of a user's request. This module reads no files and does not import TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import (
    ValidationError,
)

from elasticdl.addresses import is_address, replaces_at_once
from elasticdl.errors import SpecError
from elasticdl.flag import UnusedOnRing, mark
from elasticdl.flag_values import ServerRange
from elasticdl.job_choices import (
    TLS_AUTO,
    TLS_OFF,
    TLS_ON,
    Action,
    GlobalBatch,
    RateScaling,
    Strategy,
    WirePrecision,
)
from elasticdl.job_flags import (
    FIELDS,
    LEAST_PART,
    SECTIONS,
    CheckpointSection,
    ClusterSection,
    DataSection,
    ModelSection,
    Section,
    TrainingSection,
    is_needed,
    refuse_unknown,
)
from elasticdl.job_name import LONGEST, is_valid
from elasticdl.job_problems import flag_of, missing, problem_of
from elasticdl.kubernetes_flags import ZOO_OF_IMAGES, KubernetesSection, LadderUse
from elasticdl.shard import Task

_STORE = "set --checkpoint-dir to an address such as s3://bucket/NAME"
_VOLUME = (
    "for example --volume claim_name=CLAIM,mount_path=/data --job-dir /data/NAME --output"
    " /data/NAME/export"
)

DATA_FLAGS: Mapping[Task, str] = {
    Task.TRAINING: "--training-data",
    Task.EVALUATION: "--validation-data",
    Task.PREDICTION: "--prediction-data",
}
"""The flag that names the data of a task."""


class JobSpec(Section):
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
    servers_anew: bool = False
    """Whether that command has `--num-ps-pods`; as `workers_anew`."""
    flags_digest: str = ""
    """SHA-256 of the flags at the job's address, if that command has them as its -f; '' if not."""
    ladder_found: bool = False
    """Whether the submission found a priority ladder that the job may use."""
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
    def servers(self) -> int:
        """The number of parameter servers that the job begins with; 0 on a ring."""
        return self.cluster.num_ps_pods.low

    @property
    def autoscales(self) -> bool:
        """Whether the master chooses the number of workers within its range."""
        return self.cluster.autoscale and self.action is not Action.EVALUATE

    @property
    def autoscales_servers(self) -> bool:
        """Whether the master chooses the number of parameter servers within its range."""
        train = self.action is Action.TRAIN
        return self.cluster.autoscale and train and self.cluster.num_ps_pods.is_open

    @property
    def trains_in_steps(self) -> bool:
        """Whether workers of parameter servers train in synchronous steps."""
        return bool(self.training.sync) and self.action is Action.TRAIN and not self.trains_on_ring

    @property
    def gang_workers(self) -> int:
        """The workers that run together or not at all, with all servers; 0 without --gang."""
        gang = self.kubernetes.gang and self.action is Action.TRAIN
        return self.cluster.num_workers.low if gang else 0

    @property
    def wire_precision(self) -> WirePrecision:
        """What workers exchange with servers: synchronous steps promise bits, which timing must not
        decide.
        """
        chosen = self.training.wire_precision
        if chosen is WirePrecision.AUTO and self.trains_in_steps:
            return WirePrecision.FLOAT32
        return chosen

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
    def turns_per_step(self) -> int:
        """Turns of a synchronous step, of which some may come too late; 0 without such steps."""
        full = self.gradients_per_step
        return full and full + self.training.backup_workers

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
        fields = {key.replace("-", "_"): value for key, value in flags.items()}
        if fields.get("distribution_strategy") == Strategy.ALLREDUCE:
            fields.setdefault("num_ps_pods", 0)
        if fields.get("image_name"):
            fields.setdefault("model_zoo", ZOO_OF_IMAGES)
        nested = {
            section: {name: fields[name] for name in model.model_fields if name in fields}
            for section, model in SECTIONS.items()
        }
        try:
            spec = cls.model_validate({"action": action, **nested})
        except ValidationError as error:
            raise problem_of(error, SECTIONS, action, _lacking(action, fields)) from error
        spec._check(fields)
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
    def on_ladder(self) -> bool:
        """Whether its pods stand on the cluster's priority ladder."""
        use = self.kubernetes.priority_ladder
        return self.ladder_found if use is LadderUse.AUTO else use is LadderUse.ON

    @property
    def uses_tls(self) -> bool:
        """Whether the job's processes encrypt and verify their connections."""
        tls = self.cluster.tls
        return self.on_kubernetes if tls == TLS_AUTO else tls != TLS_OFF

    @property
    def page_secret(self) -> str | None:
        """The Secret with the status page's certificate; None: the job's own authority signs it."""
        return None if self.cluster.tls in (TLS_AUTO, TLS_ON, TLS_OFF) else self.cluster.tls

    def origins(self) -> Mapping[Task, str]:
        """The data that the action uses, as it is named; none for a task without data."""
        data = self.data
        named = {
            Action.TRAIN: {
                Task.TRAINING: data.training_data,
                Task.EVALUATION: data.validation_data,
            },
            Action.EVALUATE: {Task.EVALUATION: data.validation_data},
            Action.PREDICT: {Task.PREDICTION: data.prediction_data},
        }[self.action]
        return {task: origin for task, origin in named.items() if origin}

    @property
    def checkpoint_copies(self) -> str:
        """The address that the job copies its checkpoints to; '' if it copies none."""
        checkpoint_dir, job_dir = self.checkpoint.checkpoint_dir, self.cluster.job_dir
        if self.checkpoints_at:
            return ""
        if checkpoint_dir or self.action is not Action.TRAIN or not is_address(job_dir):
            return checkpoint_dir
        return f"{job_dir.rstrip('/')}/checkpoints"

    @property
    def shares_job_dir(self) -> bool:
        """Whether all processes see the job directory, and it outlives them."""
        return not self.on_kubernetes or self.kubernetes.keeps(self.cluster.job_dir)

    @property
    def checkpoints_at(self) -> str:
        """The address where processes that share no directory keep checkpoints; '' if none do."""
        return "" if self.shares_job_dir else self.checkpoint.checkpoint_dir

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether there is a place for checkpoints that all processes reach."""
        return self.shares_job_dir or bool(self.checkpoints_at)

    @property
    def keeps_pushes(self) -> bool:
        """Whether workers push again what a server lost: not before checkpoints will have it.

        Nor with synchronous steps: servers lose whole steps, of which several workers have parts.
        """
        trains = self.action is Action.TRAIN and self.servers and not self.trains_in_steps
        return bool(trains and self.takes_checkpoints)

    @property
    def takes_checkpoints(self) -> bool:
        """Whether the job takes checkpoints by time or by steps, and has a place for them."""
        by = self.checkpoint.checkpoint_seconds or self.checkpoint.checkpoint_steps
        return bool(by) and self.keeps_checkpoints

    @property
    def workers_hold_journal(self) -> bool:
        """Whether workers have copies of the journal, in place of a volume or servers."""
        return not (self.shares_job_dir or self.servers)

    def with_strategy(self, strategy: Strategy) -> JobSpec:
        """The same job with this strategy: with parameter servers or without."""
        servers = self.cluster.num_ps_pods
        if strategy is Strategy.ALLREDUCE:
            servers = ServerRange.just(0)
        elif not servers.low:
            servers = ServerRange.just(1)
        return self.replace(distribution_strategy=strategy, num_ps_pods=servers)

    def _check(self, fields: Mapping[str, Any]) -> None:
        """Check the fields that depend on one another. Raises SpecError."""
        if lacking := _lacking(self.action, fields):
            raise missing(lacking, self.action)
        self._check_strategy()
        workers = self.cluster.num_workers
        # A resumed job may have been scaled to one number.
        fixed = not (workers.is_open or self.autoscales_servers)
        if self.autoscales and fixed and not self.checkpoint.resume:
            raise SpecError(
                f"--autoscale with --num-workers {workers}",
                hint=f"give a range to choose from, such as --num-workers 1:{max(4, workers.high)}"
                + (" or --num-ps-pods 1:4" if self.servers and self.action is Action.TRAIN else ""),
            )
        self._check_server_range()
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
        self._check_exports()
        self.kubernetes.check()
        if not self.on_kubernetes and self.page_secret is not None:
            raise SpecError(
                f"--tls {self.page_secret} without --image-name",
                hint="a Secret is for a job on a cluster; set --tls on, off or auto",
            )
        if self.on_kubernetes:
            self._check_on_cluster()

    def _check_server_range(self) -> None:
        servers = self.cluster.num_ps_pods
        if not servers.is_open or self.action is not Action.TRAIN:
            return
        flag, fix = f"--num-ps-pods {servers}", f"--num-ps-pods {servers.low}"
        if not self.cluster.autoscale:
            raise SpecError(
                f"{flag} without --autoscale",
                hint=f"add --autoscale, which chooses the number, or set {fix}",
            )
        if self.training.sync:
            raise SpecError(
                f"{flag} with --sync",
                hint=f"the number of servers cannot change between synchronous steps: set {fix}",
            )
        if self.gang_workers:
            raise SpecError(
                f"{flag} with --gang",
                hint=f"a gang places its servers together with its workers: set {fix}",
            )
        if not self.keeps_checkpoints:
            raise SpecError(
                f"{flag} needs a place for checkpoints that all pods reach",
                hint=f"{_STORE}; or {_VOLUME}; or set {fix}",
            )

    def _check_exports(self) -> None:
        """Check the flags of exports while the job trains."""
        kept = self.checkpoint
        if kept.export_seconds and not kept.output:
            raise SpecError(
                f"--export-seconds {kept.export_seconds:g} without --output",
                hint="set --output to the folder that TensorFlow Serving watches",
            )
        if "keep_export_max" in self.flags(defaults=False) and not kept.export_seconds:
            raise SpecError(
                f"--keep-export-max {kept.keep_export_max} without --export-seconds",
                hint="add --export-seconds: without it there is one export, in --output itself",
            )

    def _check_on_cluster(self) -> None:
        if self.cluster.status_port:
            raise SpecError(
                f"--status-port {self.cluster.status_port} with --image-name",
                hint=(
                    "--status-port is for local jobs; use `elasticdl dashboard` to open the page"
                    " of a job on a cluster"
                ),
            )
        job_dir = self.cluster.job_dir
        if is_address(job_dir):
            raise SpecError(
                f"--job-dir {job_dir} with --image-name: the job directory of a job on a cluster is"
                " a path in its pods",
                hint=(
                    f"set --checkpoint-dir {job_dir.rstrip('/')}/checkpoints in its place: a job"
                    " needs no more than its checkpoints to go on, and no volume"
                ),
            )
        if job_dir and not job_dir.startswith("/"):
            raise SpecError(
                f"--job-dir {job_dir} is not an absolute path",
                hint="on a cluster, use a path in the pods, such as /data/NAME",
            )
        self._check_results()
        self._check_checkpoints()

    def _check_results(self) -> None:
        """On a cluster, check that results outlive the pods."""
        kept = self.checkpoint
        if kept.output and not is_address(kept.output) and not self.kubernetes.keeps(kept.output):
            raise SpecError(
                f"--output {kept.output} is not on a writable --volume, so it would be lost with"
                " its pod",
                hint=_VOLUME,
            )
        curves = kept.tensorboard_log_dir
        if curves and not is_address(curves) and not self.kubernetes.keeps(curves):
            raise SpecError(
                f"--tensorboard-log-dir {curves} is not on a writable --volume,"
                " so it would be lost with its pod",
                hint=_VOLUME,
            )

    def _check_checkpoints(self) -> None:
        """On a cluster, check that checkpoints outlive the pods, where the job needs them."""
        if self.checkpoints_at and not replaces_at_once(self.checkpoints_at):
            scheme = self.checkpoints_at.partition(":")[0]
            raise SpecError(
                f"--checkpoint-dir {self.checkpoints_at} without a volume: {scheme}:// does not"
                " replace a file in one step, so a reader may find half of a checkpoint",
                hint=f"use s3://, gs:// or abfs://; or copy checkpoints from a volume: {_VOLUME}",
            )
        kept, job_dir = self.checkpoint, self.cluster.job_dir
        flags = [flag_of(name) for name in ("checkpoint_steps", "resume") if getattr(kept, name)]
        if flags and not self.keeps_checkpoints:
            where = (
                f"--job-dir {job_dir} is not on a writable --volume"
                if job_dir
                else "no --job-dir is given"
            )
            raise SpecError(
                f"{flags[0]} needs a place for checkpoints that all pods reach, but {where}, and"
                " no --checkpoint-dir",
                hint=f"{_STORE}; or {_VOLUME}",
            )

    def _check_strategy(self) -> None:
        training, servers = self.training, self.servers
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
        self._check_virtual_workers(ring)
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

    def _check_virtual_workers(self, ring: bool) -> None:
        training, most = self.training, self.cluster.num_workers.high
        count = training.virtual_workers
        if not count:
            return
        if not ring:
            raise SpecError(
                "--virtual-workers requires a ring",
                hint=f"add --distribution-strategy {Strategy.ALLREDUCE}",
            )
        if training.global_batch is GlobalBatch.SCALED:
            raise SpecError(
                "--virtual-workers with --global-batch scaled",
                hint="a scaled minibatch depends on the number of members; remove one of them",
            )
        if most > count:
            raise SpecError(
                f"--virtual-workers {count} with up to {most} workers",
                hint=f"set --virtual-workers to at least {most}, or lower --num-workers",
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


def _lacking(action: Action, fields: Mapping[str, Any]) -> list[str]:
    """Optional fields that the action requires and that are not given."""
    return [
        name
        for name, field in FIELDS.items()
        if not field.is_required() and is_needed(name, action) and not fields.get(name)
    ]
