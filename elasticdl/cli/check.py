"""`check`: everything that can be known to be wrong before a job starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from elasticdl.cli.documents import Format, render
from elasticdl.cli.options import FILE_OPTION, FLAG_SETTINGS, JobCommand, job_options, spec_from
from elasticdl.job import Action


@click.command(cls=JobCommand, context_settings=FLAG_SETTINGS)
@job_options
@FILE_OPTION
@click.option(
    "--for",
    "action",
    type=click.Choice([str(one) for one in Action]),
    default=str(Action.TRAIN),
    help="Which verb to check for. [train]",
)
@click.option(
    "-o", "--format", "form", type=click.Choice([str(one) for one in Format]), default=str(Format.TABLE), help="How it is printed."
)
def check(file: Path | None, action: str, form: str, **parameters: Any) -> None:  # noqa: ANN401 - the flags
    """Load the model module, run one batch through it and count the data. Starts and leaves nothing."""
    from elasticdl.cli.place import settle
    from elasticdl.cli.preflight import checked

    found = checked(settle(spec_from(Action(action), file, parameters)))
    if form != Format.TABLE:
        click.echo(render(dict(found.raw), Format(form)), nl=False)
        return
    for title, sources in (("training", found.training), ("validation", found.validation), ("prediction", found.prediction)):
        if sources:
            total = sum(source.records for source in sources)
            click.echo(f"{title:<10} {total:,} records in {len(sources)} source{'s' * (len(sources) > 1)}")
    click.echo("the model and the data are usable")
