"""Small defects of a module from its syntax tree: a changed condition, constant or statement.

A mutant replaces the code object of one function, so everybody who has the function has the defect.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_UNSEEN = {"annotation", "returns", "decorator_list", "args"}
"""Fields that are evaluated when a function is defined, or never."""
_LOGS = ("_LOG.", "_log.", "log.", "logging.")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one function. `lines`: those of the statement that it is in."""

    module: str
    function: str
    """Qualified name of a function of the module or of a method."""
    number: int
    """Of the change among those of the function."""
    lines: tuple[int, int]
    text: str
    """The first of these lines, without its indentation."""
    change: str

    def __str__(self) -> str:
        return f"{self.module}:{self.lines[0]} {self.function}: {self.change}  |  {self.text}"


@dataclass(frozen=True, slots=True)
class Change:
    """One of a function. `apply` changes its tree."""

    lines: tuple[int, int]
    words: str
    apply: Callable[[], object]


def mutants_of(name: str) -> list[Mutant]:
    """All of a module below `elasticdl.`."""
    source = inspect.getsource(importlib.import_module(f"elasticdl.{name}"))
    lines = source.splitlines()
    return [
        Mutant(name, qualified, number, one.lines, lines[one.lines[0] - 1].strip(), one.words)
        for qualified, function in _functions(ast.parse(source))
        for number, one in enumerate(changes_of(function))
    ]


def prepare() -> None:
    """Find all functions, when all modules are imported and before there are forks."""
    _all_functions()


def put_in(mutant: Mutant) -> None:
    """Have this process run the mutant, for good.

    Raises LookupError if the function is not there, or needs other variables around it.
    """
    module = importlib.import_module(f"elasticdl.{mutant.module}")
    tree = ast.parse(inspect.getsource(module))
    function = dict(_functions(tree))[mutant.function]
    changes_of(function)[mutant.number].apply()
    path = str(module.__file__)
    changed = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
    first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
    codes = [code for code in _codes(changed) if _is(code, mutant.function, first)]
    found = _function_objects(module, mutant.function, first)
    free = {one.__code__.co_freevars for one in found}
    if len(codes) != 1 or free != {codes[0].co_freevars}:
        raise LookupError(f"cannot replace the code of {mutant}")
    for one in found:
        one.__code__ = codes[0]


def _is(code: CodeType, qualified: str, first: int) -> bool:
    return code.co_qualname == qualified and code.co_firstlineno == first


def _codes(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)


def _function_objects(module: ModuleType, qualified: str, first: int) -> list[FunctionType]:
    return [
        function
        for function in _all_functions()
        if function.__code__.co_filename == module.__file__
        and _is(function.__code__, qualified, first)
    ]


@functools.cache
def _all_functions() -> list[FunctionType]:
    """Those of the master. Once for all forks: there are many objects."""
    part = str(Path("elasticdl", "master"))
    # pytest's collection has frozen most objects, and those are not listed.
    gc.unfreeze()
    return [
        one
        for one in gc.get_objects()
        if isinstance(one, FunctionType) and part in one.__code__.co_filename
    ]


def _functions(tree: ast.Module | ast.ClassDef, begin: str = "") -> Iterator[tuple[str, Function]]:
    """Functions of the module and methods, each with its qualified name."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{begin}{node.name}.")
        elif isinstance(node, Function):
            yield begin + node.name, node


def changes_of(function: Function) -> list[Change]:
    """In the order of the source. Each `apply` changes the tree."""
    found: list[Change] = []
    for statement in function.body:
        _in_statement(statement, function.name == "__init__", found)
    return found


def _in_statement(statement: ast.stmt, initializes: bool, found: list[Change]) -> None:
    lines = _lines(statement)

    def add(words: str, apply: Callable[[], object]) -> None:
        found.append(Change(lines, words, apply))

    if isinstance(statement, ast.Assert) or _is_docstring(statement):
        return
    _of_statement(statement, initializes, add)
    for field, value in ast.iter_fields(statement):
        for place, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.stmt):
                _in_statement(child, initializes, found)
            elif isinstance(child, ast.match_case | ast.ExceptHandler):
                if isinstance(child, ast.match_case) and child.guard is not None:
                    _in_guard(child, child.guard, found)
                for inner in child.body:
                    _in_statement(inner, initializes, found)
            elif isinstance(child, ast.AST) and field not in _UNSEEN:
                _in_expression(child, _Slot(statement, field, place), add)


def _in_guard(case: ast.match_case, guard: ast.expr, found: list[Change]) -> None:
    lines = guard.lineno, guard.end_lineno or guard.lineno

    def add(words: str, apply: Callable[[], object]) -> None:
        found.append(Change(lines, words, apply))

    add("the condition is negated", lambda: _negate(case, "guard"))
    _in_expression(guard, _Slot(case, "guard", 0), add)


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a node is in its parent."""

    parent: ast.AST
    field: str
    place: int

    def put(self, node: ast.AST) -> None:
        value = getattr(self.parent, self.field)
        if isinstance(value, list):
            value[self.place] = node
        else:
            setattr(self.parent, self.field, node)


Add = Callable[[str, Callable[[], object]], None]


def _of_statement(statement: ast.stmt, initializes: bool, add: Add) -> None:
    def become(other: ast.stmt) -> Callable[[], object]:
        def apply() -> None:
            location = statement.lineno, statement.col_offset
            statement.__class__ = other.__class__
            statement.__dict__.clear()
            statement.__dict__.update(other.__dict__)
            statement.lineno, statement.col_offset = location

        return apply

    match statement:
        case ast.If() | ast.While():
            add("the condition is negated", lambda: _negate(statement, "test"))
        case ast.Return(value=None):
            add("no return", become(ast.Pass()))
        case ast.Return(value=value) if not isinstance(value, ast.Constant):
            add("returns None", become(ast.Return(None)))
        case ast.Continue():
            add("break for continue", become(ast.Break()))
        case ast.Break():
            add("continue for break", become(ast.Continue()))
        case ast.Raise() | ast.Delete():
            add("dropped", become(ast.Pass()))
        case ast.Expr() if not ast.unparse(statement).startswith(_LOGS):
            add("dropped", become(ast.Pass()))
        case ast.AugAssign(op=op):
            add("dropped", become(ast.Pass()))
            if other := _other_sign(op):
                add("the other sign", lambda: setattr(statement, "op", other))
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if not initializes:
            add("dropped", become(ast.Pass()))


def _in_expression(node: ast.AST, slot: _Slot, add: Add) -> None:
    if isinstance(node, ast.JoinedStr):
        return  # Words for people.
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                other = _COMPARISONS[type(op)]
                words = f"{type(op).__name__} becomes {other.__name__}"
                add(words, functools.partial(ops.__setitem__, place, other()))
        case ast.BoolOp(op=op):
            swapped = ast.Or() if isinstance(op, ast.And) else ast.And()
            add(f"{type(op).__name__} swapped", lambda: setattr(node, "op", swapped))
        case ast.BinOp(op=op) if sign := _other_sign(op):
            add("the other sign", lambda: setattr(node, "op", sign))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            add("no not", lambda: slot.put(operand))
        case ast.Constant(value=bool() as value):
            add(
                f"{value} becomes {not value}", functools.partial(slot.put, ast.Constant(not value))
            )
        case ast.Constant(value=int() | float() as value):
            add(
                f"{value} becomes {value + 1}", functools.partial(slot.put, ast.Constant(value + 1))
            )
        case ast.Name(id=name) if name in _NAMES:
            add(f"{_NAMES[name]} for {name}", lambda: setattr(node, "id", _NAMES[name]))
        case ast.IfExp():
            add("the condition is negated", lambda: _negate(node, "test"))
        case ast.comprehension(ifs=[_, *_] as ifs):
            add("an if less", ifs.pop)
    for field, value in ast.iter_fields(node):
        if isinstance(node, ast.Lambda) and field == "args":
            continue
        for place, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST):
                _in_expression(child, _Slot(node, field, place), add)


def _negate(node: ast.AST, field: str) -> None:
    setattr(node, field, ast.UnaryOp(ast.Not(), getattr(node, field)))


def _other_sign(op: ast.operator) -> ast.operator | None:
    match op:
        case ast.Add():
            return ast.Sub()
        case ast.Sub():
            return ast.Add()
    return None


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _lines(statement: ast.stmt) -> tuple[int, int]:
    """Of a simple statement, or of the head of another one."""
    last = statement.end_lineno or statement.lineno
    for body in (getattr(statement, "body", None), getattr(statement, "cases", None)):
        if body:
            first = (
                body[0].pattern.lineno if isinstance(body[0], ast.match_case) else body[0].lineno
            )
            last = max(statement.lineno, first - 1)
    return statement.lineno, last
