"""Run user code: turn whatever it raises into a UserError that names the user's file and line."""

from __future__ import annotations

import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from elasticdl.errors import ElasticDLError, UserError
from elasticdl.original_names import MIGRATING, PACKAGES, instead_of_import


def place(function: Callable[..., Any]) -> str:
    """`file:line` of the definition of a function or class; its name if Python knows no file."""
    function = inspect.unwrap(function)
    try:
        return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
    except (TypeError, OSError):
        return getattr(function, "__qualname__", repr(function))


def wrong_result(
    function: Callable[..., Any], name: str, value: object, expected: str, hint: str = ""
) -> UserError:
    """The error for what a user's function returned: its place, the value, and what to do."""
    shown = type(value).__name__
    if value is None:
        shown, hint = "None", f"return it at the end of {name}"
    elif isinstance(value, type):
        shown, hint = f"the class {value.__name__}", f"call it: {value.__name__}(...)"
    elif inspect.isgenerator(value):
        hint = f"replace yield in {name} with return"
    elif inspect.iscoroutine(value):
        value.close()
        hint = f"remove async from {name}"
    return UserError(f"{place(function)}: {name} returned {shown}, expected {expected}", hint=hint)


@contextmanager
def user_code(doing: str, zoo: str, function: Callable[..., Any] | None = None) -> Iterator[None]:
    """Run user code in the body; `doing` completes the sentence "... raised ValueError: ...".

    If no frame of an error is in the user's files, its place is the definition of `function`.

    Raises:
        UserError: for any exception, and for SystemExit, with only the user's own frames (files
            below `zoo`). An ElasticDLError passes unchanged.
    """
    try:
        yield
    except ElasticDLError:
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        if (own := _wrapped(error)) is not None:
            raise own from error
        raise described(error, doing, zoo, function) from error


def _wrapped(error: BaseException) -> ElasticDLError | None:
    """The ElasticDLError that TensorFlow wrapped while it translated a function, if any."""
    if type(error).__name__ != "StagingError":
        return None
    inner = error.__cause__ or error.__context__
    return inner if isinstance(inner, ElasticDLError) else None


def described(
    error: BaseException, doing: str, zoo: str, function: Callable[..., Any] | None = None
) -> UserError:
    """`error` as a UserError: where, what, and the user's frames as the hint."""
    if isinstance(error, SyntaxError) and error.filename:
        return UserError(
            f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}",
            hint=(error.text or "").strip() and f"at: {(error.text or '').strip()}",
        )
    frames = _frames(error, zoo)
    at = innermost(error, zoo) or (_where(function, error) if function is not None else "")
    where = f"{at}: " if at else ""
    if isinstance(error, SystemExit):
        return UserError(
            f"{where}{doing} called exit({error.code!r})",
            hint="a model module must not end the process",
        )
    lines = [f"  {file}:{line}  {source}" for file, line, source in frames]
    if len(lines) > _MOST_FRAMES:
        left_out = len(lines) - _MOST_FRAMES
        lines[_MOST_FRAMES // 2 : -_MOST_FRAMES // 2] = [f"  ... {left_out:,} more calls"]
    text = "\n".join(filter(None, (_advice(error, frames), *lines)))
    return UserError(f"{where}{summary(error, doing)}", hint=text)


_MOST_FRAMES = 12
_MISSING_INPUT = "Missing data for input"
_UNNAMED_INPUT = re.compile(r"\bInput\((?!.*\bname=)")


def _where(function: Callable[..., Any], error: BaseException) -> str:
    """The definition of `function`; the first Input without a name if Keras misses its data."""
    if _MISSING_INPUT in str(error):
        with suppress(TypeError, OSError):
            lines, first = inspect.getsourcelines(inspect.unwrap(function))
            for number, line in enumerate(lines):
                if _UNNAMED_INPUT.search(line):
                    return f"{inspect.getsourcefile(inspect.unwrap(function))}:{first + number}"
    return place(function)


TABLE_ADVICE = "make lookup tables once, at the top of the module or in __init__"
_RANK_ADVICE = (
    "a tensor has no known rank, as tf.py_function, tf.numpy_function and tf.squeeze without an"
    " axis return it: give tf.squeeze its axis, or set the rank where the tensor is made, with"
    " set_shape or tf.ensure_shape"
)
_SHAPE_ADVICE = (
    "the model expects another shape: give keras.Input the shape of one example as feed returns it,"
    " without the axis of the batch"
)
_NONE_ADVICE = "None is not a tensor: a function has no return, or feed returns None for labels"
_ADVICE = {
    "Table not initialized": (
        f"a lookup table that is made while the model is called is never initialized:"
        f" {TABLE_ADVICE}"
    ),
    "is out of scope and cannot be used here": (
        f"the module keeps a tensor, or a lookup table made of one, from an earlier call:"
        f" {TABLE_ADVICE}, and compute tensors in each call"
    ),
    "Cannot take the length of shape with unknown rank": _RANK_ADVICE,
    "as_list() is not defined on an unknown TensorShape": _RANK_ADVICE,
    "has no attribute 'numpy'": (
        "model, loss, metrics and feed run as a compiled graph, whose tensors have no values yet:"
        " use operations of tf or keras.ops"
    ),
    "Invalid input shape for input": _SHAPE_ADVICE,
    "is incompatible with the layer": _SHAPE_ADVICE,
    "Cast string to float is not supported": (
        "a tensor is text: convert it in feed, for example with tf.strings.to_number"
    ),
    "(<class 'NoneType'>) to a Tensor": _NONE_ADVICE,
    "None values not supported": _NONE_ADVICE,
    "tf.function only supports singleton tf.Variables": (
        "create layers and variables in __init__ or build, not in call"
    ),
    "A KerasTensor cannot be used as input to a TensorFlow function": (
        "use keras.ops or a layer, or `import elasticdl.model.tensorflow_functions` in the module"
    ),
    "has no attribute 'DenseFeatures'": (
        "from elasticdl.preprocessing import feature_column: it has DenseFeatures, and the columns"
    ),
    _MISSING_INPUT: (
        "name the model's inputs as feed names its features: keras.Input(..., name='KEY')"
    ),
}
"""What to do about messages of TensorFlow that name neither a line nor a cause."""


def _advice(error: BaseException, frames: list[tuple[str, int, str]]) -> str:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith(PACKAGES):
        instead = instead_of_import(frames[-1][2]) if frames else ""
        return f"a module of the original ElasticDL has other names here: {instead or MIGRATING}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return (
            f"install the package of {error.name} where the job runs (on a cluster: in its image),"
            " or add the module to the model zoo"
        )
    return next((hint for fragment, hint in _ADVICE.items() if fragment in str(error)), "")


def summary(error: BaseException, doing: str) -> str:
    """`DOING raised KIND: MESSAGE`, without the place."""
    # TensorFlow repeats the name of an exception raised inside a graph in front of its message.
    kind = type(error).__name__
    message = short(str(error)).removeprefix(f"{kind}: ").strip()
    return (
        f"{doing} raised {kind}: {message}"
        if message and message != kind
        else f"{doing} raised {kind}"
    )


def innermost(error: BaseException, zoo: str) -> str:
    """`file:line` of the innermost frame in the user's files; '' if there is none."""
    frames = _frames(error, zoo)
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""


def _frames(error: BaseException, zoo: str) -> list[tuple[str, int, str]]:
    """(file, line, source) of the frames in the user's files, outermost first.

    TensorFlow runs translated copies of user functions. Only its message names the original place.
    """
    root = str(Path(zoo).resolve())
    frames = users_frames(traceback.extract_tb(error.__traceback__), zoo)
    from_message = [
        (file, int(line), source.strip() or linecache.getline(file, int(line)).strip())
        for file, line, source in re.findall(
            r'File "([^"]+)", line (\d+), in .*(?:\n(?!\s*File ")\s*(.*))?', str(error)
        )
        if file.startswith(root)
    ]
    known = {frame[:2] for frame in frames}
    return frames + [frame for frame in from_message if frame[:2] not in known]


def users_frames(frames: Iterable[traceback.FrameSummary], zoo: str) -> list[tuple[str, int, str]]:
    """(file, line, source) of the frames in the user's files."""
    root = str(Path(zoo).resolve())
    return [
        (frame.filename, frame.lineno or 0, (frame.line or "").strip())
        for frame in frames
        if frame.filename.startswith(root)
    ]


_MOST_LINES = 12
_OF_TRACE = re.compile(r"\s*(?:Traceback \(most recent call last\):|[\^~]+)\s*")


def short(message: str) -> str:
    """The user's part of a message, without TensorFlow's frames and Keras's framing."""
    if stale := _STALE.search(message):
        return stale[0]
    message, _, arguments = message.partition("Arguments received by ")
    inner = re.search(r"\x1b\[1m(.*)\x1b\[0m", message, re.DOTALL)
    message = re.sub(r"\x1b\[\d*m", "", inner[1] if inner else message).split(
        "Error encountered:\n\n"
    )[-1]
    message = _of_operation(message)
    message += f"\nArguments received by {arguments}" if arguments else ""
    if "in user code:" in message:
        blocks = [
            block
            for block in re.split(r"\n\s*\n", message.split("in user code:", 1)[1])
            if block.strip()
        ]
        message = (
            "\n".join(block.strip() for block in blocks if not block.lstrip().startswith("File "))
            or message
        )
    # Python's marks below a source line, which mean nothing without it.
    lines = [line for line in message.strip().splitlines() if not _OF_TRACE.fullmatch(line)]
    return "\n".join(lines[:_MOST_LINES] + (["..."] if len(lines) > _MOST_LINES else []))


_STALE = re.compile(r"<tf\.Tensor [^\n]*> is out of scope and cannot be used here")
"""TensorFlow goes on with its own frames and with advice on functions that the user has not."""

_OF_GRAPH = re.compile(
    r"""Graph\ execution\ error:
      | Detected\ at\ node\ .*
      | [ ]+File\ ".*",\ line\ \d+,\ in\ .*(?:\n[ ]{4,}.*)?
      | <stack\ traces\ unavailable>
      | Stack\ trace\ for\ op\ definition:.*
      | \d+\ root\ error\(s\)\ found\.
      | \d+\ (?:successful\ operations|derived\ errors\ ignored)\.
    """,
    re.VERBOSE,
)
_AROUND_OPERATION = re.compile(
    r"""^[ ]*\(\d+\)[ ][A-Z_]+:[ ]  # the number and kind of one of several errors
      | Error\ in\ user-defined\ function\ passed\ to\ \S+\ transformation
        (?:\ with\ iterator:\ \S+)?:[ ]
      | ^\{\{(?:function_)?node\ .*?\}\}[ ]
      | \s*\[\[\{?\{?.*?\]\]
      | [ ]\[Op:.*?\]
    """,
    re.VERBOSE | re.MULTILINE,
)


def _of_operation(message: str) -> str:
    """The first failed operation's message, out of a message about a whole graph."""
    if not re.search(r"Graph execution error:|\{\{(function_)?node ", message):
        return message
    graph = _OF_GRAPH.sub("", message.partition("Original stack trace for")[0])
    left = [line.strip() for line in _AROUND_OPERATION.sub("", graph).splitlines()]
    return "\n".join(dict.fromkeys(line for line in left if line)) or message


def taken(function: Callable[..., Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `params` that `function` names, or all of them if it takes `**params`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return dict(params)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return dict(params)
    return {
        name: value
        for name, value in params.items()
        if name in {parameter.name for parameter in parameters}
    }


def missing(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str | None:
    """Why `function` cannot be called with these keyword arguments; None if it can."""
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        return str(error)
    except ValueError:
        return None
    return None
