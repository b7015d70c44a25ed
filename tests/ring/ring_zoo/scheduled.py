"""digits with a learning rate by version and a last step."""

from digits import custom_model, eval_metrics_fn, feed, loss, optimizer  # noqa: F401
from watched import Notes

from elasticdl.model.callbacks import LearningRateScheduler, MaxStepsStopping

STEPS = 60


def rate(version):
    return 0.002 if version < 20 else 0.001


def callbacks():
    return [LearningRateScheduler(rate), MaxStepsStopping(STEPS), Notes()]
