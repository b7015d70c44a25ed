"""The fields of a job, and what follows from them.

`job_flags.py` and `kubernetes_flags.py` declare those that are flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticdl.addresses import is_address
from elasticdl.job_choices import (
    TLS_AUTO,
    TLS_OFF,
    TLS_ON,
    Action,
    GlobalBatch,
    Strategy,
    WirePrecision,
)
from elasticdl.job_flags import (
    LEAST_PART,
    SECTIONS,
    CheckpointSection,
    ClusterSection,
    DataSection,
    ModelSection,
    Section,
    TrainingSection,
)
from elasticdl.kubernetes_flags import KubernetesSection, LadderUse
from elasticdl.shard import Task


class JobFields(Section):
    """The values of a job; `JobSpec` makes and checks them.

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

    def flags(self, *, defaults: bool = True) -> dict[str, Any]:
        """Plain values by flat name, as `from_flags` takes them.

        `defaults` False omits default values.
        """
        sections = (getattr(self, section) for section in SECTIONS)
        dumps = (
            section.model_dump(mode="json", exclude_defaults=not defaults) for section in sections
        )
        return {name: value for dump in dumps for name, value in dump.items()}
