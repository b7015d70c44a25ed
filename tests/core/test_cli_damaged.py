"""Directories of jobs with files that are broken, of another version or not ours to read: told,
never a traceback, nor in the way of others.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli.main import run
from elasticdl.errors import ExitCode

pytestmark = pytest.mark.core

JOB = '{"cluster": {"job_name": "a"}, "action": "train"}'
DONE = {
    "exit_code": 0,
    "message": "done",
    "hint": "",
    "status": {"records": {"trained": 5, "expected": 5}, "version": 7},
}
DAMAGED: dict[str, tuple[str, str]] = {
    "cut": ("job.json", JOB[:20]),
    "no object": ("job.json", "[]"),
    "wrong parts": ("job.json", '{"cluster": 3, "training": [], "checkpoint": "x", "action": []}'),
    "no text": ("job.json", "\xff\xfe"),
    "deep": ("job.json", "[" * 100_000),
    "cut status": ("status.json", '{"exit_code": 0, "message": "do'),
    "status of nothing": ("status.json", '{"exit_code": null}'),
    "status of wrong sorts": (
        "status.json",
        '{"exit_code": "x", "status": {"records": null, "receipt": 3, "loss": "x"}, "message": 3}',
    ),
    "odd rows": (
        "status.json",
        (
            '{"status": {"processes": [3, {"name": 3}], "metrics": {"a": "b"}, "checkpoints":'
            ' [{}]}, "exit_code": 1, "message": "failed"}'
        ),
    ),
    "status of an older version": (
        "status.json",
        '{"status": {"records": {"trained": 1}}, "exit_code": 0, "message": "done"}',
    ),
    "cut address": ("master.json", '{"pid": 1'),
    "wrong address": ("master.json", '{"pid": "x", "token": "t", "address": 7}'),
    "number of no process": (
        "master.json",
        '{"pid": 99999999999999999999, "token": "t", "address": "127.0.0.1:1"}',
    ),
    "odd newest": ("newest.json", '{"status": {"receipt": 3}}'),
    "odd events": ("events.jsonl", '[]\n3\n{"at": "x"}\n'),
}

STILL_DONE = {
    "cut",
    "no object",
    "wrong parts",
    "no text",
    "deep",
    "odd check",
    "odd events",
    "status of an older version",
}
"""Those whose status.json is whole: how the job ended is known.

Of the others it is not, so they count as failed.
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return tmp_path / "jobs"


def made(directory: Path, name: str, text: str) -> None:
    directory.mkdir(parents=True)
    (directory / "job.json").write_text(JOB)
    if name not in ("master.json", "newest.json"):
        (directory / "status.json").write_text(json.dumps(DONE))
    (directory / name).write_text(text, encoding="latin-1")
    old = time.time() - 3_600.0
    for path in (*directory.iterdir(), directory):
        os.utime(path, (old, old))


@pytest.mark.parametrize("case", DAMAGED)
def test_every_verb_reads_what_is_whole_in_a_directory(
    jobs: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made(jobs / "a", *DAMAGED[case])
    state, ended = (
        ("done", ExitCode.DONE) if case in STILL_DONE else ("failed", ExitCode.JOB_FAILED)
    )

    def told(verb: str, *flags: str) -> tuple[int, str, str]:
        return run([verb, "a", *flags]), *capsys.readouterr()

    code, output, errors = told("status")
    assert (code, errors) == (ExitCode.DONE, "")
    assert output.startswith(state) and f"ended with exit code {ended:d}: " in output
    assert told("wait")[0] == ended
    code, output, _ = told("why")
    sentence = {"done": "a is done", "failed": "a failed"}[state]
    assert (code, output.partition(":")[0].strip()) == (ExitCode.DONE, sentence)
    assert told("logs") == (ExitCode.DONE, "", "")
    assert told("stop", "--yes")[0] == ExitCode.DONE
    assert told("scale", "--num-workers", "2")[0] == ExitCode.NO_SUCH_JOB


def test_counts_that_an_older_version_did_not_write_are_left_out(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(jobs / "a", *DAMAGED["status of an older version"])
    assert run(["status", "a"]) == ExitCode.DONE
    assert capsys.readouterr().out == "done\nended with exit code 0: done\n"


def test_one_that_is_broken_stands_in_the_way_of_no_other_in_a_list(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, damage in enumerate(DAMAGED.values()):
        made(jobs / f"a{number}", *damage)
    made(jobs / "whole", "status.json", json.dumps(DONE))
    (jobs / "file").touch()
    (jobs / "no/job.json").mkdir(parents=True)
    (jobs / "link").symlink_to("nowhere")
    os.mkfifo(jobs / "no/master.json")
    began_s = time.monotonic()
    assert run(["list", "-o", "json"]) == 0
    listed: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert len(listed) == len(DAMAGED) + 1
    assert {row["state"] for row in listed} == {"done", "failed"}, "none of them runs"
    assert time.monotonic() - began_s < 10, "nobody's last word is waited for after an hour"
    broken = [row["outcome"] for row in listed if "cannot read how job" in row["outcome"]]
    assert len(broken) == 3 and all("status.json is damaged" in text for text in broken)


def test_what_this_user_may_not_look_into_is_reported_beside_the_list(
    jobs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        made(jobs / name, "status.json", json.dumps(DONE))
    is_file = Path.is_file

    def closed(path: Path) -> bool:  # root may look everywhere
        if path.parent.name == "b":
            raise PermissionError(13, os.strerror(13), str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", closed)
    assert run(["list"]) == 0
    output, errors = capsys.readouterr()
    assert "jobs/a" in output and "jobs/b" not in output and "cannot list jobs/b" in errors
