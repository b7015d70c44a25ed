"""Hot paths of elasticdl, in C++. Each part says its own in `elasticdl/*/native`."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Weights: TypeAlias = NDArray[np.floating[Any]]
"""float32 or float64."""

# data: elasticdl/data/native

def crc32c(data: bytes, crc: int = 0) -> int: ...
def csv_index(
    source: int | Callable[[int, int], bytes],
    begin: int,
    size: int,
    delimiter: str,
    quoting: bool,
    columns: int,
    stride_records: int,
    stride_bytes: int,
) -> dict[str, Any]: ...
def csv_first_row(
    data: bytes, final: bool, delimiter: str, quoting: bool
) -> list[bytes] | None: ...
def csv_rows(
    data: bytes,
    delimiter: str,
    quoting: bool,
    skip: int,
    line: int,
    columns: int,
    out: NDArray[np.object_],
) -> tuple[int, int, list[tuple[int, str, bytes]]]: ...
def tfrecord_index(
    source: int | Callable[[int, int], bytes], size: int, stride_records: int, stride_bytes: int
) -> dict[str, Any]: ...
def tfrecord_rows(
    data: bytes, skip: int, out: NDArray[np.object_]
) -> tuple[int, int, list[int], int]: ...

# embedding: elasticdl/embedding/native. Arrays are C-contiguous and of exactly these dtypes, else
# TypeError; wrong shapes and values raise ValueError. The GIL is released.

class OptimizerSpec:
    """As elasticdl.embedding.spec.OptimizerSpec."""

    def __init__(
        self,
        kind: str,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        initial_accumulator_value: float = 0.1,
        learning_rate_power: float = -0.5,
        l1: float = 0.0,
        l2: float = 0.0,
        l2_shrinkage: float = 0.0,
        beta: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None: ...
    @property
    def slots(self) -> int: ...

class InitializerSpec:
    """As elasticdl.embedding.spec.InitializerSpec."""

    def __init__(self, kind: str, a: float, b: float) -> None: ...

class Table:
    """See embedding/native/table.h. All its arrays have the table's dtype."""

    def __init__(
        self,
        dim: int,
        initializer: InitializerSpec,
        optimizer: OptimizerSpec,
        seed: int,
        dtype: str = "float32",
    ) -> None: ...
    @property
    def dim(self) -> int: ...
    @property
    def row_floats(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def lookup(self, ids: NDArray[np.int64]) -> Weights: ...
    def peek(self, ids: NDArray[np.int64], view: int = -1) -> Weights: ...
    def apply(
        self,
        ids: NDArray[np.int64],
        gradients: Weights,
        learning_rate: float,
        step: int,
        squares: tuple[NDArray[np.uint64], Weights] | None = None,
    ) -> None: ...
    def advance(self, step: int, learning_rate: float = 0.0) -> None: ...
    def begin_view(self, view: int) -> None: ...
    def end_view(self, view: int) -> None: ...
    def view_rows(self, view: int) -> int: ...
    def read(
        self, view: int, first_row: int, max_rows: int
    ) -> tuple[NDArray[np.int64], Weights]: ...
    def insert(self, ids: NDArray[np.int64], values: Weights) -> None: ...

def unique_ids(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Distinct ids in order of first appearance, and for each id its index among them."""

def merge_rows(values: Weights, positions: NDArray[np.int32], count: int) -> Weights:
    """[count, dim]: out[positions[i]] += values[i], in order."""

def mark_repeated(positions: list[NDArray[np.int32]], count: int) -> NDArray[np.uint64]:
    """A bit for each row that has several positions, uint64[words of 64 rows]."""

def merge_squares(
    values: list[Weights], positions: list[NDArray[np.int32]], marks: NDArray[np.uint64], count: int
) -> Weights:
    """Of the rows that are marked, the sums of the squares of their values, [such rows, dim]."""

def update_dense(
    spec: OptimizerSpec,
    weights: Weights,
    slots: list[Weights],
    gradients: Weights,
    learning_rate: float,
    step: int,
) -> None:
    """One update in place of weights [n] and slots."""

# rpc: elasticdl/rpc/native. Raises the errors of elasticdl.errors; the GIL is released.

BULK_MAGIC: int
BULK_VERSION: int
"""Of the bulk plane's frames and greetings."""

class ParametersSpec:
    """As elasticdl.embedding.spec.ParametersSpec; `json` is the whole of it, which servers keep as
    it is.
    """

    def __init__(
        self,
        optimizer: OptimizerSpec,
        trainable: int,
        additive: int,
        json: str,
        dtype: str = "float32",
    ) -> None: ...
    def add_table(
        self, name: str, dim: int, initializer: InitializerSpec, seed: int, whole: bool = False
    ) -> None: ...
    @property
    def json(self) -> str: ...

class Pool:
    """Connections to all servers. At most one call of `push` and one of the others at a time;
    `move` and `close` any time.
    """

    def __init__(
        self,
        addresses: list[str],
        tokens: list[str],
        name: str,
        authority: str = "",
        precision: str = "float32",
        kept_bytes: int = 0,
    ) -> None:
        """`precision`: float32, bfloat16, or auto, which is faster. `kept_bytes`: of pushes."""

    def followed(self, addresses: list[str], tokens: list[str], first: int) -> Pool:
        """The same client with other servers; `first` is the index of the first.

        Call `adopt` before any call but `initialise`.
        """

    def adopt(self, spec: ParametersSpec) -> None:
        """Sets the spec of all later calls. Not while calls are running."""

    def pack(self, always: bool) -> None: ...
    def encodings(self) -> tuple[str, str]:
        """How pulls and pushes travel now: plain, packed or bfloat16."""

    def initialise(
        self, spec: ParametersSpec, dense: Weights, timeout_s: float
    ) -> list[tuple[bool, str]]:
        """For each server: whether it took the values, and the JSON of what it holds."""

    def pull(
        self,
        ids: list[NDArray[np.int64]],
        snapshot: int,
        dense: Weights | None,
        rows: list[Weights],
        newest: Weights | None,
        timeout_s: float,
        exact: bool,
    ) -> tuple[list[int], list[float]]:
        """Fills `dense` and `rows` in place; returns the versions, and how long each server took.

        `exact`: with every bit, whatever the pool's precision is. A server without parameters gets
        `newest`.
        """

    def push(
        self,
        sequence: int,
        applied: list[int],
        versions: list[int],
        learning_rate: float,
        dense: Weights | None,
        ids: list[NDArray[np.int64]],
        gradients: list[Weights],
        squares: list[tuple[NDArray[np.uint64], Weights]],
        spans: list[tuple[int, int]],
        dense_squares: Weights | None,
        newest: Weights | None,
        timeout_s: float,
    ) -> tuple[list[int], list[int], list[float], list[tuple[str, int]], bool, int]:
        """(versions, staleness, seconds until the answer), one a server; the servers that were met,
        as in `meet`; whether kept pushes fill half of their room; and the bytes of this one's
        largest part if it has no place there, else 0.
        """

    def meet(self, newest: Weights | None, timeout_s: float) -> list[tuple[str, int]]:
        """Push again what servers lack. Returns the addresses of those that were met since the last
        call of `push` or this, with the last push that each lacks for good, 0 for none.
        """

    def take_rest(self) -> list[tuple[str, int]]:
        """What the last call of `push` or `meet` would have returned had it not failed.

        Only when another pool follows this one.
        """

    def rows(
        self,
        server: int,
        table: int,
        snapshot: int,
        begin: int,
        newest: Weights | None,
        timeout_s: float,
    ) -> tuple[bool, int, NDArray[np.int64], Weights]:
        """(lost, total, ids, weights) of one page of a server's rows, in no particular order.

        Lost: the connection broke, and the table has to be read again from `begin` 0.
        """

    def move(self, addresses: list[str]) -> None: ...
    def close(self) -> None: ...

# ps: elasticdl/ps/native.

class Server:
    """One parameter server with its bulk plane. Thread-safe."""

    def __init__(
        self,
        server: int,
        servers: int,
        key: str,
        certificate: str = "",
        private_key: str = "",
        turns: int = 0,
        memory: str = "",
        run: str = "",
    ) -> None:
        """`turns` of a synchronous step: pushes wait until `apply_step` names them. 0: no steps.

        `memory` is the path of a file without a disk, in which the state of a server of this `run`
        outlives the process; '': it does not. Raises TransientError if another process still uses
        it, OSError.
        """

    def take_on(self) -> bool:
        """Take on what the process before has kept, before anything else.

        False if there is nothing, or nothing of use: `discarded` says why.
        """

    @property
    def discarded(self) -> str: ...
    @property
    def memory_id(self) -> int:
        """Tells this server's state from any other that is not its continuation; 0: not kept."""

    def listen(self, host: str, port: int = 0) -> int:
        """Serve the bulk plane from now on; the port."""

    @property
    def most_connections(self) -> int:
        """Connections of workers that it serves at once, by the limit of open files."""

    def stop(self) -> None:
        """End all connections and waits, and the threads of both."""

    def fence(self, worker: str) -> tuple[int, int, int, int, int] | None:
        """(session, sequence, shard, attempt, offset) of the last push, None if there was none."""

    def apply_step(self, number: int, contributions: list[tuple[str, int, float]]) -> int:
        """Apply the mean of these pushes (worker, sequence, examples) as one update; the version.

        A number that was applied before changes nothing.
        """

    def gate(self, timeout_s: float) -> dict[str, int]: ...
    def ungate(self) -> None: ...
    def recent_steps(self) -> list[tuple[int, list[tuple[str, int, float]]]]:
        """The newest steps in their order, and the pushes (worker, sequence, examples) of each."""

    def cut(self, snapshot: int, admit_until: dict[str, int], timeout_s: float) -> dict[str, Any]:
        """Facts of the view, as `view` has them."""

    def view(self, snapshot: int, base: int = -1) -> dict[str, Any]:
        """version, step_base, workers, rows, trainable, additive, slots, spec, tagged; delta and
        written.

        `delta`: the view knows which rows were changed since `base`. `written`: how many rows of
        each table `save` then writes, all or the changed ones.
        """

    def set_base(self, snapshot: int) -> None:
        """Note which rows are written after this view; nothing if there is no such view."""

    def drop(self, snapshot: int) -> None: ...
    def save(
        self, snapshot: int, path: str, header: str, delta: bool = False, pause_s: float = 0.0
    ) -> tuple[int, int, float, tuple[int, int, float] | None]:
        """Write a view to a file, durably; (bytes, CRC-32C, seconds of pauses, non-finite weight).

        `delta`: of the tables only the rows that were changed since the view's base. `pause_s`: of
        pauses for each byte at most; they leave a twentieth of a processor to it, and end when the
        copies of rows take half as much memory as all rows, or with `hurry`. Raises OSError.

        At the first weight that is NaN or infinite it stops and tells which: (table, id), or (-1,
        index in the dense vector), and its value. Otherwise that is None.
        """

    def hurry(self, snapshot: int) -> None:
        """Have this view written without further pauses; nothing if there is none."""

    def begin_restore(self, spec: ParametersSpec) -> None: ...
    def restore_dense(self, path: str, offset: int, section: int, at: int, count: int) -> None:
        """Sections: -2 additive weights, -1 trainable weights, 0, 1, ... slots. `at` counts within
        this server's slice.
        """

    def restore_rows(self, path: str, offset: int, rows: int, table: int, tagged: bool) -> int:
        """Insert those rows that this server owns; how many. `tagged`: the file has their tags."""

    def restore_worker(self, name: str, known: tuple[int, int, int, int, int]) -> None: ...
    def end_restore(self, version: int, step_base: int) -> None: ...
    def statistics(self) -> dict[str, Any]: ...
    @property
    def version(self) -> int: ...
    @property
    def has_state(self) -> bool: ...

class InterpreterWatch:
    """Writes the stacks of all threads to a descriptor when no Python code has run for `limit_s`.

    A thread of its own needs no interpreter lock. `signal` must be registered with faulthandler for
    the descriptor `channel` before `start`; `signal - 1` is taken, too. One object in a process.
    """

    def __init__(self, limit_s: float, output: int, signal: int, folder: str) -> None: ...
    @property
    def channel(self) -> int: ...
    def start(self) -> None: ...
    def alive(self, threads: list[tuple[int, str]]) -> None:
        """Python code runs; native ids and names of its threads. Call it about every second."""
