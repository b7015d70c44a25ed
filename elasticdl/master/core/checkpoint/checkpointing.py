"""Decides when to take a checkpoint, and handles its result.

A failed checkpoint is announced and retried; older ones stay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.formatting import size
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.job_choices import Action
from elasticdl.master.core.checkpoint.complete import CompleteCheckpoints
from elasticdl.master.core.checkpoint.intervals import Intervals
from elasticdl.master.core.checkpoint.saves import Saving
from elasticdl.master.core.checkpoint.snapshots import Snapshots, retry_s
from elasticdl.master.core.commands import (
    DropSnapshot,
    HurrySnapshot,
    Purpose,
    SaveSnapshot,
)
from elasticdl.master.core.events import SnapshotSaved
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.updates import NOTHING, UpdateMark
from elasticdl.shard import SnapshotId

SAVE_LIMIT_S = 1800.0
_TRIES = 5
"""Failures in a row until the checkpoint is given up.

A cause that fails this often fails the next try too, so nothing is tried until the next checkpoint
is due.
"""
_MOST_PAUSED_S = 30.0
"""Of each server while it writes a checkpoint that nobody waits for; less for short intervals."""
_WHAT_TO_DO = (
    "fix the cause (free disk space; bring the object store back; if the model diverged, stop the"
    " job and --resume with a smaller learning rate), then run `elasticdl checkpoint`"
)


@final
class Checkpointing:
    """Decides on checkpoints. `wanted` says why one is due that is not ordered yet."""

    def __init__(self, context: JobContext, snapshots: Snapshots) -> None:
        self._context = context
        self._snapshots = snapshots
        self.wanted = ""
        self.complete = CompleteCheckpoints(context)
        self.intervals = Intervals(context)
        self.saving: Saving | None = None
        self._slow: Saving | None = None
        """A save that was given up as too slow; it may still complete."""
        self.newest_cut_s = -1.0
        """When the newest cut was made of which a checkpoint is complete; below 0 there is none."""
        self.last_problem = ""
        self._copied = True
        """Whether the last checkpoint that was to be copied to an object store was."""
        self._cut: SnapshotId | None = None
        self._wanted_after_cut = ""
        """Why the cut that is under way is not enough."""
        self._failures = 0
        self._given_up = False
        """Whether the last due checkpoint was given up.

        From then on each is tried once, until one is saved.
        """
        self._retry_at_s = 0.0
        self._hurried: SnapshotId | None = None
        """The newest cut that others wait for."""
        self._awaited = False
        """Whether somebody waits for the checkpoint that is wanted or under way."""
        self._leaving: tuple[ProcessName, ...] = ()
        """Servers that leave as soon as the wanted checkpoint is there, or that have ended."""
        self._cut_is_final = False
        self._final_done = False
        self._delayed_s = 0.0
        self._ordered_s: float | None = None
        """When the servers were told to make the cut; None for a ring, which plans it ahead."""

    @property
    def under_way(self) -> bool:
        """Whether a checkpoint is being cut or written."""
        return self._cut is not None or self.saving is not None

    @property
    def delays(self) -> bool:
        """Whether a checkpoint is being cut, or written without pauses."""
        return self._cut is not None or (self.saving is not None and not self.saving.paced)

    @property
    def delayed_s(self) -> float:
        """When the newest one that was written without pauses ended; at first the job's begin."""
        return self._delayed_s

    def start(self, version: int) -> None:
        """Count versions from here."""
        self.complete.begun_version = version
        self.intervals.start(version)
        self._delayed_s = self._context.now_s

    def asked(self, leaving: ProcessName | None = None) -> None:
        """Request a checkpoint, if possible: for a person, or before the server `leaving` goes."""
        why_not = self.why_not()
        if leaving:
            self._announce_leaving(leaving, why_not)
        elif why_not:
            self._context.orders.announce(
                "checkpoint", f"checkpoint request refused: {why_not}", level="warning"
            )
        if why_not:
            return
        self._failures, self._given_up, self._retry_at_s = 0, False, self._context.now_s
        self._awaited = True
        self._leaving += (leaving,) if leaving else ()
        self.hurry()
        if leaving and self._cut is not None:
            # That server may have acknowledged updates since it made its part of the cut.
            self._wanted_after_cut = f"{leaving} leaves"
            return
        self.request(f"{leaving} leaves" if leaving else "requested by a user")
        if not leaving:
            self._context.orders.announce("checkpoint", f"checkpoint requested{self.not_yet()}")

    def _announce_leaving(self, server: ProcessName, why_not: str | None) -> None:
        newest = self.complete.newest
        since = f"since version {newest.version}" if newest else "so far"
        text = f"{server} is leaving; taking a checkpoint first"
        if why_not:
            text = f"{server} is leaving and loses its updates {since}: {why_not}"
        self._context.orders.announce(
            "checkpoint", text, process=server, level="warning" if why_not else "info"
        )

    def why_not(self) -> str | None:
        """Why a person cannot request a checkpoint, in words; None if they can."""
        if not self._context.spec.keeps_checkpoints:
            return (
                "the servers share no storage: no --checkpoint-dir, and no --job-dir on a --volume"
            )
        if self._context.spec.action is not Action.TRAIN:
            return "the job does not train, so it has nothing to save"
        if late := self._context.late():
            return f"the job {late}"
        return (
            "the job has not begun, so it has nothing to save"
            if self._context.phase is Phase.STARTING
            else None
        )

    def not_yet(self) -> str:
        """Words that say that a wanted checkpoint waits for the first step; '' if it need not."""
        return "" if self.begun else "; it will be taken after the first step"

    def request(self, why: str) -> None:
        """Request a checkpoint as soon as possible."""
        self.wanted = self.wanted or why
        self.hurry()

    def hurry(self) -> None:
        """Have servers pause no longer while they write: somebody waits until they are done."""
        if self.saving is not None and self.saving.paced:
            self.saving = replace(self.saving, paced=False)
            self._context.orders.give(HurrySnapshot(self.saving.id))

    def begin_final(self) -> None:
        """Request the last checkpoint, of the weights at the end of the work."""
        self._failures, self._retry_at_s = 0, self._context.now_s
        # Earlier ones failed for reasons of their own, such as the stop of the ring.
        self.last_problem = ""
        self.wanted, self._leaving = "end of training", ()
        self.hurry()

    @property
    def final_saved(self) -> bool:
        """Whether the last checkpoint is on disk."""
        return self._final_done

    @property
    def final_over(self) -> bool:
        """Whether the last checkpoint is on disk, or there will be none.

        It has failed often enough, or all that was trained is gone with a server.
        """
        hopeless = not self.begun or self._failures >= _TRIES
        return self._final_done or (not self.under_way and hopeless)

    def possible(self) -> bool:
        """Whether a checkpoint can be taken now."""
        phase = (
            self._context.phase in (Phase.WORKING, Phase.EVALUATING, Phase.CHECKPOINTING)
            and self._context.work is not None
        )
        free = (
            self._snapshots.open_cut is None
            and not self.under_way
            and self._context.now_s >= self._retry_at_s
        )
        return phase and free and self.begun and not self._context.servers_away()

    @property
    def begun(self) -> bool:
        """Whether weights exist: this job, or the one that it began with, has made a step."""
        work = self._context.work
        return bool(self._context.version) or (work is not None and bool(work.totals().trained))

    @property
    def due_by_time(self) -> bool:
        """Whether the interval is over and the weights have changed since the last checkpoint."""
        return self.intervals.due_by_time(given_up=self._given_up)

    @property
    def server_leaves(self) -> bool:
        """Whether a server leaves as soon as the wanted checkpoint is there."""
        return any(name in self._context.processes.going for name in self._leaving)

    def crowded(self) -> None:
        """Take the next checkpoint as soon as the rule of 2 % allows, whatever the interval.

        A worker soon has no room for pushes that no checkpoint has.
        """
        self.intervals.early.crowded()
        self.hurry()

    def worker_ended(self) -> None:
        """Hurry: only the checkpoint after this one has all that the worker pushed."""
        if self.intervals.early.in_pods:
            self.hurry()

    @property
    def ends_with_one(self) -> bool:
        """Whether a job that is done takes a last checkpoint."""
        return self.intervals.ends_with_one(any_saved=bool(self.complete.saved))

    def decide(self) -> None:
        """Order a checkpoint of the servers if one is due and possible."""
        if (self.wanted or self.due_by_time) and self.possible():
            self._begin(self._snapshots.take(Purpose.CHECKPOINT))
            self._ordered_s = self._context.now_s

    def take_hurried(self, *, seal: bool) -> SnapshotId:
        """Order a checkpoint that other servers wait for. Only if it is `possible`.

        It is not copied to --checkpoint-dir, and does not postpone the next one that is. With
        `seal` the servers admit no push after its cut.
        """
        snapshot = self._snapshots.take(Purpose.CHECKPOINT, seal=seal)
        self._begin(snapshot)
        # Who asked for a checkpoint may want the copy.
        self._wanted_after_cut = self.wanted
        self._hurried, self._ordered_s = snapshot, self._context.now_s
        return snapshot

    def mark(self, version: int) -> SnapshotId:
        """Expect the ring's next checkpoint at that version. Only if it is `possible`."""
        # Items are planned ahead: without this, the next item would make the same checkpoint due
        # again.
        self.intervals.count_from(version)
        snapshot = self._snapshots.expect(Purpose.CHECKPOINT)
        self._begin(snapshot)
        return snapshot

    def rolled_back(self, version: int) -> None:
        """Count from an earlier version after the job returned to it.

        A checkpoint of a later version no longer counts as the last one.
        """
        self.intervals.anchor = version
        self._final_done = False

    def undo(self, version: int) -> None:
        """All servers return to that version: checkpoints of later ones have undone steps."""
        self.complete.undo(version)
        if self.saving is not None and self.saving.version > version:
            self.saving = replace(self.saving, undone=True)
            if self._awaited:
                self.request("the one before has undone steps")
        if self._slow is not None and self._slow.version > version:
            self._slow = replace(self._slow, undone=True)

    def _begin(self, cut: SnapshotId) -> None:
        self._cut = cut
        self._wanted_after_cut = ""
        self._cut_is_final = self._context.phase is Phase.CHECKPOINTING

    def recut(self, old: SnapshotId, new: SnapshotId) -> None:
        """Expect another snapshot in the place of one that was ordered by an earlier master."""
        if self._cut == old:
            self._cut = new

    def save_again(self) -> None:
        """Order again what an earlier master was writing; forget what it had given up."""
        self._slow = None
        # The servers may still write for the earlier master.
        self.hurry()
        if self.saving is not None and self.saving.undone:
            self.saving = None
        if self.saving is not None:
            saving = self.saving
            self.saving = replace(saving, since_s=self._context.now_s)
            self._context.orders.give(
                SaveSnapshot(saving.id, saving.version, saving.ledger, keeps=self._keeps)
            )

    def version_changed(self) -> None:
        """Request a checkpoint if the servers' new version makes one due."""
        if self.intervals.take_step_interval():
            self.request(f"version {self._context.version}")

    def mark_of(self, version: int) -> UpdateMark | None:
        """The updates of this run that a server has that restored `version`; None: not known."""
        if (saved := self.complete.at_version(version)) is not None:
            return saved.mark
        if self.saving is not None and self.saving.version == version:
            # A server restored it, so it is complete, before the master heard of it.
            return self.saving.mark
        return NOTHING if version in (0, self.complete.begun_version) else None

    def cut(self, snapshot: SnapshotId, version: int, ledger: str, mark: UpdateMark) -> None:
        """Write the frozen view, together with the ledger (JSON) at exactly that point."""
        # A cut that began before the phase CHECKPOINTING may miss the last steps: the last
        # checkpoint is still wanted.
        final_wanted = self._context.phase is Phase.CHECKPOINTING and not self._cut_is_final
        self._cut = None
        self.wanted = self.wanted if final_wanted else self._wanted_after_cut
        if self._is_counted(snapshot):
            self.intervals.count_from(version)
        now_s = self._context.now_s
        delayed_since_s = now_s if self._ordered_s is None else self._ordered_s
        hurried, final = snapshot == self._hurried, self._cut_is_final
        pause_s = 0.0 if hurried or final else self._pause_s
        self.saving = Saving(
            snapshot, version, now_s, delayed_since_s, final, ledger, mark, paced=pause_s > 0
        )
        held = self._context.loading
        self._context.orders.give(
            SaveSnapshot(snapshot, version, ledger, hurried, held, pause_s, self._keeps)
        )

    @property
    def _keeps(self) -> bool:
        """Whether older checkpoints stay until `CompleteCheckpoints.prune`.

        The job may go back to one meanwhile. And a slow store must not delay the news that the new
        one is complete.
        """
        return self._context.spec.trains_in_steps or bool(self._context.spec.checkpoints_at)

    @property
    def _pause_s(self) -> float:
        """For how long servers may pause while they write the checkpoint that was cut."""
        # A ring writes a copy of its weights, which is small. After a failure the job has been
        # without a checkpoint for longer.
        on_ring, failed = self._ordered_s is None, bool(self._failures) or self._given_up
        if self._awaited or self.intervals.early.due or self.wanted or on_ring or failed:
            return 0.0
        seconds = self.intervals.seconds
        return min(_MOST_PAUSED_S, seconds / 2 if seconds else _MOST_PAUSED_S)

    def completed(self, event: SnapshotSaved) -> None:
        """Note a checkpoint on disk, even one that was given up as too slow."""
        written, took_s, late = None, 0.0, True
        if self.saving is not None and self.saving.id == event.snapshot:
            took_s = event.at_s - self.saving.since_s
            written, late = self.saving, False
            self._final_done = self.saving.final and not self.saving.undone
            self._pause_after(self.saving, event.paused_s)
            self.saving = None
            self._failures, self._given_up = 0, False
            self._awaited = self._awaited and bool(self.wanted)
            self._leaving = self._leaving if self.wanted else ()
        elif self._slow is not None and self._slow.id == event.snapshot:
            written = self._slow
            self._pause_after(self._slow, event.paused_s)
            self._slow = None
        self._context.orders.give(DropSnapshot(event.snapshot, saved=True))
        if written is not None and written.undone:
            # Nobody may restore it: the job has gone back to an earlier one.
            self.complete.undone.append(event.version)
            return
        if written is not None:
            self.newest_cut_s = max(self.newest_cut_s, written.since_s)
            self.intervals.early.saved(written.delayed_since_s)
        # The last checkpoint may replace one of the same version that was just announced.
        known = any(saved.path == event.path for saved in self.complete.saved)
        self.complete.add(event, written, late=late)
        # A server that is away may be reading one of them. The next checkpoint removes them.
        if self._keeps and not self._context.servers_away():
            self.complete.prune(event.version)
        if not (known and self._final_done):
            text = f"checkpoint of version {event.version} saved, {size(event.bytes)}: {event.path}"
            details = meaning(
                EventStep.SAVED, version=event.version, bytes=event.bytes, seconds=took_s
            )
            self._context.orders.announce("checkpoint", text, details=details)
        self._tell_copy(event)

    def _tell_copy(self, event: SnapshotSaved) -> None:
        """Warn of the first checkpoint that is not copied, and tell when one is again."""
        announce, was_copied = self._context.orders.announce, self._copied
        if event.not_copied:
            self._copied = False
            why = f"{event.not_copied}; the next checkpoint tries again"
            announce("checkpoint", why, level="warning" if was_copied else "detail")
        elif not was_copied and self._is_counted(event.snapshot):
            self._copied = True
            copies = self._context.spec.checkpoint_copies
            announce("checkpoint", f"checkpoints are copied to {copies} again")

    def _is_counted(self, snapshot: SnapshotId) -> bool:
        """Whether intervals begin with it; where copies are kept only with those copied."""
        return snapshot != self._hurried or not self._context.spec.checkpoint_copies

    def _delayed(self, saving: Saving) -> None:
        if not saving.paced:
            self._delayed_s = self._context.now_s

    def _pause_after(self, saving: Saving, paused_s: float) -> None:
        self._delayed(saving)
        if self._is_counted(saving.id):
            self.intervals.saved(saving.delayed_since_s, paused_s)

    def fail_cut(self, reason: str) -> None:
        """Give up the cut that servers or members are making, if there is one."""
        if self._snapshots.open_cut is not None:
            snapshot = self._snapshots.open_cut.id
            self._snapshots.answered(snapshot)
            self.failed(snapshot, reason)

    def failed(self, snapshot: SnapshotId, reason: str) -> bool:
        """Handle a failed cut or save. False if it is not a checkpoint's."""
        if snapshot != self._cut and (self.saving is None or self.saving.id != snapshot):
            return False
        if self.saving is not None:
            # What it took says how long the disk or the store was away, and not what one takes.
            self._delayed(self.saving)
            self._context.orders.give(DropSnapshot(snapshot))
        self._cut = self.saving = None
        # A full disk fails every attempt with the same words; announce them once.
        news = reason != self.last_problem or not self._failures
        self._failures += 1
        self.last_problem = reason
        if self._context.phase is not Phase.CHECKPOINTING and self._failures >= (
            1 if self._given_up else _TRIES
        ):
            self._give_up()
            return True
        pause_s = retry_s(self._failures)
        self._retry_at_s = self._context.now_s + pause_s
        self.request("the previous one failed")
        if news:
            text = (
                f"checkpoint failed: {reason}; earlier ones are kept; retrying in {pause_s:.0f} s"
            )
            self._context.orders.announce("checkpoint", text, level="warning")
        return True

    def _give_up(self) -> None:
        if not self._given_up:
            text = (
                f"checkpoint failed {_TRIES} times: {self.last_problem}; earlier ones are kept, and"
                f" the next is tried when it is due; {_WHAT_TO_DO}"
            )
            self._context.orders.announce("checkpoint", text, level="error")
        self._given_up, self._failures, self.wanted = True, 0, ""
        self._awaited, self._leaving = False, ()
        self._delayed_s = self._context.now_s
        self.intervals.begin_again()

    def tick(self) -> None:
        """Give up a save that takes too long."""
        if self.saving is not None and self._context.now_s - self.saving.since_s > SAVE_LIMIT_S:
            # Keep its ledger: if the save completes after all, a ring may roll back to it.
            self._slow = self.saving
            self.failed(self.saving.id, f"writing it took more than {SAVE_LIMIT_S:.0f} s")
