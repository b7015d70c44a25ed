"""Names of the original ElasticDL that this one does not have, and what takes their place.

Its flags and its module functions are mostly the same: docs/how-to/migrating.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_FUNCTION: Final = "a module's function has this very name: rename it in the module"

_OPTIMIZER: Final = "parameter servers apply the rule of the module's optimizer()"
_IMAGE: Final = "`elasticdl zoo build` makes the image from a Dockerfile that you may edit"
_EVALUATORS: Final = "workers evaluate: give the flag for workers"

FLAGS: Final[Mapping[str, str]] = {
    "num_minibatches_per_task": "--records-per-task N: minibatches × --minibatch-size",
    "num_evaluator": "workers evaluate: --num-workers",
    "evaluation_start_delay_secs": "--evaluation-seconds or --evaluation-steps says when",
    "evaluation_throttle_secs": "--evaluation-seconds N evaluates every N seconds",
    "shuffle_shards": "--shuffle shards",
    "custom_training_loop": "there is none: the module's functions say how to train",
    "checkpoint_filename_for_init": "--checkpoint-dir-for-init DIR",
    "max_step": "return elasticdl.model.callbacks.MaxStepsStopping from the module's callbacks()",
    "use_async": "--sync trains synchronously, --no-sync asynchronously",
    "lr_staleness_modulation": "--max-staleness bounds how stale a worker's own gradients are",
    "sync_version_tolerance": "with --sync, records of a late gradient are trained in a later step",
    "get_model_steps": "--max-staleness bounds how many of its updates a worker may miss",
    "relaunch_on_worker_failure": "--max-relaunches N: failures in user code to retry",
    "relaunch_timeout_worker": "slow workers are always replaced; --stall-seconds acts on stalls",
    "ps_relaunch_timeout": "lost servers are always replaced; --stall-seconds acts on stalls",
    "task_timeout_secs": "slow workers are always replaced; --stall-seconds acts on stalls",
    "task_fault_tolerance": "it is always on",
    "use_go_ps": "there is one parameter server, in C++",
    "opt_type": _OPTIMIZER,
    "opt_args": _OPTIMIZER,
    "feed": _FUNCTION,
    "dataset_fn": "the module's function is `feed`",
    "loss": _FUNCTION,
    "optimizer": _FUNCTION,
    "callbacks": _FUNCTION,
    "eval_metrics_fn": _FUNCTION,
    "custom_data_reader": _FUNCTION,
    "prediction_outputs_processor": (
        "the module's class is `PredictionOutputsProcessor`: rename it in the module"
    ),
    "log_level": "logs have all levels; `elasticdl logs` shows them",
    "log_file_path": "logs lie in JOB_DIR/logs; `elasticdl logs JOB` prints them",
    "log_loss_steps": "the status page, `elasticdl status` and --tensorboard-log-dir show the loss",
    "yaml": "--dry-run prints the job as YAML for -f; with --image-name, as Kubernetes objects",
    "worker_image": "all processes run --image-name",
    "restart_policy": "the master replaces processes itself: --max-relaunches",
    "populate_env_names": "give each variable: --envs 'NAME=value;…'",
    "cluster_spec": "placement has flags: --node-selector, --tolerations, --affinity",
    "cluster_spec_json": "placement has flags: --node-selector, --tolerations, --affinity",
    "force_use_kube_config_file": "--kube-context names the context of a kubeconfig",
    "extra_pypi_index": _IMAGE,
    "image_base": _IMAGE,
    "docker_image_repository": _IMAGE,
    "docker_base_url": _IMAGE,
    "docker_tlscert": _IMAGE,
    "docker_tlskey": _IMAGE,
    "local_pkg_path": _IMAGE,
    "evaluator_resource_request": _EVALUATORS,
    "evaluator_resource_limit": _EVALUATORS,
    "evaluator_pod_priority": _EVALUATORS,
    "aux_params": "there are none",
    "need_elasticdl_job_service": "every job has it",
    "need_task_manager": "every job has it",
    "need_pod_manager": "every job has it",
    "need_tf_config": "no process needs TF_CONFIG",
    "job_command": "the master runs model modules only",
}
"""What to do instead, by flag in snake case."""

VALUES: Final[Mapping[tuple[str, str], str]] = {
    ("distribution_strategy", "Local"): "leave it out: a job without --image-name runs here",
    ("shuffle", "true"): "`records` shuffles records, `shards` only the order of shards",
    ("shuffle", "True"): "`records` shuffles records, `shards` only the order of shards",
    ("shuffle", "false"): "`none` keeps the order",
    ("shuffle", "False"): "`none` keeps the order",
}
"""What to give instead of a value, by flag in snake case and value."""

_READERS: Final = "see “A reader of your own” in the documentation"
_TABLES: Final = (
    "name a table, postgresql://HOST/DATABASE?table=NAME or sqlite:///PATH?table=NAME, or export to"
    " Parquet"
)

IMPORTS: Final[Mapping[str, str]] = {
    "Mode": "from elasticdl.model.mode import Mode",
    "Embedding": "from elasticdl.model.layers import Embedding, or keras.layers.Embedding",
    "LearningRateScheduler": "from elasticdl.model.callbacks import LearningRateScheduler",
    "MaxStepsStopping": "from elasticdl.model.callbacks import MaxStepsStopping",
    "SavedModelExporter": "from elasticdl.model.callbacks import SavedModelExporter",
    "BasePredictionOutputsProcessor": "PredictionOutputsProcessor needs no base class",
    "default_logger": "logging.getLogger(__name__)",
    "AbstractDataReader": _READERS,
    "RecordIODataReader": _READERS,
    "ODPSDataReader": _TABLES,
    **{
        name: f"from elasticdl.preprocessing import {name}"
        for name in (
            "Hashing",
            "IndexLookup",
            "Discretization",
            "Normalizer",
            "RoundIdentity",
            "LogRound",
            "ToNumber",
            "ConcatenateWithOffset",
            "ToSparse",
            "ToRagged",
            "SparseEmbedding",
        )
    },
    "feature_column": "from elasticdl.preprocessing import feature_column",
}
"""What to import instead, by name."""

PACKAGES: Final = ("elasticdl.python", "elasticdl_preprocessing")
"""What modules of the original import from."""


MIGRATING: Final = "see “Come from the original ElasticDL” in the documentation"


def instead_of_import(line: str) -> str:
    """What takes the place of the names that a line of source imports; '' if none is known."""
    words = line.replace(",", " ").replace(".", " ").replace("(", " ").split()
    known = [f"{name}: {IMPORTS[name]}" for name in IMPORTS if name in words]
    return "; ".join(known)
