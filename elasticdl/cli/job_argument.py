"""Options that many commands share: which job, and how to print results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from elasticdl.cli.completion_sources import context_names, job_names, namespace_names
from elasticdl.cli.jobs.job import JobQuery
from elasticdl.cli.param_types import TEXT
from elasticdl.cli.views.documents import Format

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])
SETTINGS: dict[str, Any] = {
    "token_normalize_func": lambda token: token.replace("_", "-"),
    "help_option_names": ["-h", "--help"],
}
FORMAT_OPTION = click.option(
    "-o",
    "--format",
    "form",
    type=click.Choice([str(form) for form in Format]),
    default=str(Format.TABLE),
    help="Output format. [table]",
)


def cluster_options(command: F) -> F:
    """Add --namespace and --kube-context."""
    on = "On the cluster of this kube context."
    command = click.option(
        "--kube-context",
        type=TEXT,
        default="",
        metavar="NAME",
        shell_complete=context_names,
        help=on,
    )(command)
    within = "Namespace on the cluster."
    return click.option(
        "--namespace",
        type=TEXT,
        default="",
        metavar="NAME",
        shell_complete=namespace_names,
        help=within,
    )(command)


def directories(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem[str]]:
    """The shell itself completes directories."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="dir")]


def job_argument(command: F) -> F:
    """Add JOB, --job-dir, --namespace and --kube-context as the one parameter `query`."""

    @functools.wraps(command)
    def with_job(*, job: str, job_dir: str, namespace: str, kube_context: str, **rest: Any) -> Any:  # noqa: ANN401 - click's own
        return command(query=JobQuery(job, job_dir, namespace, kube_context), **rest)

    options = cluster_options(with_job)
    help_text = "The job of this directory, or at this address."
    options = click.option(
        "--job-dir",
        type=TEXT,
        default="",
        metavar="PATH|ADDRESS",
        shell_complete=directories,
        help=help_text,
    )(options)
    return click.argument("job", type=TEXT, required=False, default="", shell_complete=_complete)(
        options
    )  # type: ignore[return-value]


def _complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    if context.params.get("job_dir"):
        return []
    return job_names(
        begun,
        str(context.params.get("namespace") or ""),
        str(context.params.get("kube_context") or ""),
    )
