"""A small transformer that predicts the next token: .npz array `tokens` int64[n, 33].

After Vaswani et al., Attention Is All You Need (2017), with the normalization before each part.
"""

import keras
from keras import layers, ops

TOKENS, LENGTH = 64, 32


def custom_model(dim=32, heads=2, depth=2, dropout=0.0):
    """int64[n, 32] -> logits of the next tokens, [n, 32, 64]."""
    tokens = keras.Input((LENGTH,), dtype="int64", name="tokens")
    places = ops.zeros_like(tokens) + ops.arange(LENGTH, dtype="int64")
    values = layers.Embedding(TOKENS, dim, name="of_tokens")(tokens)
    values += layers.Embedding(LENGTH, dim, name="of_places")(places)
    for _ in range(depth):
        normal = layers.LayerNormalization()(values)
        attention = layers.MultiHeadAttention(heads, dim // heads, dropout=dropout)
        values += attention(normal, normal, use_causal_mask=True)
        hidden = layers.Dense(4 * dim, activation="gelu")(layers.LayerNormalization()(values))
        values += layers.Dropout(dropout)(layers.Dense(dim)(hidden))
    return keras.Model(tokens, layers.Dense(TOKENS)(layers.LayerNormalization()(values)))


def loss(labels, predictions):
    """Mean cross-entropy of an example's tokens, [n]."""
    each = keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)
    return ops.mean(each, axis=1)


def optimizer(lr=0.003):
    """Adam with weight decay."""
    return keras.optimizers.AdamW(lr, weight_decay=0.01)


def feed_batch(records, mode, metadata):
    """A minibatch of sequences -> (tokens, the tokens that follow)."""
    tokens = records["tokens"]
    return tokens[:, :LENGTH] if mode == "prediction" else (tokens[:, :LENGTH], tokens[:, 1:])


def eval_metrics_fn():
    """Share of right tokens."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
