"""No name of a job, a metric or a directory controls the terminal, by any verb."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import elasticdl.cli
from elasticdl.cli.main import VERBS, run
from elasticdl.cli.views import console, progress
from elasticdl.cli.views.documents import Format, render
from elasticdl.cli.views.result_output import tell_end
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.outcome import Outcome, write_outcome
from elasticdl.master.core.state import JobState

pytestmark = pytest.mark.core
CLI = Path(elasticdl.cli.__file__).parent
HOSTILE = "a\x1b[31m\x9b2J\u202e\u2066\x07\u200bz"
_WRITERS = {"echo", "secho", "write", "writelines", "print", "echo_via_pager", "print_exception"}
_STREAMS = {"sys", "click", "console", "stdout", "stderr", "_stream", "target", "traceback"}


def is_safe(text: str) -> bool:
    return text.replace("\n", "").replace("\t", "").isprintable()


def writes(module: ast.Module) -> list[int]:
    """Lines that write to a stream other than through `console`."""
    return [
        node.lineno
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == "print")
            or (
                isinstance(node.func, ast.Attribute)
                and node.func.attr in _WRITERS
                and isinstance(node.func.value, ast.Name | ast.Attribute)
                and (
                    node.func.value.id
                    if isinstance(node.func.value, ast.Name)
                    else node.func.value.attr
                )
                in _STREAMS
            )
        )
    ]


@pytest.mark.parametrize("path", sorted(CLI.rglob("*.py")), ids=lambda path: path.stem)
def test_only_the_console_writes_to_a_stream(path: Path) -> None:
    if path != Path(console.__file__):
        assert not writes(ast.parse(path.read_text(encoding="utf-8")))


def test_the_test_above_would_see_a_write() -> None:
    text = "print(a)\nclick.echo(a)\nsys.stdout.write(a)\nself.lines.write(a)"
    assert writes(ast.parse(text)) == [1, 2, 3]


@pytest.fixture
def hostile_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a job that has ended, with hostile names wherever a user can put one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "jobs" / HOSTILE
    path.mkdir(parents=True)
    directory = JobDirectory(path)
    spec = JobSpec.from_flags(
        Action.TRAIN, {"model_zoo": HOSTILE, "model_def": "iris", "training_data": f"{HOSTILE}.csv"}
    ).replace(job_name=HOSTILE, job_dir=str(path))
    directory.spec.write_text(spec.model_dump_json(), encoding="utf-8")
    directory.logs.mkdir()
    (directory.logs / "worker-0.0.log").write_text(HOSTILE, encoding="utf-8")
    status = JobState(spec).status()
    write_outcome(directory, hostile_outcome(path), replace(status, metrics={HOSTILE: 1.0}))
    return path


def hostile_outcome(path: Path) -> Outcome:
    return Outcome(
        action="train",
        exit_code=1,
        message=f"broken {HOSTILE}",
        hint=f"mend {HOSTILE}",
        metrics={HOSTILE: 1.0},
        output=f"/o/{HOSTILE}",
        job_dir=str(path),
    )


@pytest.mark.parametrize("form", [str(form) for form in Format])
@pytest.mark.parametrize(
    "words",
    [
        ("status", HOSTILE),
        ("status", HOSTILE, "--watch"),
        ("wait", HOSTILE),
        ("why", HOSTILE),
        ("logs", HOSTILE),
        ("logs", HOSTILE, "worker-0"),
        ("list",),
        ("stop", HOSTILE, "--yes"),
        ("stop", HOSTILE, "--yes", "--now"),
        ("scale", HOSTILE, "--num-workers", "2"),
        ("checkpoint", HOSTILE),
        ("checkpoints", "list", HOSTILE),
        ("checkpoints", "verify", HOSTILE),
        ("dashboard", HOSTILE, "--no-browser"),
        ("report", HOSTILE),
        ("report", HOSTILE, "--output", f"/nowhere/{HOSTILE}"),
        ("status", f"{HOSTILE}-missing"),
        ("status", "--job-dir", f"/nowhere/{HOSTILE}"),
        ("zoo", "init", HOSTILE),
        ("zoo", "build", f"{HOSTILE}-missing", "--image", HOSTILE),
        (
            *("train", "--model-zoo", HOSTILE, "--model-def", HOSTILE),
            *("--training-data", HOSTILE, "--job-dir", HOSTILE),
        ),
        ("check", "--model-zoo", HOSTILE, "--model-def", "m", "--training-data", HOSTILE),
        ("completion", "bash"),
    ],
    ids=lambda words: f"{words[0]}-{len(words)}",
)
def test_no_verb_passes_a_name_that_controls_the_terminal(
    words: tuple[str, ...],
    form: str,
    hostile_job: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    formatted = words[0] in (
        *("status", "wait", "why", "logs", "list", "check", "train", "checkpoints"),
    )
    run([*words, *(["-o", form] if formatted else [])])
    told = capsys.readouterr()
    assert is_safe(told.out), told.out
    assert is_safe(told.err), told.err
    assert told.out or told.err


def test_the_verbs_above_are_all_of_them_that_name_a_job() -> None:
    assert set(VERBS) - {"evaluate", "predict"} == {
        *("status", "wait", "why", "logs", "list", "stop", "scale", "checkpoint", "dashboard"),
        *("report", "zoo", "train", "check", "completion", "checkpoints"),
        *("cluster", "top"),  # of a cluster: of its jobs `top` shows names that Kubernetes allows
        "analyze",  # of data
    }


@pytest.mark.parametrize("form", Format)
def test_the_end_of_a_job_has_no_such_name(
    form: Format, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_end(hostile_outcome(tmp_path / HOSTILE), form)
    told = capsys.readouterr()
    assert is_safe(told.out) and is_safe(told.err)


@pytest.mark.parametrize(
    ("form", "read"), [(Format.JSON, json.loads), (Format.YAML, yaml.safe_load)]
)
def test_a_document_escapes_what_a_terminal_obeys_and_means_the_same(
    form: Format, read: Callable[[str], object]
) -> None:
    text = render({HOSTILE: [HOSTILE, "\x7f", "ä 日本\U000e0041"]}, form)
    assert is_safe(text)
    assert "日本" in text or form is Format.YAML
    assert read(text) == {HOSTILE: [HOSTILE, "\x7f", "ä 日本\U000e0041"]}


def test_a_name_with_a_line_break_forges_no_row() -> None:
    assert len(progress.table([("A", "B"), ("x\ny\r\nz", "1\u20282")])) == 2
