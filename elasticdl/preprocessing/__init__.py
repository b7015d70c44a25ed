"""Preprocessing layers of the original ElasticDL, for Keras 3.

`Hashing`, `Discretization`, `IndexLookup` and `Normalizer` are names of Keras' own layers. The
others are what Keras does not have.
"""

from keras.layers import Discretization, Hashing
from keras.layers import Normalization as Normalizer
from keras.layers import StringLookup as IndexLookup

from elasticdl.preprocessing.collecting import ConcatenateWithOffset, ToRagged, ToSparse
from elasticdl.preprocessing.embedding import SparseEmbedding
from elasticdl.preprocessing.numeric import LogRound, RoundIdentity, ToNumber
from elasticdl.preprocessing.statistics import ColumnStatistics, Statistics

__all__ = [
    "ColumnStatistics",
    "ConcatenateWithOffset",
    "Discretization",
    "Hashing",
    "IndexLookup",
    "LogRound",
    "Normalizer",
    "RoundIdentity",
    "SparseEmbedding",
    "Statistics",
    "ToNumber",
    "ToRagged",
    "ToSparse",
]
