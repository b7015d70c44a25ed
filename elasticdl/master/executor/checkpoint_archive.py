"""The master's checkpoints: the one that a job starts from, and new ones from cut views."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, final

from pydantic import ValidationError

from elasticdl.addresses import is_address
from elasticdl.checkpoint import copies, directories
from elasticdl.checkpoint.directories import FoundCheckpoint
from elasticdl.checkpoint.manifest import Link, Manifest, PartFile
from elasticdl.checkpoint.strategy import strategy_of
from elasticdl.embedding.spec import ParametersSpec
from elasticdl.errors import Corrupted, PermanentError, TransientError, UserError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action, Strategy
from elasticdl.jobdir.address_owner import require_ours
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.scale_override import keep_scale, keep_servers
from elasticdl.jobdir.working_directory import WorkingDirectory
from elasticdl.master.core.commands import SaveSnapshot
from elasticdl.master.core.data.resuming import begin_again, count_repeated
from elasticdl.master.core.data.sharding import ShardPlan
from elasticdl.master.executor.checkpoint_place import (
    CheckpointPlace,
    DirectoryPlace,
    StorePlace,
)
from elasticdl.master.executor.run_before import run_before
from elasticdl.rpc.ps_control import ServerSaved
from elasticdl.shard import SnapshotId
from elasticdl.storage.attempts import RUNNING

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobStart:
    """Where a job starts.

    `restore_from` is a checkpoint's directory or address, or ''. `ledger` is '' for a fresh ledger.
    `passed_over` says why newer checkpoints were not used. `again` counts records that the previous
    run is known to have trained after the checkpoint. `anew`: --resume, but there is no
    checkpoint yet, so the job starts over. `restored_bytes` and `restored_age_s`: the size and
    the age of this job's checkpoint.
    """

    restore_from: str = ""
    ledger: str = ""
    version: int = 0
    passed_over: tuple[str, ...] = ()
    again: int = 0
    anew: bool = False
    restored_bytes: int = 0
    restored_age_s: float = 0.0


class Saver(Protocol):
    """Writes the parts of a view: the servers, or the ring's worker with the copy."""

    async def save(
        self,
        snapshot: SnapshotId,
        directory: str,
        base: SnapshotId | None = None,
        pause_s: float = 0.0,
    ) -> tuple[ServerSaved, ...]:
        """Write every part of a view below `directory`. Raises ElasticDLError.

        A part may be a delta of the view `base`. Who writes it pauses for `pause_s` at most.
        """


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A complete checkpoint.

    `not_copied`: why there is no copy in the object store; '' if there is, or if none is wanted.
    `paused_s`: of the time it took, each server paused for as long as this or longer.
    """

    directory: str
    bytes: int
    not_copied: str = ""
    paused_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest checkpoint that this master has taken, of which the next one may be a delta."""

    snapshot: SnapshotId
    directory: str
    manifest: Manifest
    hurried: bool


@final
class CheckpointArchive:
    """A job's checkpoints.

    New servers restore from `restore_from`.
    """

    def __init__(self, spec: JobSpec, checkpoints: Path) -> None:
        self._spec = spec.checkpoint
        self._copies, self._job_dir = spec.checkpoint_copies, spec.cluster.job_dir
        self._epochs = spec.data.num_epochs
        self._workers = spec.cluster.num_workers
        self._servers = spec.cluster.num_ps_pods
        self._action = spec.action
        self._strategy = spec.training.distribution_strategy
        self._checkpoints = checkpoints
        self._shares_job_dir, at = spec.shares_job_dir, spec.checkpoints_at
        self._place: CheckpointPlace = StorePlace(at) if at else DirectoryPlace(checkpoints)
        self._newest_taken: _Newest | None = None
        self.restore_from = ""

    def beginning(self) -> JobStart:
        """Return the start that the flags ask for: a resume, another job's parameters, or afresh.

        Reads every byte of the checkpoint. Raises UserError if a named checkpoint is missing,
        Corrupted if none is intact.
        """
        if not self._spec.resume:
            return self._afresh()
        passed_over = self._fetch_newer()
        start = self._newest()
        return replace(start, passed_over=(*passed_over, *start.passed_over))

    def _fetch_newer(self) -> tuple[str, ...]:
        """Bring a newer copy from the object store here; return why others were passed over."""
        if not self._copies:
            return ()
        try:
            here = directories.newest(self._checkpoints)
        except Corrupted:
            # All of them are damaged: a copy of the same version may be intact.
            here = None
        newest = here.manifest.version if here else -1
        try:
            return copies.fetch_newer(self._copies, self._checkpoints, newest)
        except OSError as error:
            raise PermanentError(
                f"cannot write to {self._checkpoints}: {error.strerror or error}",
                hint="free disk space, or choose another --job-dir",
            ) from error

    def _newest(self) -> JobStart:
        if (checkpoint := self._place.newest()) is not None:
            return self._resumed(checkpoint)
        return replace(self._afresh(), anew=True)

    def begin_again(self, start: JobStart, plan: ShardPlan) -> JobStart:
        """Return the start of a job that is to begin `anew`, with its ledger.

        What earlier runs are known to have trained on the same data counts as repeated.
        """
        before = run_before(JobDirectory(self._checkpoints.parent))
        ledger, again = begin_again(plan, before)
        return replace(start, ledger=ledger, again=again)

    def _afresh(self) -> JobStart:
        if not self._spec.checkpoint_dir_for_init:
            return JobStart()
        checkpoint = self._initial()
        self._refuse_of_other_strategy(checkpoint.where, checkpoint.manifest)
        _LOG.info("starting with the parameters of %s", checkpoint.where)
        # Servers report their version; a ring that only evaluates or predicts does not.
        still = self._strategy is Strategy.ALLREDUCE and self._action is not Action.TRAIN
        version = checkpoint.manifest.version if still else 0
        return JobStart(checkpoint.where, version=version, passed_over=checkpoint.rejected)

    def _initial(self) -> FoundCheckpoint:
        """The checkpoint of --checkpoint-dir-for-init.

        One at an address is fetched, unless the job's processes share no directory.
        """
        place = self._spec.checkpoint_dir_for_init
        if is_address(place) and not self._shares_job_dir:
            if (there := StorePlace(place).newest()) is None:
                raise copies.none_in(place)
            return there
        folder, not_fetched = self._fetched(place) if is_address(place) else (Path(place), ())
        checkpoint = directories.require(folder.resolve())
        return replace(checkpoint, rejected=(*not_fetched, *checkpoint.rejected))

    def _fetched(self, place: str) -> tuple[Path, tuple[str, ...]]:
        """Where a checkpoint at an address is on disk, and why newer ones were passed over."""
        initial = JobDirectory(self._checkpoints.parent).initial
        try:
            return initial, copies.fetch(place, initial)
        except OSError as error:
            raise PermanentError(
                f"cannot write to {initial}: {error.strerror or error}",
                hint="free disk space, or choose another --job-dir",
            ) from error

    async def save(self, command: SaveSnapshot, snapshots: Saver) -> SavedCheckpoint:
        """Save all parts of a view, add the manifest, and remove old checkpoints.

        Nothing is removed while others wait: that of a large one takes longer than a small delta.
        A failure leaves earlier checkpoints in place. Raises ElasticDLError.
        """
        making = await asyncio.to_thread(self._place.begin, command.version)
        manifest, paused_s = await self._parts(command, snapshots, making)
        # If the job ends meanwhile, the thread continues. Do not remove the files that it
        # completes.
        begin_s = time.monotonic()
        directory = await asyncio.to_thread(self._complete, making, manifest)
        if is_address(directory):
            # A request to a store takes no time from training, as an upload.
            paused_s += time.monotonic() - begin_s
        newest = self._newest_taken
        if newest is None or newest.snapshot < command.snapshot:
            # One that was given up as too slow may be complete after a newer one.
            self.restore_from = directory
            self._newest_taken = _Newest(command.snapshot, directory, manifest, command.hurried)
        if not (command.hurried or command.keeps):
            await self.prune(command.version, command.held)
        problem = ""
        if self._copies and not command.hurried:
            problem = await asyncio.to_thread(self._copy, Path(directory), manifest)
        return SavedCheckpoint(directory, manifest.bytes, problem, paused_s)

    def _complete(self, making: str, manifest: Manifest) -> str:
        try:
            return self._place.complete(making, manifest)
        except copies.FileLost:
            # It may be a file of the base: the next checkpoint is a full one.
            self._newest_taken = None
            raise

    async def prune(self, version: int, held: Collection[str] = ()) -> None:
        """Remove checkpoints before `version`, but for the newest that are kept, and for `held`."""
        keep = self._spec.keep_checkpoint_max
        await asyncio.to_thread(self._place.prune, keep, version, held)

    def _copy(self, directory: Path, manifest: Manifest) -> str:
        """Copy a checkpoint to the object store; return why that failed, '' if it did not."""
        address = self._copies
        try:
            self._require_ours()
            copies.upload(directory, manifest, address)
            self._require_ours()
            copies.prune(address, self._spec.keep_checkpoint_max, manifest.version)
        except (UserError, TransientError, Corrupted, OSError) as error:
            # The checkpoint here is complete, and older ones are gone: it counts.
            return f"cannot copy {directory.name} to {address}: {error}"
        return ""

    def _require_ours(self) -> None:
        """Raise AddressLost if another command has taken the address of --job-dir."""
        if is_address(self._job_dir):
            owner = WorkingDirectory.of(self._job_dir).state().owner
            # As long as the upload waits: the last checkpoint is copied only once.
            require_ours(self._job_dir, owner, RUNNING)

    def keep_scale(self, low: int, high: int) -> None:
        """Save the range of workers that a user scaled the job to, for a resume."""
        keep_scale(JobDirectory(self._checkpoints.parent), self._workers, low, high)

    def keep_servers(self, number: int) -> None:
        """Save the number of servers that a user changed the job to, for a resume."""
        keep_servers(JobDirectory(self._checkpoints.parent), self._servers, number)

    async def _parts(
        self, command: SaveSnapshot, snapshots: Saver, making: str
    ) -> tuple[Manifest, float]:
        """Have all parts written; their manifest, and for how long every server has paused."""
        whole = False
        try:
            links, base = await asyncio.to_thread(self._linked, making, command)
            parts = await snapshots.save(command.snapshot, making, base, command.pause_s)
            manifest = manifest_of(command, parts)
            if any(part.delta for part in parts):
                if len(parts) != len(links[-1].files):
                    self._newest_taken = None
                    raise TransientError(
                        f"{len(parts)} servers wrote a delta of a checkpoint of"
                        f" {len(links[-1].files)}"
                    )
                manifest = manifest.model_copy(update={"links": links})
            else:
                await asyncio.to_thread(self._place.unlink, making, links)
            whole = True
            return manifest, min((part.paused_s for part in parts), default=0.0)
        finally:
            if not whole:
                await asyncio.to_thread(self._place.abandon, making)

    def _linked(
        self, making: str, command: SaveSnapshot
    ) -> tuple[tuple[Link, ...], SnapshotId | None]:
        """The links of a delta, with their files in place, and its base; () and None for none."""
        base = self._newest_taken
        if base is None or (not command.hurried and not self._can_copy(base, command.version)):
            return (), None
        links = self._place.links(making, base.directory, base.manifest, any_length=command.hurried)
        return links, base.snapshot if links else None

    def _can_copy(self, base: _Newest, version: int) -> bool:
        """Whether an object store can have a delta of that version with this base.

        It has one folder for each version: the delta would replace its base. And a hurried base is
        not there, while another checkpoint of its version may be.
        """
        replaces = any(link.version == version for link in base.manifest.chain)
        return not replaces and not (base.hurried and self._copies)

    def _resumed(self, checkpoint: FoundCheckpoint) -> JobStart:
        if not checkpoint.manifest.ledger:
            raise UserError(
                f"{checkpoint.where} has no data ledger to resume",
                hint="use --checkpoint-dir-for-init instead",
            )
        self._refuse_of_other_strategy(checkpoint.where, checkpoint.manifest)
        _LOG.info("resuming from %s", checkpoint.where)
        before = run_before(JobDirectory(self._checkpoints.parent))
        ledger, again = count_repeated(checkpoint.manifest.ledger, before, self._epochs)
        manifest = checkpoint.manifest
        return JobStart(
            checkpoint.where,
            ledger,
            manifest.version,
            checkpoint.rejected,
            again,
            restored_bytes=manifest.bytes,
            restored_age_s=max(0.0, time.time() - manifest.wall_s) if manifest.wall_s else 0.0,
        )

    def _refuse_of_other_strategy(self, where: str, manifest: Manifest) -> None:
        """Raise UserError for a checkpoint of the other strategy.

        Servers store rows by id and a ring stores whole variables; neither can read the other's
        files.
        """
        made_by = strategy_of(manifest)
        if made_by is not self._strategy:
            raise UserError(
                f"{where} was made with --distribution-strategy {made_by}, but this"
                f" job uses {self._strategy}",
                hint="start with a checkpoint of the same strategy",
            )


def manifest_of(command: SaveSnapshot, saved: Sequence[ServerSaved]) -> Manifest:
    """Combine the servers' parts into one manifest. Raises PermanentError if they disagree."""
    parameters = {part.parameters for part in saved}
    if len(parameters) != 1:
        raise PermanentError(
            f"the {len(saved)} servers hold parameters of {len(parameters)} different models"
        )
    spec = parameters.pop()
    try:
        return Manifest(
            version=command.version,
            servers=len(saved) if spec else 0,
            parameters=ParametersSpec.model_validate_json(spec) if spec else None,
            files=tuple(
                PartFile(name=file.name, bytes=file.bytes, checksum=file.checksum)
                for part in saved
                for file in part.files
            ),
            rows=sum(part.rows for part in saved),
            ledger=command.ledger,
            wall_s=time.time(),
        )
    except ValidationError as error:
        raise Corrupted(
            f"the servers' descriptions of their parts form no valid manifest: {error}"
        ) from error
