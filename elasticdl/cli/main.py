"""The `elasticdl` command: runs a subcommand and maps its errors to messages and exit codes.

Each subcommand is imported when it is called, so `elasticdl --help` answers at once.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import click

from elasticdl.cli.views.console import plain, show, silence, tell, whole_streams
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError, UserError
from elasticdl.job_problems import clipped


@dataclass(frozen=True, slots=True)
class _Verb:
    module: str
    help: str
    function: str = ""
    """Name of the function if it differs from the command's."""


GROUPS = {
    "Start a job": {
        "train": _Verb("train", "Train a model, on this machine or on a cluster."),
        "evaluate": _Verb("train", "Evaluate a trained model."),
        "predict": _Verb("train", "Write a trained model's predictions."),
        "check": _Verb("check", "Validate model and data without starting a job."),
    },
    "Inspect jobs": {
        "list": _Verb("list", "List jobs on this machine and on the cluster.", "list_"),
        "top": _Verb("top", "Show what the jobs of a cluster have and wait for."),
        "status": _Verb("status", "Show the state of a job."),
        "dashboard": _Verb("dashboard", "Open a job's status page in the browser."),
        "why": _Verb("why", "Explain what happened and what slowed it down."),
        "report": _Verb("report", "Save a job's status page as a single file."),
        "logs": _Verb("logs", "Print the logs of a job's processes."),
        "checkpoints": _Verb("checkpoints", "List or verify the checkpoints of a job."),
    },
    "Control a job": {
        "scale": _Verb("scale", "Change the number of workers or parameter servers."),
        "checkpoint": _Verb("checkpoint", "Take a checkpoint now."),
        "wait": _Verb("wait", "Wait for a job to end and exit with its exit code."),
        "stop": _Verb("stop", "Stop a job gracefully so that it can be resumed."),
    },
    "Other": {
        "analyze": _Verb("analyze", "Compute statistics of the data's columns."),
        "cluster": _Verb("cluster", "Prepare a cluster for jobs that share it."),
        "completion": _Verb("completion", "Print the shell completion script."),
        "zoo": _Verb("zoo", "Build and push the image of a model zoo."),
    },
}
"""The commands by their headings in `elasticdl --help`."""
VERBS = {name: verb for verbs in GROUPS.values() for name, verb in verbs.items()}

COMPLETING = "_ELASTICDL_COMPLETE"
"""Environment variable that a shell sets when it asks for completions."""


class _ReaderIsGone(Exception):
    """The reader closed our output. Not an OSError, since click reports those as failures."""


@final
class _Verbs(click.Group):
    """Imports a command's module on first use."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderIsGone from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        command = getattr(
            importlib.import_module(f"elasticdl.cli.verbs.{verb.module}"), verb.function or cmd_name
        )
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), verb.help) for name, verb in verbs.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[:1] == ["help"]:
            # Accept `elasticdl help train` as well, as some programs do.
            if not args[1:]:
                show(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            if args[0] == "resume":
                ctx.fail(
                    "No such command 'resume': run `elasticdl train -f JOB_DIR/job.yaml --resume`."
                )
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            ctx.fail(
                f"No such command {args[0]!r}. "
                + (f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(VERBS)}.")
            )
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            show(version("elasticdl"))
        except PackageNotFoundError:
            show("not installed: run from the sources")
        ctx.exit()


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version.",
)
def elasticdl() -> None:
    """Train Keras models on workers that may come, go and fail at any time.

    Run `elasticdl COMMAND --help` for options. Exit codes: 0 done, 1 job failed, 2 bad usage or
    job, 3 refused by the cluster, 4 no such job, 5 job stalled, 124 timed out, 130 interrupted.
    """


def exit_code_of(error: ElasticDLError) -> ExitCode:
    """Return the command's exit code for an error.

    Codes that only a master interprets map to those that users know.
    """
    if isinstance(error, UserError) and error.exit_code is ExitCode.USER_ERROR:
        return ExitCode.USAGE
    return (
        ExitCode.JOB_FAILED
        if error.exit_code in (ExitCode.FENCED, ExitCode.DRAINED)
        else error.exit_code
    )


def report(error: ElasticDLError) -> None:
    """Print the error to stderr, and its hint on a second line."""
    stopped = error.exit_code is ExitCode.INTERRUPTED
    tell(f"Stopped: {error.message}" if stopped else f"Error: {error.message}")
    if error.hint:
        tell(f"Hint: {error.hint}")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. No user error escapes as an exception."""
    if COMPLETING in os.environ:
        from elasticdl.cli.completion_scripts import use_ours

        use_ours()
    try:
        result: Any = elasticdl.main(args=arguments, prog_name="elasticdl", standalone_mode=False)
        return int(result or 0)
    except click.ClickException as error:
        # It may name a job or a directory, or have a value of any length.
        error.message = clipped(plain(error.message))  # type: ignore[misc]
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        tell("interrupted")
        return ExitCode.INTERRUPTED
    except ElasticDLError as error:
        report(error)
        return exit_code_of(error)
    except _ReaderIsGone:
        # Python flushes the stream at exit; that must not report an error.
        silence(sys.stdout)
        return ExitCode.DONE
    except OSError as error:
        report(_unexpected(error))
        return ExitCode.JOB_FAILED


def _unexpected(error: OSError) -> PermanentError:
    """The error of a command that met an OSError of an unexpected file, or of a full stdout."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return PermanentError(
            "the current directory was removed", hint="change to another directory"
        )
    where = f" {clipped(str(error.filename))}" if error.filename else ""
    return PermanentError(
        f"cannot read or write{where}: {error.strerror or error}",
        hint="fix the cause and try again",
    )


def main() -> None:
    """Entry point of the console script."""
    whole_streams()
    code = run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        silence(sys.stdout)
        tell(f"Error: cannot write to stdout: {error.strerror}")
        code = code or ExitCode.JOB_FAILED
    if code == ExitCode.INTERRUPTED and threading.active_count() > 1:
        # Exit at once after Ctrl-C: a thread may wait for a cluster that does not answer.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
