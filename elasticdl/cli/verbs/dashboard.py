"""`dashboard`: open the status page of a local job or a job on a cluster."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

import click

from elasticdl.cli.job_argument import SETTINGS, job_argument
from elasticdl.cli.jobs.job import Job, JobQuery, Kind
from elasticdl.cli.jobs.resolve_job import RULE, resolve_job
from elasticdl.cli.views.console import show, tell
from elasticdl.errors import ExitCode, TransientError
from elasticdl.jobdir.layout import JobDirectory, write_atomically


@click.command(context_settings=SETTINGS, epilog=RULE)
@job_argument
@click.option(
    "--no-browser",
    is_flag=True,
    help="Only print the page's address, with the token that opens it.",
)
@click.option(
    "--read-only",
    is_flag=True,
    help="Use the viewer's token, which shows everything and changes nothing.",
)
def dashboard(query: JobQuery, no_browser: bool, read_only: bool) -> int:
    """Open a job's status page in the browser.

    For a job on a cluster, the connection goes through the API server, like `kubectl
    port-forward`, and lasts until Ctrl-C or the end of the job.
    """
    with resolve_job(query) as job, job.page(read_only=read_only) as address:
        _see_that_it_answers(job, address)
        show(address)
        with _file_that_leads_to(address, job) as file:
            if not no_browser and not _opened(file):
                tell("cannot start a browser: open the address in one")
            if job.place.kind is Kind.KUBERNETES:
                return _stay(job)
    return ExitCode.DONE


def _stay(job: Job) -> int:
    from elasticdl.cli.jobs import watch
    from elasticdl.cli.views.live_view import LineView

    tell(f"forwarding to job {job.name} until Ctrl-C; the job continues after it")
    try:
        outcome = watch.wait(job, LineView(sys.stderr))
    except KeyboardInterrupt:
        return ExitCode.DONE
    tell(f"job {job.name} has ended: {outcome.message}; its page ended with its master")
    return ExitCode.DONE


def _see_that_it_answers(job: Job, address: str) -> None:
    """Check that the page answers, since a browser shows no cause.

    Raises TransientError, PermanentError.
    """
    from elasticdl.cli.jobs.master_http import get_json

    try:
        get_json(address, "/api/v1/status")
    except TransientError as error:
        hint = f"its master may be busy or starting: see `elasticdl status {job.name}`"
        raise TransientError(f"job {job.name}: {error.message}", hint=hint) from error


@contextmanager
def _file_that_leads_to(address: str, job: Job) -> Iterator[Path]:
    """Write a private page that redirects to the address.

    Every user of this machine can see a browser's arguments, so they must not contain the token.
    The file stays in the job's directory: a slow browser may open it after we exit.
    """
    target = escape(address, quote=True)
    text = (
        f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><a'
        f' href="{target}">the status page</a>\n'
    )
    if job.place.kind is Kind.LOCAL:
        path = JobDirectory(Path(job.place.job_dir)).dashboard
        write_atomically(path, text)
        yield path
        return
    with tempfile.NamedTemporaryFile(
        "w", prefix="elasticdl-", suffix=".html", encoding="utf-8"
    ) as file:
        file.write(text)
        file.flush()
        yield Path(file.name)


def _opened(file: Path) -> bool:
    """Return whether a browser was started.

    Ignores text browsers, which cannot show the page.
    """
    seen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    return seen and webbrowser.open(file.as_uri())
