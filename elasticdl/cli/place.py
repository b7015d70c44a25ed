"""Where a job lives on disk: its name and directory, refused before anything is made if that cannot be."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.cli.alive import check_file, tell_check
from elasticdl.errors import ElasticDLError, PermanentError, SpecError
from elasticdl.master.files import JobDirectory, write_whole
from elasticdl.master.output import refuse_output
from elasticdl.master.scaled import as_scaled, forget_scale_unless
from elasticdl.master.way_on import has_checkpoint

if TYPE_CHECKING:
    from elasticdl.job import JobSpec
    from elasticdl.master.preflight import Preflight

JOBS = Path("jobs")
_DATA = ("training_data", "validation_data", "prediction_data")
_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What another directory would not mend: the command was right, so these are no bad usage."""


_MOST_NAMES = 20


class Taken(SpecError):
    """Another job has the name or directory."""


@contextmanager
def placed(
    spec: JobSpec, check: Callable[[JobSpec], Preflight], say: Callable[[str], None]
) -> Iterator[tuple[JobSpec, JobDirectory]]:
    """Settle a job and claim its directory: see `settle`, `refuse_if_taken` and `claimed`, whose errors it raises.

    A name of our own making gives way to another job that was begun in the same second. `say` hears of what a resumed job goes on with.
    """
    wall_s, suffix = time.time(), ""
    if spec.checkpoint.resume and not (spec.cluster.job_name or spec.cluster.job_dir):
        raise SpecError("--resume, but of which job?", hint=_RESUMING)
    with ExitStack() as stack:
        for number in range(2, _MOST_NAMES + 2):
            settled = settle(spec, wall_s, suffix)
            try:
                refuse_if_taken(settled)
                settled, scaled = _as_scaled(settled)
                directory = stack.enter_context(claimed(settled, lambda job=settled: check(job)))  # type: ignore[misc]
                break
            except Taken:
                if spec.cluster.job_name or spec.cluster.job_dir or number > _MOST_NAMES:
                    raise
                suffix = f"-{number}"
        if scaled:
            say(scaled)
        yield settled, directory


def _as_scaled(spec: JobSpec) -> tuple[JobSpec, str]:
    if not spec.checkpoint.resume:
        return spec, ""
    return as_scaled(spec, JobDirectory(Path(spec.cluster.job_dir)), anew=spec.workers_anew)


def settle(spec: JobSpec, wall_s: float | None = None, suffix: str = "") -> JobSpec:
    """The job with a name and a directory, and with paths that mean the same from any directory. `suffix` is of a name that we make."""
    from elasticdl.job import JobSpec

    name = spec.cluster.job_name or name_for(spec.model.model_def, time.time() if wall_s is None else wall_s) + suffix
    directory = Path(spec.cluster.job_dir or JOBS / name)
    absolute = {"job_name": name, "job_dir": _absolute(directory), "model_zoo": _absolute(spec.model.model_zoo)}
    for key in ("checkpoint_dir_for_init", "output", "tensorboard_log_dir"):
        value = getattr(spec.checkpoint, key)
        absolute[key] = _absolute(value) if value and "://" not in value else value
    for key in _DATA:
        absolute[key] = _absolute_data(getattr(spec.data, key))
    return JobSpec.from_flags(spec.action, {**spec.flags(), **absolute}, workers_anew=spec.workers_anew)


def refuse_if_taken(spec: JobSpec) -> None:
    """Raises SpecError if the directory cannot become, or with --resume is not, this job's, or if --output may not. Makes nothing."""
    directory = JobDirectory(Path(spec.cluster.job_dir))
    try:
        _refuse_if_taken(spec, directory)
    except OSError as error:  # a name that is too long, or a parent that may not be looked into
        raise _unusable(f"cannot use {error.filename or directory.path}", error) from error
    refuse_output(spec)


_RESUMING = "name the --job-dir or --job-name of the job to go on with; `elasticdl status JOB` tells the whole command"


def _refuse_if_taken(spec: JobSpec, directory: JobDirectory) -> None:
    if directory.path.exists() and not directory.path.is_dir():
        raise SpecError(f"--job-dir {directory.path} is a file", hint="name a directory that is new or empty")
    there = directory.spec.exists()
    if there and not spec.checkpoint.resume:
        raise Taken(
            f"{directory.path} holds a job already", hint="go on with it by --resume, or name another --job-dir or --job-name"
        )
    if spec.checkpoint.resume and not there:
        raise SpecError(f"--resume, but {directory.path} holds no job", hint=_RESUMING)
    if spec.checkpoint.resume and not has_checkpoint(directory.checkpoints):
        raise SpecError(
            f"--resume, but there is no checkpoint in {directory.checkpoints}",
            hint=f"start afresh with another --job-dir, or remove {directory.path}; --checkpoint-steps makes checkpoints",
        )
    init = spec.checkpoint.checkpoint_dir_for_init
    if init and "://" not in init and not has_checkpoint(Path(init)):
        raise SpecError(
            f"--checkpoint-dir-for-init: there is no checkpoint in {init}",
            hint="name a directory that holds version-<n> directories, such as <job-dir>/checkpoints",
        )


@contextmanager
def claimed(spec: JobSpec, check: Callable[[], Preflight]) -> Iterator[JobDirectory]:
    """Make the job's directory and keep it ours for the length of the block; other commands are refused meanwhile.

    `check` looks at model and data, while others can see that it does; it is a job only when that has found nothing wrong.

    Raises what `check` does, SpecError if somebody else was faster, or if it or the place of --output cannot be written, PermanentError if the
    disk is full or fails; nothing half-made stays then.
    """
    directory = JobDirectory(Path(spec.cluster.job_dir))
    made = _make(directory.path, "--job-dir")
    try:
        lock = _lock(directory.path, _run_by_another(directory.path))
    except OSError as error:
        raise _unusable(f"cannot open {directory.path}", error) from error
    written = False
    try:
        refuse_if_taken(spec)
        _try_place(spec.checkpoint.output, "--output")
        _try_place(spec.checkpoint.tensorboard_log_dir, "--tensorboard-log-dir")
        with _ours_alone(spec):
            tell_check(directory, spec.cluster.job_name, str(spec.action))
            _write(directory, spec, check())
            written = True
            yield directory
    except OSError as error:
        if written:
            raise
        raise _unusable(f"cannot write to {directory.path}", error) from error
    finally:
        if not written:
            check_file(directory).unlink(missing_ok=True)
            _unmake(made)
        os.close(lock)


@contextmanager
def _ours_alone(spec: JobSpec) -> Iterator[None]:
    """The folder of predictions stays ours while they are made: it is empty, so another command would take it, too. Raises SpecError."""
    output = spec.checkpoint.output
    path = Path(output)
    if spec.action != "predict" or not output or "://" in output or path == Path(spec.cluster.job_dir):
        yield
        return
    made = _make(path, "--output")
    try:
        lock = _lock(path, SpecError(f"another command writes its predictions to {path}", hint="name another --output"))
        try:
            refuse_output(spec)
            yield
        finally:
            os.close(lock)
    finally:
        for one in made:
            with suppress(OSError):
                one.rmdir()


def _write(directory: JobDirectory, spec: JobSpec, preflight: Preflight) -> None:
    from elasticdl.cli.yaml_documents import as_yaml
    from elasticdl.master.preflight import save_preflight

    # Left by the run before this one; whoever reads it now would take it for ours.
    directory.status.unlink(missing_ok=True)
    save_preflight(directory.preflight, preflight)
    told = {key: value for key, value in spec.told().items() if key != "resume"}
    # Only for the owner: --envs may hold somebody's keys.
    write_whole(directory.path / "job.yaml", f"# elasticdl {spec.action} -f job.yaml\n{as_yaml(told)}", mode=0o600)
    forget_scale_unless(spec, directory)
    write_whole(directory.spec, spec.model_dump_json(indent=2) + "\n", mode=0o600)
    check_file(directory).unlink(missing_ok=True)


def _unusable(what: str, error: OSError, flag: str = "--job-dir") -> ElasticDLError:
    """The error for a place that cannot be used: bad usage, unless the machine is in trouble."""
    if error.errno in _OF_THE_MACHINE:
        return PermanentError(f"{what}: {error.strerror}", hint=f"mend that, or name another {flag}")
    return SpecError(f"{what}: {error.strerror or error}", hint=f"name another {flag}")


def _try_place(place: str, flag: str) -> None:
    """Make the place that a flag names and take it away again: in hours, when there is something to write, is too late to ask.

    Raises SpecError, or PermanentError if the disk is full.
    """
    if not place or "://" in place:
        return
    path = Path(place)
    for one in _make(path, flag):
        one.rmdir()
    if path.exists() and not os.access(path, os.W_OK | os.X_OK):
        raise SpecError(f"{flag} {path} may not be written by this user", hint=f"name another {flag}")


def _make(path: Path, flag: str) -> list[Path]:
    """Make a directory and what is missing above it; those that were made, the deepest first.

    Raises SpecError, or PermanentError if the disk is full.
    """
    made: list[Path] = []
    try:
        missing = [one for one in (path, *path.parents) if not one.exists()]
        for one in reversed(missing):
            with suppress(FileExistsError):
                one.mkdir()
                made.insert(0, one)
    except OSError as error:
        for one in made:
            one.rmdir()
        raise _unusable(f"cannot make {path}", error, flag) from error
    return made


def _unmake(made: list[Path]) -> None:
    if made:
        shutil.rmtree(made[0], ignore_errors=True)
    for parent in made[1:]:
        with suppress(OSError):
            parent.rmdir()


def _run_by_another(path: Path) -> Taken:
    return Taken(f"another command runs the job in {path}", hint=f"look at it with `elasticdl status {path}`")


def _lock(path: Path, taken: SpecError) -> int:
    """A file descriptor that keeps other commands out until it is closed, by our end too. Raises `taken`, OSError."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise taken from error
    except OSError:
        pass  # a file system without locks: two people at once are then told apart by job.json alone
    return lock


def name_for(model_def: str, wall_s: float) -> str:
    """For a job without a name: from its model and the time."""
    stem = re.sub(r"[^a-z0-9]+", "-", model_def.lower()).strip("-")[:30].strip("-")
    if not stem[:1].isalpha():
        stem = f"job-{stem}".rstrip("-")
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(wall_s))}"


def is_name_of_ours(name: str, model_def: str) -> bool:
    """Whether `name_for` made it."""
    stem = name_for(model_def, 0.0)[: -len("-YYYYmmdd-HHMMSS")]
    return re.fullmatch(rf"{re.escape(stem)}-\d{{8}}-\d{{6}}", name) is not None


def _absolute(path: str | Path) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _absolute_data(origin: str) -> str:
    """Paths and patterns; what the module's own reader takes (a table, an address) stays as it is."""
    if not origin or "://" in origin:
        return origin
    root = origin
    while has_magic(root):
        root = os.path.dirname(root)
    looks_like_path = os.path.exists(os.path.expanduser(root or "."))
    return _absolute(origin) if looks_like_path else origin
