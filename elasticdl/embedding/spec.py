"""The parameters of a job without their values: frozen values that travel to the servers as JSON.

Dense weights of a model are one flat vector: first all trainable weights, then the
*additive* ones. These are non-trainable float state such as BatchNorm's moving averages; workers
push differences and servers add them. Server `k` of `n` owns an even slice of each part, whatever
variable the elements belong to. Server `id mod n` owns a table's row (remainder >= 0, for negative
ids, too).
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

# As rpc/native/spec.cc and embedding/native/table.h have them.
MAX_DIM = 1 << 16
MAX_DENSE_BYTES = 1 << 30
MAX_TABLES = 4096


class Dtype(StrEnum):
    """The type of all weights, slots and gradients of a job, as NumPy and Keras name it."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @property
    def bytes(self) -> int:
        """Size of one value."""
        return 8 if self is Dtype.FLOAT64 else 4


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OptimizerKind(StrEnum):
    """Update rules of the servers; each equals the Keras optimizer of the same name."""

    SGD = "sgd"
    ADAM = "adam"
    ADAGRAD = "adagrad"
    FTRL = "ftrl"


class OptimizerSpec(_Frozen):
    """An update rule and its constants; unused ones keep their defaults.

    The learning rate is not part of it: workers evaluate the schedule at the version of their step,
    and send the value with each push. Workers also clip, since that needs whole gradients.
    """

    kind: OptimizerKind
    momentum: float = 0.0
    nesterov: bool = False
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False
    initial_accumulator_value: float = 0.1
    learning_rate_power: float = -0.5
    l1: float = 0.0
    l2: float = 0.0
    l2_shrinkage: float = 0.0
    beta: float = 0.0
    weight_decay: float = 0.0
    """Decoupled: weight -= weight * weight_decay * learning_rate, before the update. 0 is none."""

    @property
    def squares(self) -> bool:
        """Whether the rule squares gradients."""
        return self.kind is not OptimizerKind.SGD

    @property
    def slots(self) -> int:
        """Optimizer values kept beside each weight."""
        match self.kind:
            case OptimizerKind.SGD:
                return 1 if self.momentum else 0
            case OptimizerKind.ADAM:
                return 3 if self.amsgrad else 2
            case OptimizerKind.ADAGRAD:
                return 1
            case OptimizerKind.FTRL:
                return 2


class InitializerKind(StrEnum):
    """The distribution of a row's initial values, which depend only on (table seed, id)."""

    CONSTANT = "constant"
    UNIFORM = "uniform"
    NORMAL = "normal"
    TRUNCATED_NORMAL = "truncated_normal"


class InitializerSpec(_Frozen):
    """`a` and `b`: value and unused | minimum and maximum | mean and standard deviation (twice)."""

    kind: InitializerKind = InitializerKind.UNIFORM
    a: float = -0.05
    b: float = 0.05


class TableSpec(_Frozen):
    """One embedding table: rows of `dim` weights by int64 id, made when first touched."""

    name: str
    dim: int
    initializer: InitializerSpec = InitializerSpec()
    seed: int = 0
    whole: bool = False
    """Its gradient in Keras is one matrix, since a regularizer adds to it: a synchronous step
    squares the mean of its gradients.
    """


class DenseSpec(_Frozen):
    """One dense variable, `path` as Keras names it.

    Order in `ParametersSpec.dense` is order in the flat vector.
    """

    path: str
    shape: tuple[int, ...]
    additive: bool = False

    @property
    def size(self) -> int:
        size = 1
        for extent in self.shape:
            size *= extent
        return size


class ParametersSpec(_Frozen):
    """Everything that a server must know to hold a job's parameters.

    Additive variables come after all others.
    """

    optimizer: OptimizerSpec
    dense: tuple[DenseSpec, ...] = ()
    tables: tuple[TableSpec, ...] = ()
    dtype: Dtype = Dtype.FLOAT32

    @property
    def trainable_size(self) -> int:
        """Elements of the flat vector that the optimizer updates."""
        return sum(variable.size for variable in self.dense if not variable.additive)

    @property
    def additive_size(self) -> int:
        """Elements of the flat vector to which pushes are added."""
        return sum(variable.size for variable in self.dense if variable.additive)

    def problem(self) -> str | None:
        """Why no server can hold these parameters, None if one can. Nothing is allocated for it."""
        if any(extent < 0 for variable in self.dense for extent in variable.shape):
            return "a variable has a negative shape"
        most = MAX_DENSE_BYTES // self.dtype.bytes
        if max(self.trainable_size, self.additive_size) > most:
            return f"more than {most} dense weights"
        if len(self.tables) > MAX_TABLES:
            return f"{len(self.tables)} tables, at most {MAX_TABLES} are possible"
        for table in self.tables:
            if not 1 <= table.dim <= MAX_DIM:
                return f"table {table.name} has dimension {table.dim}: expected 1 to {MAX_DIM}"
        return None

    def weight_name(self, table: int, at: int) -> str:
        """A weight in words: `row 17 of table items` (`at` is an id), or `dense/kernel[12]`
        (`table` is -1, `at` an index in the flat vector).
        """
        if table >= 0:
            return f"row {at} of table {self.tables[table].name}"
        for variable in self.dense:
            if at < variable.size:
                return f"{variable.path}[{at}]"
            at -= variable.size
        raise IndexError(f"a weight {at} beyond the last variable")


def even_slice(size: int, part: int, parts: int) -> slice:
    """Part `part` of `parts` of range(size): contiguous, in order, sizes differ by at most one."""
    return slice(size * part // parts, size * (part + 1) // parts)
