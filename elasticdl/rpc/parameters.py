"""The parameters of a job for a worker: one pull and one push per step, for any number of servers.

`ps_client.py` implements the protocol over the bulk plane; tests implement it in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from elasticdl.embedding.spec import ParametersSpec
from elasticdl.shard import Applied, SnapshotId

Floats: TypeAlias = NDArray[np.floating[Any]]
"""float32 or float64, as the spec's dtype says."""
Int64s: TypeAlias = NDArray[np.int64]

Squares: TypeAlias = tuple[NDArray[np.uint64], Floats]
"""Of the ids of a table that a minibatch has more than once: a bit for each in uint64[words of 64],
and the sums of the squares of their gradients, [such ids, dim].

Keras squares each of these gradients, so the square of their sum would be another optimizer.
"""


@dataclass(frozen=True, slots=True)
class DenseSquares:
    """The same of embeddings that are no tables: all their weights, in spans of the flat vector.

    `spans` are (begin, end) in their order, `sums` is [weights in all spans].
    """

    spans: tuple[tuple[int, int], ...]
    sums: Floats


ALIGNMENT = 64
"""TensorFlow uses an array in place if it begins at a multiple of so many bytes."""


def aligned(shape: tuple[int, ...], dtype: str) -> Floats:
    """An uninitialized array that begins at a multiple of `ALIGNMENT` bytes."""
    count, width = math.prod(shape), np.dtype(dtype).itemsize
    room = np.empty(count * width + ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    return room[begin : begin + count * width].view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class Pulled:
    """Parameters as of `versions` (one per server).

    `dense` is the flat vector [trainable_size + additive_size], None if not requested.
    `rows[t]` is [len(ids[t]), dim of table t], in the order of the requested ids. Nobody may write
    to these arrays: steps use them in place, and `dense` may have to revive a server. `seconds` is
    how long each server took to answer; () if that is not known.
    """

    versions: tuple[int, ...]
    dense: Floats | None
    rows: tuple[Floats, ...]
    seconds: tuple[float, ...] = field(default=(), compare=False)

    @property
    def version(self) -> int:
        """The version of the model: that of the least advanced server."""
        return min(self.versions)


@dataclass(frozen=True, slots=True)
class Update:
    """One step's gradients.

    Applied exactly once per (worker, `sequence`), which starts at 1 and grows by 1.

    `dense` is [trainable_size + additive_size] or None: gradients, then differences for the
    additive part.
    `ids[t]` are distinct; `gradients[t]` is [len(ids[t]), dim of table t], duplicates
    already summed. `squares[t]` has the squares of these; () if no id repeats. `dense_squares` has
    those of gradients in `dense`; all others are squared by the servers.
    `versions` are those of the pull that the step computed on: servers measure staleness by them.
    """

    sequence: int
    applied: Applied
    versions: tuple[int, ...]
    learning_rate: float
    dense: Floats | None
    ids: tuple[Int64s, ...] = field(default=())
    gradients: tuple[Floats, ...] = field(default=())
    squares: tuple[Squares, ...] = field(default=())
    dense_squares: DenseSquares | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Pushed:
    """Versions after the update, and updates of others between pull and push, per server.

    `seconds` is how long each server took to answer; () if that is not known. `met`: addresses of
    servers that this process has met since the last push, with the last of its pushes that each
    lacks for good, 0 for none. `crowded`: pushes that no checkpoint has fill half of their room.
    """

    versions: tuple[int, ...]
    staleness: tuple[int, ...]
    seconds: tuple[float, ...] = field(default=(), compare=False)
    met: Mapping[str, int] = field(default_factory=dict, compare=False)
    crowded: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class RowsPage:
    """Some rows of one server: ids int64[n], weights [n, dim]; `total` is how many it has.

    `lost`: the connection broke, and the rows have to be read again from the first.
    """

    lost: bool
    total: int
    ids: Int64s
    weights: Floats


class Parameters(Protocol):
    """Thread-safe for one puller and one pusher at a time.

    Every call ends within `timeout_s`. Raises Refused when this worker was fenced; TransientError
    when a server is away longer than that, and the caller decides whether to keep waiting;
    UserError, with the first variable that differs, when the model does not fit the servers'.
    """

    @property
    def servers(self) -> int:
        """How many servers share the parameters."""

    def initialise(self, spec: ParametersSpec, dense: Floats, *, timeout_s: float) -> bool:
        """Give servers that have no state the spec and initial dense values; True if any took them.

        A server with state compares the spec instead. A server that comes back empty gets the
        newest pulled dense values from `pull` and `push`.
        """

    def pull(
        self,
        ids: Sequence[Int64s],
        *,
        dense: bool = True,
        snapshot: SnapshotId | None = None,
        exact: bool = False,
        timeout_s: float,
    ) -> Pulled:
        """Weights for one step.

        `ids[t]`: distinct int64 ids of table t (may be empty). Rows are made if missing;
        from a snapshot they are computed but not made. Weights of a snapshot are `exact`: every
        bit is as the servers have it. Others may be rounded, as the job's --wire-precision says.
        """

    def push(self, update: Update, *, timeout_s: float) -> Pushed:
        """Apply one step's gradients on every server, once.

        A server that came back with an older state first gets again the pushes that it lacks.
        """

    def meet(self, *, timeout_s: float) -> Mapping[str, int]:
        """Push again what servers lack that came back with an older state; see `Pushed.met`."""

    def rows(
        self,
        table: int,
        server: int,
        begin: int,
        *,
        snapshot: SnapshotId | None,
        timeout_s: float,
    ) -> RowsPage:
        """The rows from `begin` on that a server has ever made, in its own order. For export.

        At `begin` 0 the server freezes a live table for this connection.
        """

    def move(self, addresses: Sequence[str], first: int = 0, tokens: Sequence[str] = ()) -> None:
        """Servers have new addresses, in index order; '' is unavailable.

        Calls in progress continue with the new ones. With another `first` index the parameters are
        on other servers, maybe of another number; `tokens` are what this process shows to each.
        """

    def close(self) -> None:
        """Close the connections. Calls in progress raise TransientError."""
