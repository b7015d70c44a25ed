"""`train`, `evaluate` and `predict`."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticdl.cli.documents import Format, render
from elasticdl.cli.options import FILE_OPTION, FLAG_SETTINGS, JobCommand, job_options, spec_from
from elasticdl.cli.telling import silence, tell
from elasticdl.errors import ExitCode
from elasticdl.job import Action, JobSpec

if TYPE_CHECKING:
    from elasticdl.cli.local import LocalJob
    from elasticdl.cli.outcome import Outcome
    from elasticdl.cli.view import View


def _verb(action: Action, doc: str) -> click.Command:
    @click.command(str(action), cls=JobCommand, context_settings=FLAG_SETTINGS, help=doc)
    @job_options
    @FILE_OPTION
    @click.option("--dry-run", is_flag=True, help="Print the job, ready for -f, and start nothing.")
    @click.option("-o", "--format", "form", type=click.Choice([str(one) for one in Format]), help="How results are printed.")
    def command(file: Path | None, dry_run: bool, form: str | None, **parameters: Any) -> int:  # noqa: ANN401 - the flags
        spec = spec_from(action, file, parameters)
        if dry_run:
            click.echo(render(spec.flags(), Format.JSON if form == Format.JSON else Format.YAML), nl=False)
            return ExitCode.DONE
        return run_job(spec, Format(form or Format.TABLE))

    return command


train = _verb(
    Action.TRAIN,
    "Train a model on this machine: a master, workers and parameter servers as processes of their own.\n\n"
    "Ctrl-C stops in order and tells how to go on; a second one ends everything at once.",
)
evaluate = _verb(Action.EVALUATE, "Evaluate the parameters of --checkpoint-dir-for-init on --validation-data.")
predict = _verb(Action.PREDICT, "Write the predictions for --prediction-data to --output.")


def run_job(spec: JobSpec, form: Format) -> int:
    """Check, start, show, tell the end. Returns the exit code; raises ElasticDLError before anything was started."""
    from elasticdl.cli.local import LocalJob
    from elasticdl.cli.place import claimed, refuse_if_taken, settle
    from elasticdl.cli.preflight import checked
    from elasticdl.cli.view import view_for

    spec = settle(spec)
    refuse_if_taken(spec)
    preflight = checked(spec)
    with claimed(spec, preflight) as directory:
        tell(f"job {spec.cluster.job_name} in {directory.path}")
        view = view_for()
        try:
            outcome = asyncio.run(_with_signals(LocalJob(spec, directory, view), view))
        finally:
            view.close()
    _tell(outcome, form)
    return outcome.exit_code


async def _with_signals(job: LocalJob, view: View) -> Outcome:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, job.interrupt, "Ctrl-C")
    loop.add_signal_handler(signal.SIGTERM, job.interrupt, "SIGTERM")
    loop.add_signal_handler(signal.SIGHUP, _terminal_is_gone, job)
    return await job.run()


def _terminal_is_gone(job: LocalJob) -> None:
    """Nobody reads any more: writing would fail and end us before the job has drained."""
    for stream in (sys.stdout, sys.stderr):
        silence(stream)
    job.interrupt("the terminal is gone")


def _tell(outcome: Outcome, form: Format) -> None:
    """Results on stdout; what went wrong, and what to do, on stderr."""
    from elasticdl.cli.outcome import summary

    if outcome.exit_code != ExitCode.DONE:
        title = "Stopped" if outcome.exit_code == ExitCode.INTERRUPTED else "Error"
        tell(f"{title}: {outcome.message}")
        if outcome.hint:
            tell(f"Hint: {outcome.hint}")
    text = "\n".join(summary(outcome)) + "\n" if form is Format.TABLE else render(outcome.as_dict(), form)
    click.echo(text, nl=False)
