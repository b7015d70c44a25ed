"""Follows processes from their order to their start: presence, deadlines, addresses.

`process_ends.py` handles their ends.
"""

from __future__ import annotations

from typing import final

from elasticdl.cluster.base import ProcessName, ProcessObserved, Role
from elasticdl.dropped import DropCause
from elasticdl.errors import ExitCode
from elasticdl.formatting import FIRST_PART, START_PARTS
from elasticdl.history.job_event import EventStep, Value, meaning
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.commands import PublishServers, RevokeLeases, StopProcess
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.events import ProcessAttached, ProcessSeen
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.causes import Cause, Verdict
from elasticdl.master.core.processes.process_ends import ProcessEnds
from elasticdl.master.core.processes.scaling import Scaling
from elasticdl.master.core.processes.table import Life, Process
from elasticdl.master.core.ps.rolling_back import RollingBack
from elasticdl.master.core.ps.update_booking import UpdateBooking
from elasticdl.master.core.tick_share import share_of_tick

_ATTACH_LIMIT_S = 300.0
_START_LIMIT_S = 1800.0
"""Limit of one part of a worker's start. Compiling may take long, but not forever."""
_MOST_FAILED_STARTS = 4
"""Workers in a row that exceed that limit."""


@final
class ProcessLifecycle:
    """Keeps the process table up to date with the events about processes."""

    def __init__(
        self,
        context: JobContext,
        scaling: Scaling,
        evaluation: Evaluation,
        checkpointing: Checkpointing,
        ends: ProcessEnds,
        rolling_back: RollingBack,
    ) -> None:
        self._context = context
        self.booking = UpdateBooking(context, checkpointing)
        self._scaling = scaling
        self._evaluation = evaluation
        self._checkpointing = checkpointing
        self._ends = ends
        self._rolling_back = rolling_back
        self._published: PublishServers | None = PublishServers(("",) * context.servers)
        self._begun = False
        self._failed_starts = 0
        """Workers in a row that were given up because a part of their start took too long."""

    # coming up

    def seen(self, event: ProcessSeen) -> None:
        """Note what the cluster shows of a process; stop one that nobody ordered."""
        process = self._context.processes.all.get(event.name)
        if process is None:
            if event.name.role is not Role.MASTER and not self._follows(event.name):
                self._context.orders.give(
                    StopProcess(event.name, 0.0, "it is not a process of this job")
                )
            return
        if process.life is Life.ENDED and not process.ran:
            # The answer to its creation was lost, and it was asked to end meanwhile.
            self._context.orders.give(
                StopProcess(event.name, 0.0, "it was given up before it was created")
            )
            return
        process.where = event.where or process.where
        process.place, process.ladder_place = event.place, event.ladder_place
        process.ran = process.ran or event.running
        if event.running and process.running_s is None:
            process.running_s = event.at_s
        if process.life in (Life.REQUESTED, Life.PENDING, Life.STARTING):
            life = Life.STARTING if event.running else Life.PENDING
            if (life, event.waiting_for) == (process.life, process.message):
                return
            # Waiting for a node may take days; only a running process has a deadline to attach.
            limit_s = event.at_s + _ATTACH_LIMIT_S if event.running else None
            process.enter(life, event.at_s, event.waiting_for, deadline_s=limit_s)

    def is_news(self, shown: ProcessObserved) -> bool:
        """Whether `seen` of what the cluster shows would change anything, now or later."""
        process = self._context.processes.going.get(shown.name)
        if process is None or process.life is not Life.READY:
            return True
        return (
            shown.where not in ("", process.where)
            or (shown.place, shown.ladder_place) != (process.place, process.ladder_place)
            or (shown.running and (not process.ran or process.running_s is None))
        )

    def _follows(self, name: ProcessName) -> bool:
        """Whether a server was started in the place of one whose end is not reported yet."""
        before = self._context.processes.server(name.index) if name.role is Role.PS else None
        return before is not None and before.name < name

    def resident(self, place: ProcessName) -> ProcessName | None:
        """Which server the platform has started, or is about to start, in the place of `place`."""
        process = self._context.processes.server(place.index)
        return process.name if process is not None and process.place == place else None

    def may_attach(self, name: ProcessName) -> bool:
        """Whether a process of that name is expected or already present, and not given up."""
        process = self._context.processes.going.get(name)
        return process is not None and process.life in (
            Life.REQUESTED,
            Life.PENDING,
            Life.STARTING,
            Life.READY,
        )

    def attached(self, event: ProcessAttached) -> None:
        """Handle the attaching of a process, also a repeated one after a lost reply."""
        process = self._context.processes.going.get(event.name)
        if process is None or not self.may_attach(event.name):
            self._context.drop(DropCause.ENDED_PROCESS, event.name, event)
            if event.name.role is Role.WORKER:
                self._context.orders.give(
                    RevokeLeases(event.name, f"{event.name} is not expected, or no longer")
                )
            return
        # The reply to an Attach may be lost, and the process then repeats the call.
        first = not process.attached
        process.attached = process.ran = True
        process.control_address, process.bulk_address = event.control_address, event.bulk_address
        process.instance = event.instance
        process.enter(Life.READY, event.at_s)
        process.busy_since_s = event.at_s
        process.restored_version = event.restored_version or 0
        if first:
            process.attached_s = event.at_s
            if event.starting:
                process.enter_part(FIRST_PART, event.at_s)
            else:
                self._ready(process)
        if event.name.role is Role.PS and first and not self._context.is_spare(event.name):
            self._server_back(event)

    def went_on(self, name: ProcessName, part: str) -> None:
        """Note that a worker reached another part of its start; '' ends the start."""
        process = self._context.processes.going.get(name)
        if process is None:
            self._context.drop(DropCause.ENDED_PROCESS, name, f"it reached {part!r}")
            return
        if not process.part or process.part == part:
            return
        took_s = self._context.now_s - process.part_since_s
        process.took_s[process.part] = process.took_s.get(process.part, 0.0) + took_s
        process.enter_part(part, self._context.now_s)
        if not part and process.life is Life.READY:
            self._ready(process)

    def _ready(self, process: Process) -> None:
        process.ready_s = self._context.now_s
        if process.name.role is Role.WORKER:
            self._failed_starts = 0
        text = f"{process.name} is ready after {self._context.now_s - process.started_s:.1f} s"
        self._context.orders.announce(
            "process", text, process=process.name, details=_started(process)
        )

    def least_version(self) -> int:
        """The version that no server can be below: the lowest that one restored.

        The version of a server only grows after that.
        """
        indices = self._context.server_map.indices
        servers = (self._context.processes.server(index) for index in indices)
        return min((server.restored_version if server else 0 for server in servers), default=0)

    def _server_back(self, event: ProcessAttached) -> None:
        if not self._rolling_back.attached(event) and event.name.incarnation:
            self.booking.back(event)
        if not self._context.servers_away():
            self._all_there()
            self.forgive()

    def _all_there(self) -> None:
        """Begin counting versions when every server is up for the first time.

        The initial parameters have the version that was restored.
        """
        if self._begun:
            return
        self._begun = True
        if self.least_version() > self._context.version:
            self._context.version = self.least_version()
            self._checkpointing.start(self._context.version)
            self._evaluation.start(self._context.version)

    def forgive(self, stalled_s: float = 0.0) -> None:
        """Restart the clocks of the workers, because none could make progress.

        `stalled_s`: for how long the master could not receive anything either.
        """
        for worker in self._context.processes.workers():
            worker.busy_since_s = self._context.now_s
        for process in self._context.processes.going.values():
            process.deadline_s = (
                None if process.deadline_s is None else process.deadline_s + stalled_s
            )

    def taken_over(self, away_s: float) -> None:
        """Excuse the time without a master, and publish the servers again."""
        self.forgive(away_s)
        self._published = None

    # time

    def tick(self, turn: int) -> None:
        """Act on processes that take too long. `turn`: the number of the tick."""
        stalled = bool(self._context.servers_away())
        going = list(self._context.processes.going.values())
        for process in share_of_tick(going, turn):
            if process.deadline_s is not None and self._context.now_s > process.deadline_s:
                self._overdue(process)
            elif (
                process.life is Life.REQUESTED
                and self._context.now_s - process.since_s > _ATTACH_LIMIT_S
            ):
                process.since_s = self._context.now_s
                self._scaling.order(process)
                self._context.orders.announce(
                    "wait", f"{process.name} has not appeared; ordered again", process=process.name
                )
            elif process.life is Life.READY and process.name.role is Role.WORKER and not stalled:
                self._check_start(process)

    def _overdue(self, process: Process) -> None:
        match process.life:
            case Life.STARTING:
                text = f"it runs, but did not attach to the master within {_ATTACH_LIMIT_S:.0f} s"
                self._ends.give_up(process, Verdict(Cause.INFRASTRUCTURE, text, blames_work=True))
            case Life.STOPPING if not process.message.startswith("killed"):
                text = f"killed: it did not end in time ({process.message})"
                self._ends.give_up(process, Verdict(process.cause or Cause.DRAINED, text))
            case Life.STOPPING | Life.LOST:
                text = f"{process.message}; its end was never seen"
                self._context.processes.end(
                    process, process.cause or Cause.NODE_LOST, text, self._context.now_s
                )
                message, details = f"{process.name}: {text}", meaning(EventStep.ENDED, reason=text)
                cause = str(process.cause or "")
                self._context.orders.announce(
                    "process",
                    message,
                    process=process.name,
                    cause=cause,
                    level="warning",
                    details=details,
                )
            case _:
                pass

    def _check_start(self, process: Process) -> None:
        """Give up a worker whose start takes too long."""
        starting_s = self._context.now_s - max(process.part_since_s, process.busy_since_s)
        if process.part and starting_s > _START_LIMIT_S:
            what = START_PARTS.get(process.part, process.part)
            text = f"{what} has taken {starting_s:.0f} s; the limit is {_START_LIMIT_S:.0f} s"
            self._ends.give_up(process, Verdict(Cause.STRAGGLER, text))
            self._start_failed(f"{process.name}: {text}")

    def _start_failed(self, text: str) -> None:
        """Count a failed start; fail the job after several if no worker is ready."""
        self._failed_starts += 1
        ready = any(worker.up for worker in self._context.processes.live_workers())
        if self._failed_starts >= _MOST_FAILED_STARTS and not ready:
            self._context.fail(
                f"{text}; it is the {self._failed_starts}th worker in a row that never gets ready",
                hint="its log shows the stacks of all threads",
                exit_code=ExitCode.STALLED,
            )

    def publish(self) -> None:
        """Tell workers the servers' addresses if they changed."""
        servers = self._context.server_map
        addresses = self._context.processes.addresses(servers.indices)
        known = self._published
        if known is not None and (known.addresses, known.first) == (addresses, servers.first):
            return
        order = PublishServers(addresses, servers.first)
        if self._context.phase not in (Phase.ENDING, Phase.ENDED):
            self._published = order
            self._context.orders.give(order)


def _started(process: Process) -> dict[str, Value]:
    """Details of a start: the seconds of each part.

    `pending_s` ends when the process runs, `start_s` when it attaches; then come its own parts.
    """
    ready_s, there_s = process.ready_s or 0.0, process.attached_s or 0.0
    running_s = there_s if process.running_s is None else process.running_s
    pending_s = max(0.0, running_s - process.ordered_s)
    start_s = max(0.0, there_s - process.ordered_s - pending_s)
    after_s = ready_s - process.started_s
    parts = {f"{part}_s": took_s for part, took_s in process.took_s.items()}
    return meaning(
        EventStep.READY,
        after_s=after_s,
        pending_s=pending_s,
        start_s=start_s,
        where=process.where,
        **parts,
    )
