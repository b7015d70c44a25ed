"""DeepFM on precomputed ids: .npz arrays `numbers` float32[n, 13], `ids` int64[n, 26],
`label` float32[n, 1].

The fast form: `feed_batch` gets whole minibatches as tensors, so nothing runs for each record.
"""

import keras
from deepfm import CATEGORIES, eval_metrics_fn, loss, network, optimizer  # noqa: F401


def custom_model(vocabulary=26 * 100, dim=8, hidden=64):
    """{"numbers": float32[n, 13], "ids": int64[n, 26]} -> logit [n, 1]."""
    ids = keras.Input((CATEGORIES,), dtype="int64", name="ids")
    numbers, logit = network(ids, vocabulary, dim, hidden)
    return keras.Model({"numbers": numbers, "ids": ids}, logit)


def feed_batch(records, mode, metadata):
    """A minibatch of columns -> (features, labels)."""
    features = {"numbers": records["numbers"], "ids": records["ids"]}
    return features if mode == "prediction" else (features, records["label"])
