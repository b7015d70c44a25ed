"""How a job ended: the same value in its directory and in its pod's termination message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

from elasticdl.errors import ElasticDLError, ExitCode, PermanentError, SpecError, UserError
from elasticdl.job_status import JobStatus
from elasticdl.jobdir.layout import JobDirectory, write_json


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a job."""

    exit_code: int
    """0 done, 130 stopped; see the exit codes of `elasticdl`."""
    message: str
    """Why the job ended."""
    job_dir: str = ""
    hint: str = ""
    """What to do next, such as the command that resumes the job."""
    receipt: Mapping[str, Any] = field(default_factory=dict)
    """`epochs` and `total`: records expected, trained, repeated, bad, lost and left."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """The values of the last evaluation, by name; None for one that was no finite number."""
    loss: float | None = None
    """The last training loss."""
    output: str = ""
    """Where the export or the predictions are."""
    action: str = ""
    """What the job did: train, evaluate or predict; '' where that is not known."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON and YAML."""
        return {**asdict(self), "exit_code": int(self.exit_code), "action": str(self.action)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Outcome | None:
        """Parse plain values; None if they are no outcome."""
        try:
            receipt, loss = dict(value.get("receipt") or {}), value.get("loss")
            if receipt:
                total = (receipt.get("total") or {}).items()
                receipt["total"] = {str(key): int(count) for key, count in total}
            return cls(
                int(value["exit_code"]),
                str(value["message"]),
                str(value.get("job_dir", "")),
                str(value.get("hint", "")),
                receipt,
                {
                    str(key): None if metric is None else float(metric)
                    for key, metric in (value.get("metrics") or {}).items()
                },
                None if loss is None else float(loss),
                str(value.get("output", "")),
                str(value.get("action", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    @property
    def state(self) -> str:
        """One word: done, stopped or failed."""
        return end_state(self.exit_code)

    def error(self) -> ElasticDLError | None:
        """Return the error for `JobHandle.wait`; None if the job is done or a person stopped it."""
        if self.exit_code in (ExitCode.DONE, ExitCode.INTERRUPTED):
            return None
        kinds: dict[int, type[ElasticDLError]] = {
            ExitCode.USAGE: SpecError,
            ExitCode.USER_ERROR: UserError,
        }
        kind = kinds.get(self.exit_code, PermanentError)
        code = ExitCode(self.exit_code) if self.exit_code in {*ExitCode} else None
        return kind(self.message, hint=self.hint, exit_code=code)


def end_state(exit_code: int) -> str:
    """Return the state of an ended job: done, stopped or failed."""
    known = {int(ExitCode.DONE): "done", int(ExitCode.INTERRUPTED): "stopped"}
    return known.get(exit_code, "failed")


def write_outcome(
    directory: JobDirectory, outcome: Outcome, status: JobStatus | None, *, begun: bool = True
) -> None:
    """Write outcome, last status and receipt; `status` is None if this master began nothing.

    `begun`: an earlier master, or this one, may have begun the job. Raises OSError.
    """
    if status is not None:
        write_json(directory.receipt, outcome.receipt)
    plain = {**outcome.to_json(), "begun": begun, "status": status and status.to_json()}
    write_json(directory.status, plain)
    if status is not None:
        # A run that did not begin must not overwrite the results of the previous run.
        directory.newest.unlink(missing_ok=True)
