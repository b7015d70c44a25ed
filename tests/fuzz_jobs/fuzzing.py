"""Many jobs, some at a time, until the time is over."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.fuzz_jobs import chaos
from tests.fuzz_jobs.chaos import Chaos, Role
from tests.fuzz_jobs.command import prepared
from tests.fuzz_jobs.flags import Strategy, draw, draw_sync
from tests.fuzz_jobs.running import Act, Kill, Verdict, run_job

Key = tuple[Strategy, int]


@dataclass(frozen=True)
class Plan:
    """Which jobs, and for how long.

    No job begins after `seconds`, nor after `jobs` of them (0: no such bound).
    """

    strategies: Sequence[Strategy]
    seeds: Iterator[int]
    seconds: float
    jobs: int = 0
    parallel: int = 2
    kill_share: float = 0.0
    chaos: Sequence[Role] = ()
    """Processes of these roles get signals, in every job."""
    sync: bool = False
    """Only jobs of synchronous steps."""
    keep: bool = False
    patience: float = 1.0
    """On a busy machine jobs may stand still, and last, so many times as long."""
    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))

    @property
    def options(self) -> str:
        """What makes the same job of a seed on the command line, beside its strategy."""
        chaos_roles = f" --chaos {','.join(self.chaos)}" if self.chaos else ""
        kills = f" --kill {self.kill_share:g}" if self.kill_share else ""
        return f"{' --sync' * self.sync}{chaos_roles}{kills}"


@dataclass
class Summary:
    """What came of them."""

    verdicts: list[Verdict] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.problems]

    def __str__(self) -> str:
        ended = sum(verdict.runs[-1].code == 0 for verdict in self.verdicts if verdict.runs)
        parts = [
            f"{len(self.verdicts)} jobs in {self.seconds:.0f} s: {ended} ended with 0,"
            f" {len(self.failed)} failed"
        ]
        for strategy in Strategy:
            took_s = [
                verdict.seconds
                for verdict in self.verdicts
                if verdict.prepared.draft.strategy is strategy
            ]
            if took_s:
                kills = sum(
                    run.kills
                    for verdict in self.verdicts
                    if verdict.prepared.draft.strategy is strategy
                    for run in verdict.runs
                )
                parts.append(
                    f"{strategy} {len(took_s)} jobs, {sum(took_s) / len(took_s):.1f} s each,"
                    f" {kills} kills"
                )
        if self.failed:
            parts.append(
                "seeds "
                + ", ".join(
                    f"{one.prepared.draft.strategy} {one.prepared.draft.seed}"
                    for one in self.failed
                )
            )
        return "; ".join(parts)


def fuzz(plan: Plan, tell: Callable[[str], None]) -> Summary:
    """Run them all; blocks. What fails is told, and its folder stays."""
    summary, begin_s, telling = Summary(), time.monotonic(), threading.Lock()
    keys = _keys(plan)

    def work() -> None:
        while True:
            with telling:
                key = next(keys, None) if time.monotonic() - begin_s < plan.seconds else None
            if key is None:
                return
            verdict = _one(plan, key)
            with telling:
                summary.verdicts.append(verdict)
                _tell(verdict, tell)

    with ThreadPoolExecutor(plan.parallel) as pool:
        for done in [pool.submit(work) for _ in range(plan.parallel)]:
            done.result()
    summary.seconds = time.monotonic() - begin_s
    return summary


def _keys(plan: Plan) -> Iterator[Key]:
    """Strategies take turns, each with the same seeds."""
    endless = ((strategy, seed) for seed in plan.seeds for strategy in plan.strategies)
    return itertools.islice(endless, plan.jobs or None)


def _one(plan: Plan, key: Key) -> Verdict:
    strategy, seed = key
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{strategy}-{seed}-", dir=plan.folder))
    draft = draw_sync(seed) if plan.sync else draw(seed, strategy)
    if plan.chaos:
        chaos.prepare(draft)
    job = replace(prepared(draft, folder), patience=plan.patience, options=plan.options)
    act: Act | None = None
    if plan.chaos:
        act = Chaos(job, plan.chaos)
    elif draft.choose.random() < plan.kill_share:
        act = Kill(job)
    verdict = run_job(job, act)
    if not verdict.problems and not plan.keep:
        shutil.rmtree(folder)
    return verdict


def _tell(verdict: Verdict, tell: Callable[[str], None]) -> None:
    draft = verdict.prepared.draft
    kills = sum(run.kills for run in verdict.runs)
    story = [what for run in verdict.runs for what in run.story]
    about = (
        f"{draft.rows} x {draft.epochs} records by {draft.batch}, {draft.workers} workers"
        + (f", {kills} killed" if kills and not story else "")
        + "".join(f", {what}" for what in story)
    )
    if verdict.problems:
        tell(f"{verdict.report()}\nleft in {verdict.prepared.folder}")
    else:
        tell(f"ok {draft.strategy} seed {draft.seed}: {about}, {verdict.seconds:.1f} s")
