"""The numbers of workers and parameter servers that a user set while the job ran.

They outlive the master, so that a resumed job starts with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elasticdl.formatting import amount
from elasticdl.jobdir.layout import JobDirectory, read_json, write_json

if TYPE_CHECKING:
    from elasticdl.flag_values import ServerRange, WorkerRange
    from elasticdl.job import JobSpec

_REPLACED = {"num_workers": "instead_of", "num_ps_pods": "instead_of_ps_pods"}
"""Where the values of a flag are that the scaled one replaced."""
_LOG = logging.getLogger(__name__)


def keep_scale(directory: JobDirectory, asked: WorkerRange, low: int, high: int) -> None:
    """Save a new range; `asked` is the job's initial range.

    If the disk refuses the write, a resumed job starts with its initial range.
    """
    _keep(directory, "num_workers", str(_range(low, high)), str(asked))


def keep_servers(directory: JobDirectory, asked: ServerRange, number: int) -> None:
    """Save a new number of parameter servers; see `keep_scale`."""
    _keep(directory, "num_ps_pods", str(number), str(asked))


def _keep(directory: JobDirectory, flag: str, scaled: str, asked: str) -> None:
    kept = read_json(directory.scale)
    instead_of = {*_instead_of(kept, flag), asked} - {scaled}
    value = {**kept, flag: scaled, _REPLACED[flag]: sorted(instead_of)}
    try:
        write_json(directory.scale, value)
    except OSError as error:
        _LOG.warning(
            "cannot save to %s that the job was scaled to %s: %s", directory.scale, scaled, error
        )


def read_scale_override(directory: JobDirectory, flag: str = "num_workers") -> str:
    """Return the value of the flag that the job was scaled to; '' if it was not scaled."""
    return str(read_json(directory.scale).get(flag, ""))


def as_scaled(
    spec: JobSpec, directory: JobDirectory, *, anew: bool, servers_anew: bool = False
) -> tuple[JobSpec, str]:
    """Return the job to resume, and a message for the user; '' if nothing changed.

    The scaled numbers apply unless the user now gives others: by a flag (`anew`, `servers_anew`),
    or by a file whose number the job never had before it was scaled.
    """
    numbers, flags = [], []
    if not anew and (scaled := _override(spec, directory, "num_workers")):
        spec = spec.replace(num_workers=_parsed(scaled))
        numbers.append(f"{scaled} workers")
        flags.append("--num-workers")
    if not servers_anew and (scaled := _override(spec, directory, "num_ps_pods")):
        spec = spec.replace(num_ps_pods=_servers(int(scaled)))
        numbers.append(amount(int(scaled), "parameter server"))
        flags.append("--num-ps-pods")
    if not flags:
        return spec, ""
    return spec, (
        f"the job was scaled: it continues with {' and '.join(numbers)} instead of its"
        f" {' and '.join(flags)}"
    )


def as_user_scaled(spec: JobSpec, directory: JobDirectory, say: Callable[[str], None]) -> JobSpec:
    """Return the job that a user resumes, as `as_scaled`, and tell them what changed."""
    spec, scaled = as_scaled(
        spec, directory, anew=spec.workers_anew, servers_anew=spec.servers_anew
    )
    if scaled:
        say(scaled)
    return spec


def _override(spec: JobSpec, directory: JobDirectory, flag: str) -> str:
    """The value that replaces the spec's; '' if none does."""
    kept, asked = read_json(directory.scale), str(getattr(spec.cluster, flag))
    scaled = str(kept.get(flag, ""))
    if not scaled or asked == scaled or asked not in _instead_of(kept, flag):
        return ""
    try:
        # A number may be of a run without --gang, whose group would wait for the missing processes.
        if flag == "num_workers":
            valid = _parsed(scaled).low >= spec.gang_workers
        else:
            valid = int(scaled) > 0 and not spec.gang_workers
    except ValueError:
        return ""
    return scaled if valid else ""


def forget_scale_unless(spec: JobSpec, directory: JobDirectory) -> None:
    """Delete the saved numbers with which the job does not start.

    Raises OSError.
    """
    kept = read_json(directory.scale)
    flags = [flag for flag in _REPLACED if kept.get(flag) == str(getattr(spec.cluster, flag))]
    if not flags:
        directory.scale.unlink(missing_ok=True)
    elif any(flag in kept for flag in _REPLACED.keys() - set(flags)):
        names = {*flags, *(_REPLACED[flag] for flag in flags)}
        write_json(directory.scale, {name: kept[name] for name in kept if name in names})


def _range(low: int, high: int) -> WorkerRange:
    from elasticdl.flag_values import WorkerRange

    return WorkerRange(low=low, high=high)


def _servers(number: int) -> ServerRange:
    from elasticdl.flag_values import ServerRange

    return ServerRange.just(number)


def _parsed(text: str) -> WorkerRange:
    from elasticdl.flag_values import WorkerRange

    return WorkerRange.model_validate(WorkerRange.parse(text))


def _instead_of(kept: dict[str, Any], flag: str) -> list[str]:
    return [str(value) for value in kept.get(_REPLACED[flag]) or ()]
