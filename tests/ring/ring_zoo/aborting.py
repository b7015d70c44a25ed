"""paced digits, of which one step of one member calls abort() in the middle of the compiled step:
whoever finds the file `abort`.
"""

import os

import tensorflow as tf
from paced import FOLDER, _taken, callbacks, custom_model, eval_metrics_fn, feed, optimizer  # noqa: F401
from paced import loss as plain_loss


def _step():
    if os.path.isdir(FOLDER) and _taken("abort"):
        os.abort()


def loss(labels, predictions):
    tf.py_function(_step, [], [])
    return plain_loss(labels, predictions)
