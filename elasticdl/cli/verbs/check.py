"""`check`: find problems before a job starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from elasticdl.cli.job_argument import FORMAT_OPTION, SETTINGS
from elasticdl.cli.options import FILE_OPTION, JobCommand, job_options, request_of
from elasticdl.cli.request import settle
from elasticdl.cli.views.console import put, show, tell
from elasticdl.cli.views.documents import Format, render
from elasticdl.cli.views.progress import table
from elasticdl.cluster.findings import Finding, Weight, fine, problem, warning, worst
from elasticdl.errors import ExitCode, UserError
from elasticdl.formatting import amount
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action


@click.command(cls=JobCommand, context_settings=SETTINGS)
@job_options()
@FILE_OPTION
@click.option(
    "--for",
    "action",
    type=click.Choice([str(action) for action in Action]),
    default=str(Action.TRAIN),
    help="Command to check for. [train]",
)
@FORMAT_OPTION
def check(file: str | None, action: str, form: str, **parameters: Any) -> int:  # noqa: ANN401 - the flags
    """Validate model and data without starting a job.

    Loads the model module, runs one batch through it and counts the records. Leaves no files.
    With --for predict, a PredictionOutputsProcessor of the module gets the predictions of that
    batch, as those of worker -1.

    With --image-name, checks the cluster instead: permissions, quota, priority classes, pod
    security and volumes. The job's master checks model and data, which are in the image, before
    it starts any other process.
    """
    spec = settle(request_of(Action(action), file, parameters))
    return _on_cluster(spec, Format(form)) if spec.on_kubernetes else _here(spec, Format(form))


def _here(spec: JobSpec, form: Format) -> int:
    from elasticdl.cli.jobs.address_claim import refuse_if_used
    from elasticdl.cli.jobs.job_claim import try_places
    from elasticdl.master.preflight import COMMAND, PROCESS, refuse_paths, run_preflight

    about = "directories"
    try:
        refuse_if_used(spec)
        try_places(spec)
        about = "model and data"
        refuse_paths(spec)
        tell("checking the model and the data ...")
        command = (*COMMAND, PROCESS) if spec.action is Action.PREDICT else COMMAND
        preflight = run_preflight(spec, command=command, tell=tell)
    except UserError as error:
        if form != Format.TABLE:
            put(render(_findings_json([problem(about, error.message)]), form))
        raise
    warnings = preflight.raw.get("warnings") or ()
    for text in warnings:
        tell(f"Warning: {text}")
    findings = [
        fine(
            title,
            f"{amount(sum(source.records for source in sources), 'record')} in"
            f" {amount(len(sources), 'source')}",
        )
        for title, sources in (
            ("training", preflight.training),
            ("validation", preflight.validation),
            ("prediction", preflight.prediction),
        )
        if sources
    ]
    steps = preflight.raw.get("steps") or {}
    if steps.get("text"):
        judge = warning if steps.get("level") == "warning" else fine
        findings.append(judge("steps", str(steps["text"])))
    if form != Format.TABLE:
        findings += [warning("model and data", text) for text in warnings]
        put(render({**_findings_json(findings), **preflight.raw}, form))
        return ExitCode.DONE
    for finding in findings:
        show(f"{finding.about:<10} {finding.text}")
    show("the model and the data are usable")
    return ExitCode.DONE


def _findings_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the result, with the same keys for local and cluster checks."""
    return {"result": str(worst(findings)), "findings": [finding.as_dict() for finding in findings]}


def _on_cluster(spec: JobSpec, form: Format) -> int:
    from elasticdl.cli.jobs.cluster_client import ClusterClient
    from elasticdl.cluster.kubernetes.checking import look

    with ClusterClient(spec.kubernetes.namespace, spec.kubernetes.kube_context) as cluster:
        findings = cluster.run(look(cluster.api, spec, cluster.namespace))
    weight = worst(findings)
    if form is Format.TABLE:
        for row in table(
            [(str(finding.weight), finding.about, finding.text) for finding in findings]
        ):
            show(row)
    else:
        put(render(_findings_json(findings), form))
    if weight is Weight.PROBLEM:
        tell("the job would fail")
        return ExitCode.CLUSTER_REFUSED
    tell("the job's master validates the model and the data before it starts other processes")
    return ExitCode.DONE
