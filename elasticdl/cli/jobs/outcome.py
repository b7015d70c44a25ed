"""How a job ended, as it says on disk, and the few lines that tell it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.cli.views.progress import named_values
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError, SpecError, UserError
from elasticdl.formatting import amount, done_word
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.master.last_status import last_known
from elasticdl.master.resume_command import resume_command

if TYPE_CHECKING:
    from elasticdl.cluster.base import ExitFacts
    from elasticdl.job import JobSpec


_RARE = ("bad", "left")
"""Of a receipt: told where there are any."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a job."""

    exit_code: int
    """0 done, 130 stopped; see the exit codes of `elasticdl`."""
    message: str
    """Why the job ended."""
    job_dir: str
    hint: str = ""
    """What to do next, such as the command that resumes the job."""
    receipt: Mapping[str, Any] = field(default_factory=dict)
    """`epochs` and `total`: records expected, trained, repeated, bad, lost and left."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The values of the last evaluation, by name."""
    loss: float | None = None
    """The last training loss."""
    output: str = ""
    """Where the export or the predictions are."""
    action: str = ""
    """What the job did: train, evaluate or predict; '' where that is not known."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON and YAML."""
        return {
            "action": self.action,
            "exit_code": int(self.exit_code),
            "message": self.message,
            "job_dir": self.job_dir,
            "receipt": dict(self.receipt),
            "metrics": dict(self.metrics),
            "loss": self.loss,
            "output": self.output,
        }

    def error(self) -> ElasticDLError | None:
        """Return the error that `JobHandle.wait` raises, or None if the job is done or was stopped
        by a person.
        """
        if self.exit_code in (ExitCode.DONE, ExitCode.INTERRUPTED):
            return None
        kinds: dict[int, type[ElasticDLError]] = {
            ExitCode.USAGE: SpecError,
            ExitCode.USER_ERROR: UserError,
        }
        error = kinds.get(self.exit_code, PermanentError)(self.message, hint=self.hint)
        with suppress(ValueError):
            error.exit_code = ExitCode(self.exit_code)
        return error


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object of a file; empty if there is none or it is not whole."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def part_of(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object within one that was read; empty if there is none."""
    part = found.get(name)
    return part if isinstance(part, Mapping) else {}


def outcome_of(
    directory: JobDirectory, spec: JobSpec, facts: ExitFacts, *, interrupted: bool
) -> Outcome:
    """What the master left; or, if it left nothing, what is known of its end."""
    left = read_object(directory.status)
    status: Mapping[str, Any] = left.get("status") or (
        last_known(directory, "the master was killed") if not left else {}
    )
    # Its word counts, not what became of its process after that: a second signal may meet it in its
    # last moment.
    code = int(left["exit_code"]) if "exit_code" in left else facts.exit_code
    message, hint = str(left.get("message", "")), str(left.get("hint", ""))
    if not left:
        message = f"the master ended by {_how(facts)} and left no word" + (
            f"; it said last:\n{facts.log_tail}" if facts.log_tail else ""
        )
        hint = f"its log is {directory.logs / 'master-0.log'}; {resume_hint(directory)}"
    if interrupted and code != ExitCode.DONE:
        code, message = ExitCode.INTERRUPTED, message if left else "ended at once"
    elif code is None or (code == ExitCode.DONE and not left):
        code = ExitCode.JOB_FAILED
    if code != ExitCode.DONE and code == ExitCode.INTERRUPTED:
        hint = resume_hint(directory)
    return Outcome(
        exit_code=code,
        message=message,
        hint=hint,
        job_dir=str(directory.path),
        receipt=read_object(directory.receipt) or status.get("receipt") or {},
        metrics=dict(status.get("metrics") or {}),
        loss=status.get("loss"),
        output=spec.checkpoint.output if code == ExitCode.DONE else "",
        action=spec.action,
    )


def resume_hint(directory: JobDirectory) -> str:
    """The next command to type after an end that was not the job's own."""
    return resume_command(read_object(directory.spec), directory)


def _how(facts: ExitFacts) -> str:
    if facts.signal is not None:
        import signal

        return f"signal {signal.Signals(facts.signal).name}"
    return f"exit code {facts.exit_code}"


def summary(outcome: Outcome) -> list[str]:
    """The receipt, the final metrics and what was written, a line each."""
    total = outcome.receipt.get("total") or {}
    lines = []
    if total:
        done = done_word(outcome.action)
        named = {
            key: {"trained": done, "left": f"not {done}"}.get(key, key)
            for key in total
            if total[key] or key not in _RARE
        }
        counted = (
            f"  (counted {outcome.receipt['counted']})" if outcome.receipt.get("counted") else ""
        )
        bound = {"repeated": "at least "} if outcome.receipt.get("repeated_at_least") else {}
        lines.append(
            "records  "
            + "  ".join(f"{word} {bound.get(key, '')}{total[key]}" for key, word in named.items())
            + counted
        )
    why = str(outcome.receipt.get("why_left") or "").partition("\n")[0]
    if why and why != outcome.message.partition("\n")[0]:
        lines.append(f"left     {amount(total.get('left', 0), 'record')}: {why}")
    if values := named_values(outcome.loss, outcome.metrics):
        lines.append(
            "metrics  " + "  ".join(f"{name} {value:.6g}" for name, value in values.items())
        )
    if outcome.output:
        lines.append(f"output   {outcome.output}")
    lines.append(f"job      {outcome.job_dir}")
    return lines
