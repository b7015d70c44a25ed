"""Claim the place of a job: a directory, or an address whose files are copied here and back."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from elasticdl.addresses import is_address
from elasticdl.checkpoint import copies
from elasticdl.cli.jobs.job_claim import (
    JobNameTaken,
    locked,
    placed,
    refuse_if_taken,
    wait_for_killed_run,
)
from elasticdl.cli.views.console import tell
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError, SpecError
from elasticdl.job import JobSpec
from elasticdl.job_name import next_name
from elasticdl.jobdir.address_copy import AddressCopy, Index, continues, facts_of, fetch, read_index
from elasticdl.jobdir.address_flags import digest_of, flags_at
from elasticdl.jobdir.address_owner import TIMES, AddressLost, OwnedAddress, OwnerTimes
from elasticdl.jobdir.layout import JobDirectory, read_json
from elasticdl.jobdir.resumable import WHICH_JOB, refuse_resume
from elasticdl.jobdir.scale_override import as_user_scaled
from elasticdl.jobdir.working_directory import WorkingDirectory
from elasticdl.private_file import make_private
from elasticdl.storage.attempts import Absent, Limits
from elasticdl.storage.store import store_of

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
            # Without locks, the owner object still separates two commands.
            taken = JobNameTaken(
                f"another command runs the job in {working.address} on this machine",
                hint=f"look at it with `elasticdl status --job-dir {working.address}`",
            )
            is_locked = stack.enter_context(locked(working.path, taken))
            wait_for_killed_run(working.job)
            _refuse_if_used(spec, working, times.limits)
            state = working.state()
            ended = state.id if is_locked else ""
            owned = OwnedAddress.take(working.address, state.id, say, times, ended=ended)
            stack.callback(_release, working, owned, say)
            # Read again: its owner may have written until its end.
            index = _refuse_if_used(spec, working, times.limits)
            _refuse_changed_flags(spec, times.limits)
            working.keep(replace(state, owner=owned.id))
            brought = _brought(spec, working, index, say)
            # Not before: files that are older than the copy must not replace it.
            stack.callback(_copy_last, working, owned, say)
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


def _refuse_changed_flags(spec: JobSpec, limits: Limits) -> None:
    """Raise SpecError if the job's -f was at its address, and is another one by now."""
    if not spec.flags_digest:
        return
    place, digest = flags_at(spec.cluster.job_dir), ""
    with suppress(Absent):
        digest = digest_of(store_of(place, limits).read(place, limits))
    if digest != spec.flags_digest:
        raise SpecError(
            f"another command has changed {place} meanwhile",
            hint="run this command again: it reads the flags again",
        )


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
    return as_user_scaled(spec, working.job, say)


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
    known = replace(working.state(), writer=index.writer, index=index.id)
    working.keep(replace(known, files=facts_of(here)))


def _copy_last(working: WorkingDirectory, owned: OwnedAddress, say: Say) -> None:
    """Copy the last files. Errors, and Ctrl-C meanwhile, do not change how the job ended."""
    if not working.job.spec.exists():
        return
    try:
        with suppress(ElasticDLError):  # The copy waits longer for the store.
            # A command that was refused may have removed our object since the last heartbeat.
            owned.beat()
        AddressCopy(working).copy(last=True)
    except (ElasticDLError, OSError, KeyboardInterrupt) as error:
        say(
            f"Warning: the last files of the job are not copied to {working.address}: {_why(error)}"
        )
        resumes = not isinstance(error, AddressLost) and _can_go_on(working.job)
        more = "; --resume on this machine copies them" if resumes else ""
        say(f"Hint: they are in {working.job.path}{more}")


def _can_go_on(directory: JobDirectory) -> bool:
    """Whether it is a job that --resume would continue, and that is not done."""
    with suppress(SpecError):
        refuse_resume(directory)
        return read_json(directory.status).get("exit_code") != ExitCode.DONE
    return False


def _release(working: WorkingDirectory, owned: OwnedAddress, say: Say) -> None:
    """Give the address up. Errors, and Ctrl-C meanwhile, do not change how the job ended."""
    try:
        owned.release(forget=not working.job.spec.exists())
    except (ElasticDLError, KeyboardInterrupt) as error:
        say(f"Warning: {working.address} does not say yet that the job has ended: {_why(error)}")


def _why(error: BaseException) -> str:
    return "Ctrl-C" if isinstance(error, KeyboardInterrupt) else str(error)
