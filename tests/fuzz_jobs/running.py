"""One fuzzed job from its draft to a verdict: what it left is held against what it says of
itself.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.errors import ElasticDLError
from tests.fuzz_jobs import counts
from tests.fuzz_jobs.command import Prepared, command
from tests.fuzz_jobs.counts import Counts
from tests.fuzz_jobs.flags import Then

STANDS_S = 90.0
"""Nothing that a job tells has changed for so long: it stands still.

Processes that start are told of, too.
"""
LIMIT_S = 420.0
"""The longest that a job may take, whatever it tells."""
_LOOK_S = 1.0
_TAIL_LINES = 15
_VERB_S = 60.0


@dataclass(frozen=True)
class Run:
    """One `elasticdl train` that has ended, or was ended."""

    code: int
    output: str
    seconds: float
    kills: int = 0
    alone: bool = False
    """Whether the only member of a ring was killed: its weights and steps are gone with it."""
    struck: int | None = None
    """How many signals workers and servers got; None: these may be replaced as they are."""
    story: tuple[str, ...] = ()
    """What was done to its processes."""
    stood: str = ""
    """Why it was ended from outside; '' if it ended by itself."""


@dataclass
class Verdict:
    """What is wrong with a job: nothing, if `problems` is empty."""

    prepared: Prepared
    runs: list[Run] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs)

    def report(self) -> str:
        """All that is needed to look into it."""
        draft = self.prepared.draft
        again = (
            f"python -m tests.fuzz_jobs --strategy {draft.strategy} --seed {draft.seed} --jobs 1"
            f" --keep{self.prepared.options}"
        )
        lines = [
            f"FAILED: seed {draft.seed}, {draft.strategy}: {'; '.join(self.problems)}",
            f"again: {again}",
        ]
        lines.append(f"command: {shlex.join(command('train', *self.prepared.arguments))}")
        lines += [
            f"--- run {number} ended with {run.code}; {', '.join(run.story) or 'undisturbed'}\n"
            + _tail(run.output, 40)
            for number, run in enumerate(self.runs, 1)
        ]
        stood = [run.stood for run in self.runs if run.stood]
        lines += stood
        tail_lines = 300 if stood else _TAIL_LINES
        lines += [
            f"--- {log.name}\n{_tail(log.read_text(errors='replace'), tail_lines)}"
            for log in sorted((self.prepared.job / "logs").glob("*.log"))
        ]
        return "\n".join(lines)


def _tail(text: str, lines: int = _TAIL_LINES) -> str:
    return "\n".join(line[:400] for line in text.splitlines()[-lines:])


def environment() -> dict[str, str]:
    """Of the jobs: no GPU is looked for, and what Python compiles is kept."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "CUDA_VISIBLE_DEVICES": ""}


def run_job(prepared: Prepared, act: Act | None = None) -> Verdict:
    """Run it to its end and look at what it left. `act` disturbs its first run, if that is not to
    be stopped.
    """
    verdict, draft = Verdict(prepared), prepared.draft
    try:
        if draft.then is Then.RESUME:
            _stopped_and_resumed(verdict)
        else:
            _ran(verdict, prepared, act)
        if draft.then is Then.BEGIN_WITH and not verdict.problems:
            _begun_with_its_checkpoint(verdict)
    except (OSError, KeyError, ValueError, TypeError, IndexError, ElasticDLError) as error:
        verdict.problems.append(f"what the job left cannot be read: {error!r}")
    return verdict


def _ran(
    verdict: Verdict,
    prepared: Prepared,
    act: Act | None = None,
    *more: str,
    before: Counts | None = None,
) -> None:
    """One run that is to end by itself, well, with all that there is trained."""
    run = _run(prepared, [*prepared.arguments, *more], act)
    verdict.runs.append(run)
    if run.stood or run.code != 0:
        verdict.problems.append(run.stood.partition("\n")[0] or f"exit code {run.code}")
        return
    verdict.problems += problems(prepared, run, before)


def _stopped_and_resumed(verdict: Verdict) -> None:
    """Ctrl-C at a random moment; then it goes on from its checkpoint, or begins if it had
    made no step. A job that was stopped in the check of model and data leaves no directory.
    """
    prepared = verdict.prepared
    first = _run(prepared, prepared.arguments, Stop(prepared))
    verdict.runs.append(first)
    if first.stood or first.code not in (0, 130):
        verdict.problems.append(
            first.stood.partition("\n")[0] or f"exit code {first.code} after Ctrl-C"
        )
    elif first.code == 0:
        verdict.problems += problems(prepared, first, None)
    elif (prepared.job / "job.json").exists():
        _ran(verdict, prepared, None, "--resume", *prepared.draft.changed)


def _begun_with_its_checkpoint(verdict: Verdict) -> None:
    """Another job with the same flags, whose weights begin where the newest checkpoint of the first
    was.
    """
    prepared = verdict.prepared
    found = counts.checkpoints(prepared.job)
    if not found:
        return
    before = counts.of_checkpoint(found[-1], prepared.draft.rows, prepared.draft.width)
    folder = prepared.folder / "second"
    folder.mkdir()
    _ran(
        verdict,
        prepared.elsewhere(folder),
        None,
        "--checkpoint-dir-for-init",
        str(found[-1].parent),
        before=before,
    )


def _run(prepared: Prepared, arguments: list[str], act: Act | None) -> Run:
    """Start, watch, and end what stands still."""
    begin_s, log = time.monotonic(), prepared.folder / "output.txt"
    with log.open("w") as sink:
        process = subprocess.Popen(
            command("train", *arguments, "-o", "json"),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**environment(), "COUNTING_PAUSE_S": str(prepared.draft.pause_s)},
        )
        try:
            stood = _watched(process, prepared, begin_s, act)
        finally:
            if act is not None:
                act.close()
            _end(process, prepared)
    return Run(
        process.returncode,
        log.read_text(errors="replace"),
        time.monotonic() - begin_s,
        kills=act.kills if act else 0,
        alone=act.alone if act else False,
        struck=act.struck if act else None,
        story=tuple(act.story) if act else (),
        stood=stood,
    )


def _watched(
    process: subprocess.Popen[bytes], prepared: Prepared, begin_s: float, act: Act | None
) -> str:
    """'' when it has ended by itself; else what it said of itself when it was given up."""
    told, since_s = "", begin_s
    stands_s, limit_s = STANDS_S * prepared.patience, LIMIT_S * prepared.patience
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S if act is None else act.look_s)
            return ""
        now_s = time.monotonic()
        status = _status(prepared.job)
        if act is not None:
            act.look(status, process)
        telling = _told(status) + str(_size_bytes(prepared.job / "events.jsonl"))
        if telling != told:
            told, since_s = telling, now_s
        if now_s - since_s > stands_s:
            return _stood(prepared, f"STANDS STILL: nothing has changed for {stands_s:.0f} s")
        if now_s - begin_s > limit_s:
            return _stood(prepared, f"TOO SLOW: not ended after {limit_s:.0f} s")


def _size_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _told(status: Mapping[str, Any] | None) -> str:
    """What changes while a job gets on."""
    if status is None:
        return ""
    processes = [
        (process["name"], process["state"], process["records"], process["evaluated"])
        for process in status["processes"]
    ]
    return repr(
        (
            status["phase"],
            status["version"],
            status["records"],
            processes,
            status["shards"],
            len(status["checkpoints"]),
        )
    )


def _status(job: Path) -> dict[str, Any] | None:
    """The master's view, None while there is none."""
    from elasticdl.rpc.master_client import MasterClient

    try:
        where = json.loads((job / "master.json").read_text())
        client = MasterClient(
            where["address"],
            where["token"],
            "cli",
            away_s=2.0,
            authority=where["authority"] or None,
        )
        try:
            return client.status().to_json()
        finally:
            client.close()
    except (OSError, ValueError, ElasticDLError):
        return None


def _stood(prepared: Prepared, why: str) -> str:
    """With the words of the verbs that are there for that, and stacks of the workers in their
    logs.
    """
    said = [why]
    for name, pid in processes(prepared.job):
        if name.startswith("worker-"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)  # zoo/counting.py waits for it
    for verb in (("status",), ("why", "-n", "40")):
        asked = subprocess.run(
            command(*verb, str(prepared.job)),
            capture_output=True,
            text=True,
            env=environment(),
            timeout=_VERB_S,
            check=False,
        )
        said.append(f"--- elasticdl {verb[0]}\n{_tail(asked.stdout + asked.stderr, 45)}")
    return "\n".join(said)


def _end(process: subprocess.Popen[bytes], prepared: Prepared) -> None:
    """By its id; the processes of a job end with the one that started them."""
    if process.poll() is None:
        process.kill()
        process.wait(30)
    deadline_s = time.monotonic() + 30
    while list(processes(prepared.job)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    for _, pid in processes(prepared.job):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def processes(job: Path) -> Iterator[tuple[str, int]]:
    """Names and ids of that job's, by their environment."""
    wanted = f"ELASTICDL_JOB_DIR={job}".encode()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            entries = environ.read_bytes().split(b"\0")
            if wanted in entries:
                names = [
                    entry.partition(b"=")[2].decode()
                    for entry in entries
                    if entry.startswith(b"ELASTICDL_PROCESS=")
                ]
                yield (names or ["master"])[0], int(environ.parent.name)


class Act:
    """Something that is done to a job once, when it has trained a random part of its records."""

    look_s = _LOOK_S
    struck: int | None = None
    story: Sequence[str] = ()

    def __init__(self, prepared: Prepared) -> None:
        draft = prepared.draft
        self._choose = random.Random(draft.seed)
        self._after = self._choose.uniform(0, 0.9) * draft.rows * draft.epochs
        self._done = False
        self.kills = 0
        self.alone = False

    def look(self, status: Mapping[str, Any] | None, process: subprocess.Popen[bytes]) -> None:
        """At what the master tells: now may be the moment."""
        trained = -1 if status is None else status["records"]["trained"]
        if status is not None and not self._done and trained >= self._after:
            with suppress(ProcessLookupError):
                self._done = self._act(status, process)

    def _act(self, status: Mapping[str, Any], process: subprocess.Popen[bytes]) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        """Called when the job has ended."""


class Kill(Act):
    """SIGKILL to a worker."""

    def _act(self, status: Mapping[str, Any], process: subprocess.Popen[bytes]) -> bool:
        found = [
            process["where"]
            for process in status["processes"]
            if process["role"] == "worker" and str(process["where"]).startswith("pid ")
        ]
        if found:
            os.kill(int(self._choose.choice(found).removeprefix("pid ")), signal.SIGKILL)
            self.kills += 1
            ring = status.get("ring")
            self.alone = ring is not None and len(ring["members"]) < 2
        return bool(found)


class Stop(Act):
    """Ctrl-C."""

    def _act(self, status: Mapping[str, Any], process: subprocess.Popen[bytes]) -> bool:
        process.send_signal(signal.SIGINT)
        return True


# What is true of a job that ended well


def problems(prepared: Prepared, run: Run, before: Counts | None) -> list[str]:
    """What its files say that cannot be true. `before`: what its first weights had."""
    receipt = json.loads((prepared.job / "receipt.json").read_text())
    status = json.loads((prepared.job / "status.json").read_text())["status"]
    events = [json.loads(line) for line in (prepared.job / "events.jsonl").read_text().splitlines()]
    undone = _undone(events)
    # What all servers' return to a checkpoint undid is in no weights.
    twice = receipt["total"]["repeated"] - sum(undone)
    return [
        *_of_receipt(prepared, receipt, run, undone),
        *_of_status(receipt, status),
        *_of_metrics(prepared, receipt, status, before, twice),
        *_of_export(prepared, receipt, before, twice),
        *_of_checkpoints(prepared, before, twice),
        *_of_replacements(prepared, run, events, len(undone)),
    ]


def _undone(events: Sequence[Mapping[str, Any]]) -> list[int]:
    """Of each return of all servers to a checkpoint, the records that are trained again."""
    returns = [event["details"] for event in events if "all servers go back to" in event["text"]]
    return [int(details["repeated"]) for details in returns]


def _of_receipt(
    prepared: Prepared, receipt: Mapping[str, Any], run: Run, undone: Sequence[int]
) -> Iterator[str]:
    draft, total = prepared.draft, receipt["total"]
    stopped = bool(draft.most_steps and "stop" in draft.callbacks)
    if not stopped:
        wanted = {
            "expected": (draft.rows + draft.bad) * draft.epochs,
            "trained": draft.rows * draft.epochs,
        }
        wanted |= {"bad": draft.bad * draft.epochs, "left": 0}
        for name, count in wanted.items():
            if total[name] != count:
                yield f"the receipt has {total[name]} {name}, and there are {count}"
    if total["lost"]:
        yield f"the receipt has {total['lost']} lost"
    most = run.kills * draft.batch * (draft.workers if draft.on_ring else 1)
    if run.alone:
        most = total["trained"]
    if not sum(undone) <= total["repeated"] <= sum(undone) + most:
        yield (
            f"the receipt has {total['repeated']} repeated, returns to checkpoints undid"
            f" {list(undone)}, at most {most} more can be"
        )
    updates = receipt["updates"]
    # Servers that lose their memory bring all back to a checkpoint, which loses no update, others
    # keep it, and a ring has a member left.
    again = updates["at_least"] or (updates["repeated"] and not undone)
    if updates["lost"] or (run.struck is not None and again):
        yield f"updates are not in the weights: {updates}"


def _of_status(receipt: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[str]:
    for name in ("trained", "bad", "lost", "left", "repeated"):
        if status["records"][name] != receipt["total"][name]:
            yield (
                f"the last status has {status['records'][name]} {name}, the receipt"
                f" {receipt['total'][name]}"
            )


def _of_metrics(
    prepared: Prepared,
    receipt: Mapping[str, Any],
    status: Mapping[str, Any],
    before: Counts | None,
    twice: int,
) -> Iterator[str]:
    """The last evaluation saw all records once, and weights with all that was trained."""
    draft, metrics, total = prepared.draft, status["metrics"], receipt["total"]
    if not draft.validation:
        return
    if metrics.get("seen") != draft.validation:
        yield f"the last evaluation saw {metrics.get('seen')} records, there are {draft.validation}"
    low = total["trained"] + (before.total if before else 0)
    high = low + twice
    if not low <= metrics.get("total", -1) <= high:
        yield (
            f"the last evaluation was of weights with {metrics.get('total')} records, trained are"
            f" {low:g} to {high:g}"
        )


def _of_export(
    prepared: Prepared, receipt: Mapping[str, Any], before: Counts | None, twice: int
) -> Iterator[str]:
    if prepared.output is None:
        return
    draft = prepared.draft
    found = counts.of_export(prepared.output, draft.rows, draft.width)
    yield from _of_counts("the export", found.since(before), prepared, receipt, twice)
    if draft.kind != "unbounded":
        again = counts.of_weights_file(prepared.output, draft.width)
        if not np.array_equal(again.records, found.records) or again.total != found.total:
            yield "the weights file and the SavedModel differ"


def _of_counts(
    where: str, found: Counts, prepared: Prepared, receipt: Mapping[str, Any], twice: int
) -> Iterator[str]:
    """Each record was trained once in each epoch; what is in it `twice` may be in it, too."""
    draft, total = prepared.draft, receipt["total"]
    if problem := found.problem(twice):
        yield f"{where}: {problem}"
    low, high = total["trained"], total["trained"] + twice
    if not low <= found.total <= high:
        yield (
            f"{where} was trained on {found.total:g} records, the receipt says {low:g} to {high:g}"
        )
    least = 0 if total["left"] else draft.epochs
    if found.records.min() < least or (not twice and found.records.max() > draft.epochs):
        odd = [
            (int(one), float(found.records[one]))
            for one in np.flatnonzero(found.records != draft.epochs)[:5]
        ]
        yield f"{where} has records that were not trained {draft.epochs} times: {odd}"


def _of_replacements(
    prepared: Prepared, run: Run, events: Sequence[Mapping[str, Any]], returns: int
) -> Iterator[str]:
    """No process was started again but those that got a signal, and servers in `returns`."""
    if run.struck is None:
        return
    replaced = [
        event["details"]["replaces"]
        for event in events
        if event["details"].get("step") == "ordered" and event["details"].get("replaces")
    ]
    most = run.struck
    if returns:
        most += returns * prepared.draft.number("num_ps_pods", 1)
    if len(replaced) > most:
        yield f"{run.struck} processes got a signal, replaced were {', '.join(replaced)}"


def _of_checkpoints(prepared: Prepared, before: Counts | None, twice: int) -> Iterator[str]:
    """Each is one cut: its weights have just the records that its ledger says."""
    draft = prepared.draft
    found = counts.checkpoints(prepared.job)
    for directory in found:
        had = counts.of_checkpoint(directory, draft.rows, draft.width).since(before)
        if problem := had.problem(twice):
            yield f"{directory.name}: {problem}"
        trained = counts.trained_of_ledger(directory)
        if not trained <= had.total <= trained + twice:
            yield f"{directory.name} has weights of {had.total:g} records, its ledger has {trained}"
    keep = draft.number("keep_checkpoint_max", 3)
    if keep and len(found) > keep:
        yield f"{len(found)} checkpoints are there, {keep} are to be kept"
