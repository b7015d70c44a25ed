"""Claim a local job's directory, or refuse before anything is created."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from elasticdl.addresses import is_address
from elasticdl.checkpoint.layout import has_checkpoint
from elasticdl.errors import ElasticDLError, PermanentError, SpecError
from elasticdl.job import JobSpec
from elasticdl.job_name import next_name
from elasticdl.jobdir.job_end import has_begun
from elasticdl.jobdir.layout import JobDirectory, write_atomically
from elasticdl.jobdir.output_folder import refuse_output
from elasticdl.jobdir.resumable import refuse_resume
from elasticdl.jobdir.scale_override import forget_scale_unless
from elasticdl.jobdir.spec_files import write_flags
from elasticdl.jobdir.supervisor_file import read_supervisor
from elasticdl.jobdir.working_directory import directory_of
from elasticdl.private_file import DIRECTORY_MODE, replace_atomically
from elasticdl.tracking.choice import refuse_missing_package

_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of the machine: another directory would not help, so they are not usage errors."""
_MOST_NAMES = 20
_DEATH_S, _LOOK_EVERY_S = 5.0, 0.05


class JobNameTaken(SpecError):
    """Another job has the name or directory."""


@contextmanager
def placed(spec: JobSpec) -> Iterator[tuple[JobSpec, JobDirectory]]:
    """Claim a settled job's directory; raise the errors of `claimed`.

    Choose another generated name if a job already has it.
    """
    with ExitStack() as stack:
        for left in reversed(range(_MOST_NAMES)):
            try:
                directory = stack.enter_context(claimed(spec))
                break
            except JobNameTaken:
                if not (spec.generated_name and left):
                    raise
                name = next_name(spec.cluster.job_name)
                spec = spec.replace(
                    job_name=name, job_dir=str(Path(spec.cluster.job_dir).with_name(name))
                )
        yield spec, directory


def refuse_if_taken(spec: JobSpec) -> None:
    """Raise SpecError if the job cannot use its directory or --output. Create nothing.

    With --resume, the directory must hold a training job.
    """
    directory = directory_of(spec.cluster.job_dir)
    try:
        _refuse_if_taken(spec, directory)
    except OSError as error:  # a name that is too long, or a parent without permission
        raise _unusable(f"cannot use {error.filename or directory.path}", error) from error
    refuse_output(spec)


def _refuse_if_taken(spec: JobSpec, directory: JobDirectory) -> None:
    if directory.path.exists() and not directory.path.is_dir():
        raise SpecError(
            f"--job-dir {directory.path} is a file", hint="name a directory that is new or empty"
        )
    there = directory.spec.exists()
    if there and not spec.checkpoint.resume:
        raise JobNameTaken(
            f"{directory.path} already contains a job",
            hint=_continue_or_leave(spec, directory),
        )
    # The copies may be all that is left of the job: the master looks at them.
    if spec.checkpoint.resume and not spec.checkpoint_copies:
        refuse_resume(directory)
    init = spec.checkpoint.checkpoint_dir_for_init
    # The check of the job looks at an object store.
    if init and not is_address(init) and not has_checkpoint(Path(init)):
        raise SpecError(
            f"--checkpoint-dir-for-init: there is no checkpoint in {init}",
            hint=(
                "name a directory that holds version-<n> directories, such as <job-dir>/checkpoints"
            ),
        )


def _continue_or_leave(spec: JobSpec, directory: JobDirectory) -> str:
    other = "choose another --job-dir or --job-name"
    if spec.action != "train":
        return other
    try:
        refuse_resume(directory)
    except SpecError:
        return other
    return f"continue it with --resume, or {other}"


@contextmanager
def claimed(spec: JobSpec) -> Iterator[JobDirectory]:
    """Create the job's directory and lock it during the block, so that other commands refuse it.

    If the block raises before the job has begun, the directory is as it was before.

    Raises SpecError if another command was faster or a place cannot be written; PermanentError if
    the disk is full or fails.
    """
    refuse_if_taken(spec)
    directory = directory_of(spec.cluster.job_dir)
    # Create, lock, check again: another command may claim it between the check and the lock.
    taken = _run_by_another(directory.path)
    with _held(directory.path, "--job-dir", taken, DIRECTORY_MODE) as created:
        wait_for_killed_run(directory)
        refuse_if_taken(spec)
        try_places(spec)
        with _ours_alone(spec), _undone_unless_begun(directory, is_new=directory.path in created):
            try:
                _write(directory, spec)
            except OSError as error:
                raise _unusable(f"cannot write to {directory.path}", error) from error
            yield directory


def wait_for_killed_run(directory: JobDirectory) -> None:
    """Return when no earlier run's supervisor lives.

    A killed command frees its lock some moments before the kernel has killed its supervisor. Raises
    JobNameTaken if the supervisor lives on.
    """
    end_s = time.monotonic() + _DEATH_S
    while (supervisor := read_supervisor(directory)) is not None and supervisor.runs(directory):
        if time.monotonic() > end_s:
            raise _run_by_another(directory.path)
        time.sleep(_LOOK_EVERY_S)


@contextmanager
def _undone_unless_begun(directory: JobDirectory, *, is_new: bool) -> Iterator[None]:
    """Restore the directory if the block raises before the job has begun."""
    there = {path for path in _of_a_run(directory) if path.exists()}
    kept = {path: path.read_bytes() for path in _replaced(directory) if path in there}
    # Its presence means that this run's preflight has passed.
    directory.preflight.unlink(missing_ok=True)
    try:
        yield
    except BaseException:
        # A refused resume leaves a new directory: it has the checkpoints that the master fetched.
        if not has_begun(directory) and not (is_new and directory.preflight.exists()):
            # The user's files may be in a directory that this command did not make.
            for path in {directory.path} if is_new else {*_of_a_run(directory)} - there:
                _remove(path)
            for path, data in kept.items():
                with suppress(OSError):
                    replace_atomically(path, data)
        raise


def _of_a_run(directory: JobDirectory) -> tuple[Path, ...]:
    return (
        *_replaced(directory),
        directory.master,
        directory.journal,
        directory.logs,
        directory.metrics,
        directory.series,
        directory.newest,
        directory.receipt,
        directory.report,
    )


def _replaced(directory: JobDirectory) -> tuple[Path, ...]:
    """Return the files that a run changes before it begins."""
    return (
        directory.spec,
        directory.yaml,
        directory.scale,
        directory.status,
        directory.supervisor,
        directory.preflight,
        directory.events,
    )


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _ours_alone(spec: JobSpec) -> Iterator[None]:
    """Lock the folder of predictions while the job writes them. Raises SpecError.

    The folder is still empty, so another command would otherwise accept it too.
    """
    output = spec.checkpoint.output
    is_folder = spec.action == "predict" and output and not is_address(output)
    if not is_folder or output == spec.cluster.job_dir:
        yield
        return
    path = Path(output)
    taken = SpecError(
        f"another command writes its predictions to {path}", hint="name another --output"
    )
    with _held(path, "--output", taken):
        refuse_output(spec)
        yield


def _write(directory: JobDirectory, spec: JobSpec) -> None:
    # Remove the previous run's outcome: a reader would take it for this run's.
    directory.status.unlink(missing_ok=True)
    directory.supervisor.unlink(missing_ok=True)
    write_flags(spec, directory)
    forget_scale_unless(spec, directory)
    # job.json comes last: its presence means that the job exists.
    write_atomically(directory.spec, spec.model_dump_json(indent=2) + "\n")


def _unusable(what: str, error: OSError, flag: str = "--job-dir") -> ElasticDLError:
    """Return the error for an unusable place: a usage error, unless the machine has a problem."""
    if error.errno in _OF_THE_MACHINE:
        return PermanentError(
            f"{what}: {error.strerror}", hint=f"fix the cause, or name another {flag}"
        )
    return SpecError(f"{what}: {error.strerror or error}", hint=f"name another {flag}")


def try_places(spec: JobSpec) -> None:
    """Find out whether the job can write its results, and has a package for its tracker.

    Leaves nothing.

    Raises SpecError, or PermanentError if the disk is full.
    """
    _try_place(spec.cluster.job_dir, "--job-dir")
    _try_place(spec.checkpoint.output, "--output")
    _try_place(spec.checkpoint.tensorboard_log_dir, "--tensorboard-log-dir")
    refuse_missing_package(spec)


def _try_place(place: str, flag: str) -> None:
    """Create the place that a flag names and remove it again, to find errors before the job runs.

    Raises SpecError, or PermanentError if the disk is full.
    """
    if not place or is_address(place):
        return
    path = Path(place)
    for folder in _make(path, flag):
        folder.rmdir()
    if path.exists() and not path.is_dir():
        raise SpecError(f"{flag} {path} is a file", hint=f"name another {flag}")
    if path.exists() and not os.access(path, os.W_OK | os.X_OK):
        raise SpecError(f"{flag} {path} is not writable for this user", hint=f"name another {flag}")


def _make(path: Path, flag: str, mode: int = 0o777) -> list[Path]:
    """Create a directory with a mode, and its missing parents; return the new ones, deepest first.

    Raises SpecError, or PermanentError if the disk is full.
    """
    created: list[Path] = []
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            # Another command may create the same parent at the same time.
            with suppress(FileExistsError):
                folder.mkdir(mode if folder == path else 0o777)
                created.insert(0, folder)
    except OSError as error:
        for folder in created:
            folder.rmdir()
        raise _unusable(f"cannot make {path}", error, flag) from error
    return created


@contextmanager
def _held(path: Path, flag: str, taken: SpecError, mode: int = 0o777) -> Iterator[list[Path]]:
    """Create a directory, and lock it during the block; gives what it created, as `_make`.

    What the block left empty is removed. Raises `taken` if another command holds it.
    """
    created = _make(path, flag, mode)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path, taken))
        except OSError as error:
            raise _unusable(f"cannot open {path}", error, flag) from error
        # Before the lock is free: the next command must not lose its directory.
        stack.callback(_remove_empty, created)
        yield created


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # There is something in it.
            folder.rmdir()


def _run_by_another(path: Path) -> JobNameTaken:
    return JobNameTaken(
        f"another command runs the job in {path}", hint=f"look at it with `elasticdl status {path}`"
    )


@contextmanager
def locked(path: Path, taken: SpecError) -> Iterator[bool]:
    """Lock a directory during the block. Gives False if the file system has no locks.

    Raises `taken` if another process has locked it or recreated it, OSError.
    """
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        is_locked = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise taken from error
        except OSError:
            is_locked = False
        # Another command may have removed the directory after we opened it, and freed its lock.
        if not os.path.samestat(os.fstat(lock), os.stat(path)):
            raise taken
        yield is_locked
    finally:
        os.close(lock)
