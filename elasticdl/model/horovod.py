"""Horovod, which a ring needs; it is built for one TensorFlow."""

from __future__ import annotations

from types import ModuleType
from typing import Protocol

from elasticdl.errors import CannotRun, UserError
from elasticdl.flag_values import WorkerRange
from elasticdl.formatting import amount


def horovod() -> ModuleType:
    """Import Horovod and return it. Raises CannotRun if it is missing or does not fit."""
    from tensorflow.errors import OpError

    try:
        import horovod.tensorflow
    # Not only an ImportError: its libraries are loaded meanwhile.
    except (ImportError, OSError, OpError) as error:
        raise CannotRun(
            f"AllreduceStrategy needs Horovod, but its import failed: {error}",
            hint=(
                "run `make horovod` (or scripts/horovod PYTHON): it builds Horovod for this"
                " TensorFlow and installs it, once, in about 3 minutes"
            ),
        ) from error
    module: ModuleType = horovod.tensorflow
    return module


class Built(Protocol):
    """What this module asks Horovod about itself."""

    def nccl_built(self) -> bool:
        """Whether it reduces on GPUs with NCCL."""


def refuse_shared_gpus(built: Built, workers: WorkerRange, gpus: int, *, of_envs: bool) -> None:
    """Raise UserError if members of a ring on this machine would share one of its GPUs.

    `of_envs`: whether the job's --envs name the GPUs, and not the environment.
    NCCL refuses a second member on a device, and a ring would not form. Gloo reduces on CPUs.
    """
    if 0 < gpus < workers.high and built.nccl_built():
        fits = f"{min(workers.low, gpus)}:{gpus}" if gpus > 1 else "1"
        more = (
            "remove CUDA_VISIBLE_DEVICES from --envs"
            if of_envs
            else "name more GPUs in CUDA_VISIBLE_DEVICES"
        )
        raise UserError(
            f"a ring of up to {amount(workers.high, 'worker')} has {amount(gpus, 'GPU')} here, and"
            " NCCL needs one for each",
            hint=f"set --num-workers {fits}, or {more}",
        )
