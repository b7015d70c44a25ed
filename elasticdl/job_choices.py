"""Values of a job's flags that have names."""

from __future__ import annotations

from enum import StrEnum

TLS_AUTO, TLS_ON, TLS_OFF = "auto", "on", "off"


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


class WirePrecision(StrEnum):
    """Precision of gradients and of weights for training, between workers and servers."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    AUTO = "auto"
    """bfloat16 while that takes clearly less time, and where no result is promised bit for bit."""


class Shuffle(StrEnum):
    """What training puts into a seeded random order each epoch."""

    NONE = "none"
    SHARDS = "shards"
    RECORDS = "records"
