"""The parameters of a job over the bulk plane.

The hot paths are C++ (rpc/native); this module handles arrays and their shapes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np

from elasticdl.embedding.fits import check_fits
from elasticdl.embedding.spec import ParametersSpec
from elasticdl.errors import TransientError, UserError
from elasticdl.formatting import size
from elasticdl.job_choices import WirePrecision
from elasticdl.native import _native
from elasticdl.rpc.native_spec import native_spec
from elasticdl.rpc.parameters import (
    Floats,
    Int64s,
    Pulled,
    Pushed,
    RowsPage,
    Update,
    aligned,
)
from elasticdl.shard import SnapshotId

T = TypeVar("T")

_LIVE = -1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Servers:
    """The servers that share the parameters: `number` of them, from index `first` on."""

    pool: _native.Pool
    first: int
    number: int


@final
class ServerPool:
    """`elasticdl.rpc.parameters.Parameters` of real servers.

    Has two connections to each server, one to push and one for everything else, and renews them
    when they break. Calls of one kind queue.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        name: str,
        tokens: Sequence[str],
        *,
        authority: str | None = None,
        precision: WirePrecision = WirePrecision.FLOAT32,
        first: int = 0,
        kept_bytes: int = 0,
    ) -> None:
        """`addresses`: bulk addresses (host:port) in index order, '' for a missing server.

        `name` is this process's name, `tokens` are what it shows to each server. `authority` (PEM)
        signs the servers' certificates; None: clear text. `precision`: of gradients, and of the
        weights of live pulls that need not be exact; AUTO decides by the time that requests take,
        and sends every bit of a float64 model. `first`: the index of the first server.
        `kept_bytes`: of acknowledged pushes that are kept until a checkpoint has them.
        """
        pool = _native.Pool(
            list(addresses),
            list(tokens),
            name,
            authority or "",
            precision.value,
            kept_bytes,
        )
        if first:
            pool = pool.followed(list(addresses), list(tokens), first)
        self._servers = _Servers(pool, first, len(addresses))
        self._pushed_to = pool
        """The pool of the last push; guarded by `_pushing`."""
        self._untold: dict[str, int] = {}
        """What replaced pools have met and no caller has heard; guarded by `_pushing`."""
        self._kept_bytes = kept_bytes
        self._told_too_large = False
        self._closed = False
        self._following = threading.Lock()
        """Held while the pool or the spec is replaced, so that each pool has the spec."""
        self._encodings = ("plain", "plain")
        self._spec: ParametersSpec | None = None
        self._newest: Floats | None = None
        self._pulling = threading.Lock()
        self._pushing = threading.Lock()

    @property
    def servers(self) -> int:
        return self._servers.number

    def initialise(self, spec: ParametersSpec, dense: Floats, *, timeout_s: float) -> bool:
        """See `Parameters.initialise`. `dense`: [trainable_size + additive_size]; copied."""
        flat = np.array(dense, spec.dtype.value)
        with self._pulling, self._pushing:
            answers = self._call(
                timeout_s, lambda to, left_s: to.pool.initialise(native_spec(spec), flat, left_s)
            )
            for server, (took, json) in enumerate(answers, self._servers.first):
                if not took:
                    theirs = ParametersSpec.model_validate_json(json)
                    check_fits(theirs, spec, f"what ps-{server} holds")
            with self._following:
                self._spec = spec
                # The servers may have changed since.
                self._servers.pool.adopt(native_spec(spec))
            # Initial values must never replace trained ones.
            self._newest = flat if all(took for took, _ in answers) else None
        return any(took for took, _ in answers)

    def pull(
        self,
        ids: Sequence[Int64s],
        *,
        dense: bool = True,
        snapshot: SnapshotId | None = None,
        exact: bool = False,
        timeout_s: float,
    ) -> Pulled:
        """See `Parameters.pull`.

        The arrays are read-only.
        """
        spec = self._known()
        if len(ids) != len(spec.tables):
            raise UserError(f"ids of {len(ids)} tables, the model has {len(spec.tables)}")
        rows = [
            aligned((len(part), table.dim), spec.dtype.value)
            for part, table in zip(ids, spec.tables, strict=True)
        ]
        flat = (
            aligned((spec.trainable_size + spec.additive_size,), spec.dtype.value)
            if dense
            else None
        )
        with self._pulling:
            versions, seconds = self._call(
                timeout_s,
                lambda to, left_s: to.pool.pull(
                    list(ids),
                    _LIVE if snapshot is None else snapshot,
                    flat,
                    rows,
                    self._newest,
                    left_s,
                    exact or snapshot is not None,
                ),
            )
        self._tell_encodings()
        for part in rows:
            part.flags.writeable = False
        if flat is not None:
            flat.flags.writeable = False
            # Values of a view are older and must not revive a server.
            if snapshot is None:
                self._newest = flat
        return Pulled(tuple(versions), flat, tuple(rows), tuple(seconds))

    def push(self, update: Update, *, timeout_s: float) -> Pushed:
        """See `Parameters.push`.

        After a TransientError the same update may be pushed again: it is still applied once.
        """
        self._known()
        applied = [update.applied.shard, update.applied.attempt, update.applied.offset]
        ids, gradients = list(update.ids), list(update.gradients)
        squares = list(update.squares)
        spans: list[tuple[int, int]] = []
        dense_squares: Floats | None = None
        if update.dense_squares is not None:
            spans, dense_squares = list(update.dense_squares.spans), update.dense_squares.sums

        def attempt(
            to: _Servers, left_s: float
        ) -> tuple[list[int], list[int], list[float], list[tuple[str, int]], bool, int]:
            pulled = list(update.versions)
            if len(pulled) != to.number:
                # Pulled from other servers, whose parameters these took over at one version.
                pulled = [min(pulled)] * to.number
            return self._pushing_to(to).push(
                update.sequence,
                applied,
                pulled,
                update.learning_rate,
                update.dense,
                ids,
                gradients,
                squares,
                spans,
                dense_squares,
                self._newest,
                left_s,
            )

        with self._pushing:
            reply = self._call(timeout_s, attempt)
            versions, staleness, seconds, met, crowded, too_large = reply
            self._tell_too_large(too_large)
            all_met = self._take_met(met)
        return Pushed(tuple(versions), tuple(staleness), tuple(seconds), all_met, crowded)

    def meet(self, *, timeout_s: float) -> Mapping[str, int]:
        self._known()
        with self._pushing:
            met = self._call(
                timeout_s, lambda to, left_s: self._pushing_to(to).meet(self._newest, left_s)
            )
            return self._take_met(met)

    def rows(
        self,
        table: int,
        server: int,
        begin: int,
        *,
        snapshot: SnapshotId | None,
        timeout_s: float,
    ) -> RowsPage:
        self._known()
        view = _LIVE if snapshot is None else snapshot
        with self._pulling:
            page = self._call(
                timeout_s,
                lambda to, left_s: to.pool.rows(server, table, view, begin, self._newest, left_s),
            )
        return RowsPage(*page)

    def pack(self, *, always: bool) -> None:
        """Pack all frames, or none that need not be, instead of trying what is faster."""
        with self._pulling, self._pushing:
            self._servers.pool.pack(always)

    def move(self, addresses: Sequence[str], first: int = 0, tokens: Sequence[str] = ()) -> None:
        with self._following:
            before = self._servers.pool
            if first == self._servers.first:
                return before.move(list(addresses))
            pool = before.followed(list(addresses), list(tokens), first)
            if self._spec is not None:
                pool.adopt(native_spec(self._spec))
            if self._closed:
                pool.close()
            self._servers = _Servers(pool, first, len(addresses))
        # Last: calls in progress end, and begin again with the new servers.
        before.close()

    def close(self) -> None:
        with self._following:
            self._closed = True
            self._servers.pool.close()

    def _call(self, timeout_s: float, attempt: Callable[[_Servers, float], T]) -> T:
        """Call `attempt(servers, timeout_s)`, and again if the servers change meanwhile."""
        end_s = time.monotonic() + timeout_s
        while True:
            servers = self._servers
            try:
                return attempt(servers, max(0.0, end_s - time.monotonic()))
            except TransientError:
                if self._servers is servers or time.monotonic() >= end_s:
                    raise

    def _tell_encodings(self) -> None:
        encodings = self._servers.pool.encodings()
        if encodings != self._encodings:
            self._encodings = encodings
            _log.info("pulls travel as %s frames, pushes as %s frames", *encodings)

    def _pushing_to(self, to: _Servers) -> _native.Pool:
        """The pool of these servers. One before it has ended its last call."""
        if to.pool is not self._pushed_to:
            self._untold.update(self._pushed_to.take_rest())
            self._pushed_to = to.pool
        return to.pool

    def _take_met(self, met: Sequence[tuple[str, int]]) -> dict[str, int]:
        untold, self._untold = self._untold, {}
        return {**untold, **dict(met)}

    def _tell_too_large(self, part_bytes: int) -> None:
        if part_bytes and not self._told_too_large:
            self._told_too_large = True
            _log.warning(
                "a push of %s to one server is larger than the %s in which this worker keeps"
                " pushes: a server that is lost loses it",
                size(part_bytes),
                size(self._kept_bytes // self._servers.number),
            )

    def _known(self) -> ParametersSpec:
        if self._spec is None:
            raise UserError("call initialise() before the first pull, push or rows")
        return self._spec
