"""Preprocessing layers of the original ElasticDL, for Keras 3, with its names and arguments.

`feature_column` has columns and the layer `DenseFeatures`.
"""

from elasticdl.preprocessing import feature_column
from elasticdl.preprocessing.collecting import ConcatenateWithOffset, ToRagged, ToSparse
from elasticdl.preprocessing.embedding import SparseEmbedding
from elasticdl.preprocessing.lookup import Discretization, Hashing, IndexLookup, Normalizer
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
    "feature_column",
]
