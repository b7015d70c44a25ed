"""Carries out RunPreflight: checks model and data, and finds the checkpoint to start from."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TypeAlias, final

from elasticdl.cluster.base import CreateRefused
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError
from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.output_folder import last_export
from elasticdl.jobdir.spec_files import write_flags
from elasticdl.master.core.data.counts import ShardIds
from elasticdl.master.core.data.resuming import resume
from elasticdl.master.core.data.sharding import training_plan
from elasticdl.master.core.events import JobStarted, PreflightFailed, PreflightProgressed
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.checkpoint_archive import CheckpointArchive, JobStart
from elasticdl.master.preflight import (
    Preflight,
    PreflightProcess,
    check_streams,
    follow_check,
    load_preflight,
    save_preflight,
)
from elasticdl.tracking.choice import refuse_missing_package

Process: TypeAlias = Callable[[Sequence[int]], AbstractAsyncContextManager[PreflightProcess]]


@final
class JobPreparation:
    """Prepares the job. Use it from one event loop; blocking work runs in threads."""

    def __init__(
        self,
        queue: EventQueue,
        spec: JobSpec,
        directory: JobDirectory,
        archive: CheckpointArchive,
        process: Process,
        begin: Callable[[Preflight, JobStart], None],
    ) -> None:
        """`process` starts the check with these stdin, stdout and stderr.

        `begin` is called once the job has begun, before any of its processes can attach.
        """
        self._queue = queue
        self._spec, self._directory, self._archive = spec, directory, archive
        self._process, self._begin = process, begin

    async def run(self) -> None:
        """Post JobStarted or PreflightFailed.

        After a cancellation, the check has ended by the time this raises.
        """
        try:
            preflight = await self._preflight()
            start = await asyncio.to_thread(self._start, preflight)
            exported = await asyncio.to_thread(last_export, self._spec)
            if self._spec.on_kubernetes:  # the command writes those of a local job
                await asyncio.to_thread(self._write_flags)
        except ElasticDLError as error:
            # USER_ERROR is an exit code between processes of a job; users see JOB_FAILED.
            wrong = error.exit_code is ExitCode.USER_ERROR
            code = ExitCode.JOB_FAILED if wrong else error.exit_code
            self._queue.post(PreflightFailed(self._queue.at_s(), error.message, error.hint, code))
            return
        await self._queue.post(
            JobStarted(
                self._queue.at_s(),
                preflight.training,
                preflight.validation,
                preflight.prediction,
                start.ledger,
                start.version,
                start.passed_over,
                start.again,
                preflight.sync,
                start.anew,
                start.restore_from,
                exported,
                preflight.why_sync,
                preflight.max_staleness,
                start.restored_bytes,
                start.restored_age_s,
            )
        )
        self._begin(preflight, start)

    def _write_flags(self) -> None:
        """Rewrite job.yaml. Raises PermanentError.

        The flags of a job that is refused do not replace those of the job before it.
        """
        try:
            write_flags(self._spec, self._directory)
        except OSError as error:
            raise _unwritable(self._directory.yaml, error) from error

    def _start(self, preflight: Preflight) -> JobStart:
        """Find where the job starts. Raises ElasticDLError."""
        start = self._archive.beginning()
        if not start.anew:
            if start.ledger:
                # Raise for other data here: a job that has begun replaces the last run's results.
                resume(start.ledger, preflight.training, self._spec.data.num_epochs, ShardIds())
            return start
        sync = {} if preflight.sync is None else {"sync": preflight.sync}
        plan = training_plan(self._spec.replace(**sync), preflight.training)
        return self._archive.begin_again(start, plan)

    async def _preflight(self) -> Preflight:
        """Return the saved result of the command or of an earlier master, or run the check."""
        # Here the packages are those of the image.
        refuse_missing_package(self._spec)
        path = self._directory.preflight
        preflight = load_preflight(path)
        if preflight is None:
            preflight = await self._check()
            try:
                save_preflight(path, preflight)
            except OSError as error:
                raise _unwritable(path, error) from error
        return preflight

    async def _check(self) -> Preflight:
        loop, cancelled = asyncio.get_running_loop(), threading.Event()

        def tell(text: str) -> None:
            loop.call_soon_threadsafe(self._progressed, text)

        with check_streams() as streams:
            try:
                async with self._process(streams.standard) as process:
                    follow = partial(
                        follow_check,
                        self._spec,
                        process,
                        streams,
                        tell=tell,
                        cancelled=cancelled.is_set,
                    )
                    check = asyncio.ensure_future(asyncio.to_thread(follow))
                    try:
                        return await asyncio.shield(check)
                    except asyncio.CancelledError:
                        cancelled.set()
                        await asyncio.gather(check, return_exceptions=True)
                        raise
            except (CreateRefused, OSError) as error:
                raise PermanentError(f"cannot check model and data: {error}") from error

    def _progressed(self, text: str) -> None:
        self._queue.post(PreflightProgressed(self._queue.at_s(), text))


def _unwritable(path: Path, error: OSError) -> PermanentError:
    return PermanentError(
        f"cannot write {path}: {error.strerror or error}",
        hint="free disk space, or choose another --job-dir",
    )
