"""What the documentation's site takes from the code: the tables of flags, and pages that live
outside of docs/.

MkDocs calls the functions `on_*`; see `hooks` in mkdocs.yml.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from mkdocs.structure.files import File

from elasticdl.cli.main import elasticdl

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
"""Pages of the site that lie in the repository's root, where people look for them."""
MARK = "The site has tables of all flags here. Elsewhere, `elasticdl COMMAND --help` prints them."
"""A reader of the file itself, as on GitHub, sees this sentence in place of the tables."""
JOB_COMMANDS = ("train", "evaluate", "predict", "check")
"""Commands that describe a job: their flags are told together."""
OWN = "This command"
"""The title under which these commands list what is no flag of a job."""

Sections = dict[str, list[tuple[str, str]]]
"""By title: the spelling of a flag, and its help."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from the repository's root."""
    for name, source in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Put the tables of flags in."""
    return markdown.replace(MARK, flags()) if MARK in markdown else markdown


def flags() -> str:
    """Markdown: the flags of a job by section, then those of every command."""
    commands = dict(_commands(elasticdl, "elasticdl"))
    jobs = {name: _sections(name, commands.pop(f"elasticdl {name}")) for name in JOB_COMMANDS}
    parts = [*_job_flags(jobs)]
    for name, sections in jobs.items():
        parts += _command(f"elasticdl {name}", sections.get(OWN, []), "The flags of a job, and:")
    for name, command in commands.items():
        rows = [row for section in _sections(name, command).values() for row in section]
        usage = command.get_usage(click.Context(command, info_name=name)).removeprefix("Usage: ")
        parts += _command(name, rows, f"`{usage}`")
    return "\n".join(parts)


def _commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=name)
    for part in group.list_commands(context):
        command = group.get_command(context, part)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{name} {part}")
        elif command is not None:
            yield f"{name} {part}", command


def _job_flags(jobs: dict[str, Sections]) -> Iterator[str]:
    """One table a section; the last column has the commands that take the flag."""
    titles = dict.fromkeys(
        title for sections in jobs.values() for title in sections if title != OWN
    )
    for title in titles:
        takers: dict[str, list[str]] = {}
        helps: dict[str, str] = {}
        for command, sections in jobs.items():
            for flag, text in sections.get(title, []):
                takers.setdefault(flag, []).append(command)
                helps.setdefault(flag, text)
        yield f"\n### {title}\n\n| flag | meaning | commands |\n|---|---|---|"
        for flag, names in takers.items():
            shown = "all" if len(names) == len(jobs) else ", ".join(names)
            yield f"| {_code(flag)} | {_text(helps[flag])} | {shown} |"


def _command(name: str, rows: Sequence[tuple[str, str]], lead: str) -> Iterator[str]:
    yield f"\n### {name}\n\n{lead}\n\n| flag | meaning |\n|---|---|"
    yield from (f"| {_code(flag)} | {_text(text)} |" for flag, text in rows)


def _code(flag: str) -> str:
    # As HTML: in a table, Markdown dialects do not agree how a code span writes a `|`.
    return f"<code>{html.escape(flag).replace('|', '&#124;')}</code>"


def _text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


class _Collector(click.HelpFormatter):
    """Keeps what a command's help would print, by section."""

    def __init__(self) -> None:
        super().__init__()
        self.sections: Sections = {}
        self._title = ""

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self._title = name
        yield

    def write_dl(self, rows: Iterable[tuple[str, str]], *_: object, **__: object) -> None:
        self.sections.setdefault(self._title, []).extend(rows)


def _sections(name: str, command: click.Command) -> Sections:
    collector = _Collector()
    command.format_options(click.Context(command, info_name=name), collector)
    return collector.sections
