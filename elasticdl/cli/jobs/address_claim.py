"""Claim the place of a job: a directory, or an address whose files are copied here and back."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from elasticdl.checkpoint import copies
from elasticdl.cli.jobs.job_claim import (
    JobNameTaken,
    placed,
    refuse_if_taken,
    wait_for_killed_run,
)
from elasticdl.cli.views.console import tell
from elasticdl.errors import ElasticDLError, PermanentError, SpecError
from elasticdl.flag import is_address
from elasticdl.job import JobSpec
from elasticdl.job_name import next_name
from elasticdl.jobdir.address_copy import AddressCopy, Index, continues, facts_of, fetch, read_index
from elasticdl.jobdir.address_owner import TIMES, OwnedAddress, OwnerTimes
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.resumable import WHICH_JOB, refuse_resume
from elasticdl.jobdir.scale_override import as_scaled
from elasticdl.jobdir.working_directory import WorkingDirectory
from elasticdl.private_file import make_private
from elasticdl.storage.attempts import Limits

Say = Callable[[str], None]


@contextmanager
def claimed_place(
    spec: JobSpec, say: Say = tell, times: OwnerTimes = TIMES
) -> Iterator[tuple[JobSpec, JobDirectory]]:
    """Claim a settled job's --job-dir; raise the errors of `placed`, and of the object store.

    At the end of the block, the files of a job at an address are copied there.
    """
    if not is_address(spec.cluster.job_dir):
        with placed(spec) as place:
            yield place
        return
    with _at_address(spec, say, times) as brought, placed(brought) as place:
        yield place


def refuse_if_used(spec: JobSpec) -> None:
    """Raise as `refuse_if_taken`; first look at the job's address. Creates nothing."""
    if is_address(spec.cluster.job_dir):
        _refuse_if_used(spec, WorkingDirectory.of(spec.cluster.job_dir), TIMES.limits)
    refuse_if_taken(spec)


@contextmanager
def _at_address(spec: JobSpec, say: Say, times: OwnerTimes) -> Iterator[JobSpec]:
    """Own the address during the block, with the newest files of its job on this machine."""
    working = WorkingDirectory.of(spec.cluster.job_dir)
    with ExitStack() as stack:
        with _usable(working):
            make_private(working.path)
            stack.enter_context(_locked(working))
            wait_for_killed_run(working.job)
            _refuse_if_used(spec, working, times.limits)
            state = working.state()
            # A new id is known from here on, also if this command is killed.
            working.keep(state)
            owned = OwnedAddress.take(working.address, state.id, say, times)
            stack.callback(_leave, working, owned, say)
            # Read again: its owner may have written until its end.
            index = _refuse_if_used(spec, working, times.limits)
            working.keep(replace(state, owner=owned.id))
            brought = _brought(spec, working, index, say)
        yield brought


@contextmanager
def _usable(working: WorkingDirectory) -> Iterator[None]:
    """Say what is wrong with the directory of this machine."""
    try:
        yield
    except OSError as error:
        raise PermanentError(
            f"cannot use {error.filename or working.path}: {error.strerror or error}",
            hint="fix the cause, or set ELASTICDL_CACHE_DIR to another directory",
        ) from error


def _refuse_if_used(spec: JobSpec, working: WorkingDirectory, limits: Limits) -> Index | None:
    """Return the index at the address. Raise SpecError if the job cannot begin or resume there."""
    index, is_here = read_index(working.address, limits), working.job.spec.exists()
    if not spec.checkpoint.resume and (index is not None or is_here):
        more = "" if index is not None else f", whose files are in {working.job.path}"
        resumes = "continue it with --resume, or " if spec.action == "train" else ""
        raise JobNameTaken(
            f"{working.address} already contains a job{more}",
            hint=f"{resumes}choose another --job-dir",
        )
    kept = spec.checkpoint.resume and (index is not None or is_here)
    if spec.checkpoint.resume and not kept and not copies.versions(spec.checkpoint_copies):
        raise SpecError(f"--resume, but {working.address} holds no job", hint=WHICH_JOB)
    return index


def _brought(spec: JobSpec, working: WorkingDirectory, index: Index | None, say: Say) -> JobSpec:
    """Have the newest files here, and return the job to resume, as it was scaled."""
    if index is not None and not (continues(working.state(), index) and working.job.spec.exists()):
        _fetch(working, index, say)
    if not spec.checkpoint.resume:
        return spec
    if not copies.versions(spec.checkpoint_copies):
        try:
            refuse_resume(working.job)
        except SpecError as error:
            text = error.message.replace(str(working.job.path), working.address)
            raise SpecError(text, hint=error.hint) from error
    spec, scaled = as_scaled(
        spec, working.job, anew=spec.workers_anew, servers_anew=spec.servers_anew
    )
    if scaled:
        say(scaled)
    return spec


def _fetch(working: WorkingDirectory, index: Index, say: Say) -> None:
    """Replace the directory of this machine by the copy. Raises OSError, and as `fetch`."""
    new = working.path / "fetched"
    shutil.rmtree(new, ignore_errors=True)
    make_private(new)
    index = fetch(working.address, index, new)
    here = working.job.path
    if here.exists():
        aside = Path(next_name(str(here)))
        while aside.exists():
            aside = Path(next_name(str(aside)))
        here.rename(aside)
        say(f"{working.address} has newer files than this machine, whose own are now in {aside}")
    new.rename(here)
    known = replace(working.state(), writer=index.writer, sequence=index.sequence)
    working.keep(replace(known, files=facts_of(here)))


def _leave(working: WorkingDirectory, owned: OwnedAddress, say: Say) -> None:
    """Copy the last files, and give the address up. Errors do not change how the job ended."""
    there = working.job.spec.exists()
    try:
        if there:
            AddressCopy(working).copy(last=True)
        owned.release(forget=not there)
    except (ElasticDLError, OSError) as error:
        say(f"Warning: the last files of the job are not copied to {working.address}: {error}")
        say(f"Hint: they are in {working.job.path}; --resume on this machine copies them")


@contextmanager
def _locked(working: WorkingDirectory) -> Iterator[None]:
    """Lock the folder, so that one command of this machine uses the address at a time."""
    lock = os.open(working.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # A file system without locks: the owner object still separates two commands.
        with suppress(OSError):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise JobNameTaken(
                    f"another command runs the job in {working.address} on this machine",
                    hint=f"look at it with `elasticdl status --job-dir {working.address}`",
                ) from error
        yield
    finally:
        os.close(lock)
