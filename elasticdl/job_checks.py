"""What must hold between the fields of a job. Every error names the flag and what to do."""

from __future__ import annotations

from elasticdl.addresses import is_address, replaces_at_once
from elasticdl.errors import SpecError
from elasticdl.flag import UnusedOnRing, mark
from elasticdl.job_choices import Action, GlobalBatch, RateScaling, Strategy
from elasticdl.job_fields import JobFields
from elasticdl.job_flags import FIELDS
from elasticdl.job_name import LONGEST, is_valid
from elasticdl.job_problems import flag_of

_STORE = "set --checkpoint-dir to an address such as s3://bucket/NAME"
_VOLUME = (
    "for example --volume claim_name=CLAIM,mount_path=/data --job-dir /data/NAME --output"
    " /data/NAME/export"
)


def check(job: JobFields) -> None:
    """Check the fields that depend on one another. Raises SpecError."""
    _check_strategy(job)
    workers = job.cluster.num_workers
    # A resumed job may have been scaled to one number.
    fixed = not (workers.is_open or job.autoscales_servers)
    if job.autoscales and fixed and not job.checkpoint.resume:
        raise SpecError(
            f"--autoscale with --num-workers {workers}",
            hint=f"give a range to choose from, such as --num-workers 1:{max(4, workers.high)}"
            + (" or --num-ps-pods 1:4" if job.servers and job.action is Action.TRAIN else ""),
        )
    _check_server_range(job)
    if job.cluster.job_name and not is_valid(job.cluster.job_name):
        raise SpecError(
            f"invalid --job-name {job.cluster.job_name!r}",
            hint=(
                f"use at most {LONGEST} characters of a-z, 0-9 and '-', beginning with a"
                " letter and not ending with '-'"
            ),
        )
    if (
        job.training.evaluation_steps or job.training.evaluation_seconds
    ) and not job.data.validation_data:
        raise SpecError(
            "--evaluation-steps or --evaluation-seconds without --validation-data",
            hint="set --validation-data to the data to evaluate on",
        )
    _check_exports(job)
    job.kubernetes.check()
    if not job.on_kubernetes and job.page_secret is not None:
        raise SpecError(
            f"--tls {job.page_secret} without --image-name",
            hint="a Secret is for a job on a cluster; set --tls on, off or auto",
        )
    if job.on_kubernetes:
        _check_on_cluster(job)


def _check_server_range(job: JobFields) -> None:
    servers = job.cluster.num_ps_pods
    if not servers.is_open or job.action is not Action.TRAIN:
        return
    flag, fix = f"--num-ps-pods {servers}", f"--num-ps-pods {servers.low}"
    if not job.cluster.autoscale:
        raise SpecError(
            f"{flag} without --autoscale",
            hint=f"add --autoscale, which chooses the number, or set {fix}",
        )
    if job.training.sync:
        raise SpecError(
            f"{flag} with --sync",
            hint=f"the number of servers cannot change between synchronous steps: set {fix}",
        )
    if job.gang_workers:
        raise SpecError(
            f"{flag} with --gang",
            hint=f"a gang places its servers together with its workers: set {fix}",
        )
    if not job.keeps_checkpoints:
        raise SpecError(
            f"{flag} needs a place for checkpoints that all pods reach",
            hint=f"{_STORE}; or {_VOLUME}; or set {fix}",
        )


def _check_exports(job: JobFields) -> None:
    """Check the flags of exports while the job trains."""
    kept = job.checkpoint
    if kept.export_seconds and not kept.output:
        raise SpecError(
            f"--export-seconds {kept.export_seconds:g} without --output",
            hint="set --output to the folder that TensorFlow Serving watches",
        )
    if "keep_export_max" in job.flags(defaults=False) and not kept.export_seconds:
        raise SpecError(
            f"--keep-export-max {kept.keep_export_max} without --export-seconds",
            hint="add --export-seconds: without it there is one export, in --output itself",
        )


def _check_on_cluster(job: JobFields) -> None:
    if job.cluster.status_port:
        raise SpecError(
            f"--status-port {job.cluster.status_port} with --image-name",
            hint=(
                "--status-port is for local jobs; use `elasticdl dashboard` to open the page"
                " of a job on a cluster"
            ),
        )
    # On this machine a path gets a better hint, from the files of the zoo.
    if not all(part.isidentifier() for part in job.model.model_def.split(".")):
        raise SpecError(
            f"--model-def {job.model.model_def!r} is not a dotted name",
            hint="examples: `iris`, `mnist.cnn`, `mnist.cnn.custom_model`",
        )
    job_dir = job.cluster.job_dir
    if is_address(job_dir):
        raise SpecError(
            f"--job-dir {job_dir} with --image-name: the job directory of a job on a cluster is"
            " a path in its pods",
            hint=(
                f"set --checkpoint-dir {job_dir.rstrip('/')}/checkpoints instead: a job"
                " continues from its checkpoints alone, and needs no volume"
            ),
        )
    if job_dir and not job_dir.startswith("/"):
        raise SpecError(
            f"--job-dir {job_dir} is not an absolute path",
            hint="on a cluster, use a path in the pods, such as /data/NAME",
        )
    _check_results(job)
    _check_checkpoints(job)


def _check_results(job: JobFields) -> None:
    """On a cluster, check that results outlive the pods."""
    for name in ("output", "tensorboard_log_dir"):
        place = getattr(job.checkpoint, name)
        if place and not is_address(place) and not job.kubernetes.keeps(place):
            raise SpecError(
                f"{flag_of(name)} {place} is not on a writable --volume, so it would be lost with"
                " its pod",
                hint=_VOLUME,
            )


def _check_checkpoints(job: JobFields) -> None:
    """On a cluster, check that checkpoints outlive the pods, where the job needs them."""
    if job.checkpoints_at and not replaces_at_once(job.checkpoints_at):
        scheme = job.checkpoints_at.partition(":")[0]
        raise SpecError(
            f"--checkpoint-dir {job.checkpoints_at} without a volume: {scheme}:// does not"
            " replace a file in one step, so a reader may find half of a checkpoint",
            hint=f"use s3://, gs:// or abfs://; or copy checkpoints from a volume: {_VOLUME}",
        )
    kept, job_dir = job.checkpoint, job.cluster.job_dir
    flags = [flag_of(name) for name in ("checkpoint_steps", "resume") if getattr(kept, name)]
    if flags and not job.keeps_checkpoints:
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


def _check_strategy(job: JobFields) -> None:
    training, servers = job.training, job.servers
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
    if ring and job.action is Action.TRAIN:
        _refuse_unused_on_ring(job)
    _check_virtual_workers(job, ring)
    _check_steps(job)
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


def _check_virtual_workers(job: JobFields, ring: bool) -> None:
    training, most = job.training, job.cluster.num_workers.high
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


def _check_steps(job: JobFields) -> None:
    training, most = job.training, job.cluster.num_workers.high
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
            f" {job.cluster.num_workers}: a step needs at least {wanted} workers",
            hint=(
                "workers beyond --grads-to-wait are the backups: raise --num-workers, or lower"
                " --grads-to-wait or --backup-workers"
            ),
        )


def _refuse_unused_on_ring(job: JobFields) -> None:
    used = job.flags(defaults=False)
    for name, field in FIELDS.items():
        if name in used and (unused := mark(field, UnusedOnRing)):
            raise SpecError(
                f"{flag_of(name)} with --distribution-strategy {Strategy.ALLREDUCE}",
                hint=f"remove it: {unused.why}",
            )
