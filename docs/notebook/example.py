# %% [markdown]
# # A job from a notebook
# `elasticdl.train(...)` takes the flags of `elasticdl train`, in snake case. It checks the model
# and the data, starts the job's processes and returns a handle at once; the picture under the cell
# is updated until the job ends. With `image_name=...` the same call runs the job on a Kubernetes
# cluster.
#
# First some data, and a model module: a plain Keras model, a loss, an optimizer, and how records
# become features and labels.
# %%
import tempfile
from pathlib import Path

import numpy

folder = Path(tempfile.mkdtemp(prefix="notebook-"))
points = numpy.random.default_rng(1).normal(size=(24000, 2)).astype("float32")
classes = (points[:, 0] * points[:, 1] > 0).astype("float32")
numpy.savez(folder / "train.npz", point=points[:20000], label=classes[:20000])
numpy.savez(folder / "test.npz", point=points[20000:], label=classes[20000:])

module = """
import keras

def custom_model():
    hidden = keras.layers.Dense(32, activation="relu")
    return keras.Sequential([keras.Input((2,)), hidden, keras.layers.Dense(1)])

def loss(labels, predictions):
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, predictions)

def optimizer():
    return keras.optimizers.Adam(0.01)

def feed(dataset, mode, metadata):
    if mode == "prediction":
        return dataset.map(lambda record: record["point"])
    return dataset.map(lambda record: (record["point"], record["label"][None]))

def eval_metrics_fn():
    return {"accuracy": keras.metrics.BinaryAccuracy(threshold=0.0)}
"""
_ = (folder / "quadrants.py").write_text(module)
# %% [markdown]
# Two workers and a parameter server, as processes of this machine:
# %%
import elasticdl

job = elasticdl.train(
    model_zoo=str(folder),
    model_def="quadrants",
    training_data=str(folder / "train.npz"),
    validation_data=str(folder / "test.npz"),
    num_epochs=4,
    minibatch_size=64,
    num_workers=2,
    num_ps_pods=1,
    checkpoint_steps=500,
    job_name="quadrants",
    job_dir=str(folder / "job"),
)
# %% [markdown]
# The handle tells how the job is doing, and steers it while it runs:
# %%
status = job.status()
expected, processes = status.records.expected, len(status.processes)
print(f"{status.message} - {expected} records expected, {processes} processes")
job.scale(1, 3)
# %% [markdown]
# `wait` returns how it ended, and raises what went wrong. Every record is accounted for, whatever
# became of workers meanwhile:
# %%
outcome = job.wait(timeout_s=600)
print({name: round(value, 2) for name, value in outcome.metrics.items()})
print(outcome.receipt["total"])
# %% [markdown]
# Its checkpoints can be evaluated, predicted with, exported or gone on from
# (`checkpoint_dir_for_init=`, `resume=True`); its directory is readable long after the job:
# %%
print(sorted(path.name for path in (folder / "job").iterdir()))
