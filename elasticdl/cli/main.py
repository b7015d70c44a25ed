"""`elasticdl`: finds the verb and turns what it raises into words and an exit code.

Verbs are imported when they are called, so that `elasticdl --help` is there at once.
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

from elasticdl.cli.views.console import silence, tell, whole_streams
from elasticdl.errors import ElasticDLError, ExitCode, PermanentError, UserError


@dataclass(frozen=True, slots=True)
class _Verb:
    module: str
    help: str
    function: str = ""
    """Where it is not called as the verb is."""


VERBS = {
    "train": _Verb("train", "Train a model, on this machine or on a cluster."),
    "evaluate": _Verb("train", "Evaluate a trained model."),
    "predict": _Verb("train", "Write a trained model's predictions."),
    "check": _Verb("check", "Look at the model and the data; start nothing."),
    "list": _Verb("list", "List the jobs of this machine and of the cluster.", "list_"),
    "status": _Verb("status", "Show how a job is doing."),
    "dashboard": _Verb("dashboard", "Open a job's status page in the browser."),
    "why": _Verb("why", "Tell what happened to a job, and why it took so long."),
    "report": _Verb("report", "Write a job's status page into one file."),
    "logs": _Verb("logs", "Show what a process of a job printed."),
    "scale": _Verb("scale", "Ask for another range of workers."),
    "checkpoint": _Verb("checkpoint", "Ask for a checkpoint now."),
    "wait": _Verb("wait", "Wait until a job has ended; the exit code is the job's."),
    "stop": _Verb("stop", "Stop a job in order: nothing is lost that a resume needs."),
    "completion": _Verb("completion", "Print what bash, zsh or fish need to complete all of this."),
    "zoo": _Verb("zoo", "Make an image of a model zoo: init, build, push."),
}


COMPLETING = "_ELASTICDL_COMPLETE"
"""The variable by which a shell asks what it may offer."""


class _ReaderIsGone(Exception):
    """Whoever read our output has enough. No OSError: click would make a failure of that one."""


GROUPS = {
    "Start a job": ("train", "evaluate", "predict", "check"),
    "See how it is doing": ("list", "status", "dashboard", "why", "report", "logs"),
    "Steer it": ("scale", "checkpoint", "wait", "stop"),
    "Other": ("completion", "zoo"),
}


@final
class _Verbs(click.Group):
    """Knows the verbs by name and imports one when it is needed."""

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
        found = getattr(
            importlib.import_module(f"elasticdl.cli.verbs.{verb.module}"), verb.function or cmd_name
        )
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), VERBS[name].help) for name in names])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[:1] == ["help"]:
            # `elasticdl help train`, as some other programs have it.
            if not args[1:]:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

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
            click.echo(version("elasticdl"))
        except PackageNotFoundError:
            click.echo("not installed: run from the sources")
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
    """Elastic deep learning: one command, one job, whatever happens to its processes.

    `elasticdl VERB --help` tells a verb's flags. Exit codes: 0 done, 1 job failed, 2 bad usage or
    job, 3 refused by the
    cluster, 4 no such job, 5 the job stood still, 124 timed out, 130 interrupted.
    """


def exit_code_of(error: ElasticDLError) -> ExitCode:
    """The command's exit code for an error; codes that are for the master's eyes become ones for
    people.
    """
    if isinstance(error, UserError) and error.exit_code is ExitCode.USER_ERROR:
        return ExitCode.USAGE
    return (
        ExitCode.JOB_FAILED
        if error.exit_code in (ExitCode.FENCED, ExitCode.DRAINED)
        else error.exit_code
    )


def report(error: ElasticDLError) -> None:
    """On stderr: what is wrong, and what to do on a line of its own."""
    tell(f"Error: {error.message}")
    if error.hint:
        tell(f"Hint: {error.hint}")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Raises nothing that a person could cause."""
    if COMPLETING in os.environ:
        from elasticdl.cli.completion_scripts import use_ours

        use_ours()
    try:
        result: Any = elasticdl.main(args=arguments, prog_name="elasticdl", standalone_mode=False)
        return int(result or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        tell("interrupted")
        return ExitCode.INTERRUPTED
    except ElasticDLError as error:
        report(error)
        return exit_code_of(error)
    except _ReaderIsGone:
        # Nothing may complain when Python flushes it at the end.
        silence(sys.stdout)
        return ExitCode.DONE
    except OSError as error:
        # Of a file that nobody thought of, or of stdout itself on a full disk.
        where = f" {error.filename}" if error.filename else ""
        report(
            PermanentError(
                f"cannot read or write{where}: {error.strerror or error}",
                hint="mend that, and try again",
            )
        )
        return ExitCode.JOB_FAILED


def main() -> None:
    """The console script."""
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
        # Whoever pressed Ctrl-C waits for nobody: a thread may be in the middle of a call to a
        # cluster that does not answer.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
