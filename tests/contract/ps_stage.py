"""Real servers over loopback, in this process, and a bad network between them and their clients."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import numpy as np

from elasticdl.embedding.spec import (
    DenseSpec,
    InitializerKind,
    InitializerSpec,
    OptimizerKind,
    OptimizerSpec,
    ParametersSpec,
    TableSpec,
)
from elasticdl.job_choices import WirePrecision
from elasticdl.native import _native
from elasticdl.rpc.parameters import Floats, Int64s, Update
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.shard import Applied, ShardId, SnapshotId
from elasticdl.tls.authority import Authority
from elasticdl.tokens import bulk_key, bulk_token

TOKEN = "the job's token"
LIMIT_S = 20.0

ZERO = InitializerSpec(kind=InitializerKind.CONSTANT, a=0.0, b=0.0)


def counting_spec(dense: int = 6, dim: int = 2) -> ParametersSpec:
    """Plain SGD on zeros: with learning rate 1 and gradients of 1, minus a weight is the number of
    updates it had.
    """
    return ParametersSpec(
        optimizer=OptimizerSpec(kind=OptimizerKind.SGD),
        dense=(DenseSpec(path="w", shape=(dense,)),),
        tables=(TableSpec(name="t", dim=dim, initializer=ZERO),),
    )


def rich_spec() -> ParametersSpec:
    """Everything at once: slots, an additive part, two tables of odd sizes, random rows."""
    return ParametersSpec(
        optimizer=OptimizerSpec(kind=OptimizerKind.ADAM),
        dense=(
            DenseSpec(path="kernel", shape=(7, 3)),
            DenseSpec(path="bias", shape=(5,)),
            DenseSpec(path="mean", shape=(11,), additive=True),
        ),
        tables=(TableSpec(name="a", dim=5, seed=3), TableSpec(name="b", dim=1, seed=-4)),
    )


def shown(servers: int, name: str, token: str = TOKEN, first: int = 0) -> list[str]:
    """What a worker shows to each server of a job."""
    return [bulk_token(bulk_key(token, first + server), name) for server in range(servers)]


class Stage:
    """`count` servers and any number of clients; everything is closed at the end."""

    def __init__(
        self,
        count: int = 1,
        token: str = TOKEN,
        authority: Authority | None = None,
        *,
        turns: int = 0,
        first: int = 0,
    ) -> None:
        """`authority`: of the servers' certificates; None: clear text.

        `first`: the index of the first server.
        """
        self._first = first
        self._open = ExitStack()
        self._trusted = authority.certificate if authority else None
        self._turns = turns
        self._new = partial(self._server, count=count, token=token, authority=authority)
        self.servers = [self._new(k) for k in range(count)]
        self.addresses = [f"127.0.0.1:{server.listen('127.0.0.1')}" for server in self.servers]
        for server in self.servers:
            self._open.callback(server.stop)

    def _server(
        self, k: int, count: int, token: str, authority: Authority | None
    ) -> _native.Server:
        if authority is None:
            return _native.Server(k, count, bulk_key(token, self._first + k), turns=self._turns)
        certified = authority.certified_key([f"ps-{k}"])
        return _native.Server(
            k, count, bulk_key(token, k), certified.certificate, certified.key, turns=self._turns
        )

    def pool(
        self,
        name: str = "worker-0",
        token: str = TOKEN,
        addresses: Sequence[str] | None = None,
        precision: WirePrecision = WirePrecision.FLOAT32,
        kept_bytes: int = 0,
    ) -> ServerPool:
        places = addresses or self.addresses
        pool = ServerPool(
            places,
            name,
            shown(len(places), name, token),
            authority=self._trusted,
            precision=precision,
            kept_bytes=kept_bytes,
        )
        self._open.callback(pool.close)
        return pool

    def lose(self, k: int, restore: Callable[[_native.Server], object] = lambda _: None) -> None:
        """A server ends with its memory. The next one restores something, and listens."""
        self.servers[k].stop()
        self.servers[k] = self._new(k)
        restore(self.servers[k])
        self.addresses[k] = f"127.0.0.1:{self.servers[k].listen('127.0.0.1')}"
        self._open.callback(self.servers[k].stop)

    def behind(self, network: BadNetwork) -> BadNetwork:
        self._open.callback(network.close)
        return network

    def close(self) -> None:
        self._open.close()

    def cut(self, snapshot: int, timeout_s: float = LIMIT_S) -> list[dict[str, Any]]:
        """What the master does: gate all, let in what any server has, freeze all, open."""
        numbers: dict[str, int] = {}
        for server in self.servers:
            for name, number in server.gate(timeout_s).items():
                numbers[name] = max(number, numbers.get(name, 0))
        cuts: list[dict[str, Any]] = []
        try:
            cuts.extend(server.cut(snapshot, numbers, timeout_s) for server in self.servers)
        finally:
            for server in self.servers:
                server.ungate()
        return cuts


def update(
    sequence: int,
    versions: Sequence[int],
    dense: Floats | None,
    ids: Sequence[int] = (),
    dim: int = 2,
) -> Update:
    """Gradients of 1 for rows; learning rate 1; the first `10 * sequence` records of shard 7 are
    done.
    """
    return Update(
        sequence=sequence,
        applied=Applied(ShardId(7), 0, 10 * sequence),
        versions=tuple(versions),
        learning_rate=1.0,
        dense=dense,
        ids=(as_ids(ids),),
        gradients=(np.ones((len(ids), dim), np.float32),),
    )


def as_ids(ids: Sequence[int]) -> Int64s:
    return np.array(ids, np.int64)


class BadNetwork:
    """A proxy that breaks connections at random places, in either direction, `breaks` times in
    all, and carries at most so many bytes a second in each direction.
    """

    def __init__(
        self, target: str, seed: int, breaks: int, bytes_per_s: float | None = None
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._pieces = [16, 100, 4096] if bytes_per_s is None else [1 << 15]
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._random = random.Random(seed)
        self.breaks_left = breaks
        self._heard: list[bytearray] = []
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    @property
    def overheard(self) -> bytes:
        """All that it carried, one direction of a connection after the other."""
        with self._lock:
            return b" ".join(self._heard)

    def _start(self, work: Callable[..., object], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def cut(self) -> None:
        """Break all connections; new ones work."""
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for end in (client, server):
                    # Or each small piece waits for the answer to the one before.
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [client, server]
                self._start(self._carry, client, server)
                self._start(self._carry, server, client)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        heard = bytearray()
        self._heard.append(heard)
        with suppress(OSError):
            while data := source.recv(self._random.choice(self._pieces)):
                if self._bytes_per_s is not None:
                    time.sleep(len(data) / self._bytes_per_s)
                with self._lock:
                    broken = self.breaks_left > 0 and self._random.random() < 0.03
                    self.breaks_left -= broken
                    heard += data
                sink.sendall(data[: self._random.randint(0, len(data))] if broken else data)
                if broken:
                    break
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT_S)
        for end in self._sockets:
            end.close()


def all_rows(
    pool: ServerPool, table: int, snapshot: SnapshotId | None = None
) -> tuple[Int64s, Floats]:
    """All rows of a table: ids ascending, weights."""
    ids, weights = [], []
    for server in range(pool.servers):
        begin, total = 0, 1
        while begin < total:
            page = pool.rows(table, server, begin, snapshot=snapshot, timeout_s=LIMIT_S)
            assert not page.lost
            ids.append(page.ids)
            weights.append(page.weights)
            begin, total = begin + len(page.ids), page.total
    order = np.argsort(np.concatenate(ids))
    return np.concatenate(ids)[order], np.concatenate(weights)[order]
