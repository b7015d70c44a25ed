"""`train`, `evaluate` and `predict`.

`job_flags.py` and `kubernetes_flags.py` declare their flags.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from elasticdl.addresses import is_address
from elasticdl.cli.job_argument import SETTINGS
from elasticdl.cli.options import FILE_OPTION, JobCommand, job_options, request_of
from elasticdl.cli.request import Request, settle, validated
from elasticdl.cli.views.console import put, silence, tell
from elasticdl.cli.views.documents import Format, render
from elasticdl.errors import ElasticDLError, ExitCode
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action

if TYPE_CHECKING:
    from elasticdl.cli.jobs.local_launch import LocalRun
    from elasticdl.cli.views.live_view import View
    from elasticdl.jobdir.layout import JobDirectory
    from elasticdl.jobdir.outcome import Outcome


def _verb(action: Action, doc: str) -> click.Command:
    @click.command(str(action), cls=JobCommand, context_settings=SETTINGS, help=doc)
    @job_options(action)
    @FILE_OPTION
    @click.option(
        "--detach",
        is_flag=True,
        help="On a cluster: return once the job has started.",
    )
    @click.option(
        "--dry-run",
        is_flag=True,
        help=(
            "Start nothing. Print the job for use with -f, or the Kubernetes object for use with"
            " `kubectl create -f -`."
        ),
    )
    @click.option(
        "-o",
        "--format",
        "form",
        type=click.Choice([str(form) for form in Format]),
        help="Output format of results.",
    )
    def command(
        file: str | None,
        detach: bool,
        dry_run: bool,
        form: str | None,
        **parameters: Any,  # noqa: ANN401 - the flags
    ) -> int:
        request = request_of(action, file, parameters)
        if dry_run:
            put(render(_plan(request), Format.JSON if form == Format.JSON else Format.YAML))
            return ExitCode.DONE
        spec = settle(request)
        if spec.on_kubernetes:
            from elasticdl.cli.jobs.kubernetes_launch import submit_job

            return submit_job(spec, Format(form) if form else None, detach=detach)
        if detach:
            raise click.UsageError("--detach is for jobs on a cluster: give --image-name, too.")
        return run_job(spec, Format(form or Format.TABLE))

    return command


train = _verb(
    Action.TRAIN,
    "Train a model on this machine: the master, workers and parameter servers run as local"
    " processes.\n\nCtrl-C stops the job gracefully and prints how to resume it; a second Ctrl-C"
    " kills it.\n\nWith --image-name, the job runs on the Kubernetes cluster of the current"
    " context. Paths are then paths in its pods, and Ctrl-C leaves the job running.",
)
_WHERE = (
    "Runs on this machine, or with --image-name on the Kubernetes cluster of the current context."
    " Ctrl-C works as with `elasticdl train`."
)
evaluate = _verb(
    Action.EVALUATE,
    "Evaluate the checkpoint in --checkpoint-dir-for-init on --validation-data. Prints the metrics"
    f" and keeps them in the job's directory.\n\n{_WHERE}",
)
predict = _verb(
    Action.PREDICT,
    "Write predictions for --prediction-data, made with the checkpoint in"
    f" --checkpoint-dir-for-init, to --output.\n\n{_WHERE}",
)


def _plan(request: Request) -> dict[str, Any]:
    """Return the Kubernetes Job of a job on a cluster, or all given flags of a local job."""
    spec = validated(request)
    if not spec.on_kubernetes:
        return spec.flags()
    from elasticdl.cluster.kubernetes.planning import job_object

    return job_object(settle(request), spec.kubernetes.namespace)


def run_job(spec: JobSpec, form: Format) -> int:
    """Start a settled job, show its progress and print its end.

    Returns the exit code; raises ElasticDLError if the job did not begin.
    """
    from elasticdl.cli.jobs.address_claim import claimed_place
    from elasticdl.cli.views.result_output import tell_end
    from elasticdl.master.preflight import refuse_paths

    refuse_paths(spec)
    directory: JobDirectory | None = None
    try:
        with claimed_place(spec) as (spec, directory):
            outcome = _run_in(directory, spec)
    except ElasticDLError:
        if directory is not None and not directory.path.exists():
            # Its first line named the directory.
            tell(f"removed {directory.path}: the job did not begin")
        raise
    if is_address(spec.cluster.job_dir):
        outcome = replace(outcome, job_dir=spec.cluster.job_dir)
    tell_end(outcome, form)
    return outcome.exit_code


def _run_in(directory: JobDirectory, spec: JobSpec) -> Outcome:
    import asyncio

    from elasticdl.cli.jobs.local_launch import LocalRun
    from elasticdl.cli.views.live_view import view_for

    place = spec.cluster.job_dir
    here = f", which works in {directory.path}" if place != str(directory.path) else ""
    tell(f"job {spec.cluster.job_name} in {place}{here}")
    view = view_for()
    try:
        return asyncio.run(_with_signals(LocalRun(spec, directory, view), view))
    finally:
        view.close()


async def _with_signals(job: LocalRun, view: View) -> Outcome:
    import asyncio

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, job.interrupt, "Ctrl-C")
    loop.add_signal_handler(signal.SIGTERM, job.interrupt, "SIGTERM")
    loop.add_signal_handler(signal.SIGHUP, _terminal_is_gone, job)
    return await job.run()


def _terminal_is_gone(job: LocalRun) -> None:
    """Handle a closed terminal: output would fail and end us before the job has drained."""
    for stream in (sys.stdout, sys.stderr):
        silence(stream)
    job.interrupt("the terminal is gone")
