"""The command line where its output goes nowhere, to somebody who stops reading, or to another
locale, and where it is interrupted.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 60.0
TELLS_WHEN_IT_WAITS = """
import sys, time
sleep = time.sleep
def tell_and_sleep(seconds):
    time.sleep = sleep
    print("it waits", file=sys.stderr, flush=True)
    sleep(seconds)
time.sleep = tell_and_sleep
from elasticdl.cli.main import main
main()
"""
ELASTICDL = f"{shlex.quote(sys.executable)} -m elasticdl.cli.main"


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that failed, with a long log, and one that was made a moment ago."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for name in ("failed", "begins"):
        (tmp_path / "jobs" / name / "logs").mkdir(parents=True)
        (tmp_path / "jobs" / name / "job.json").write_text(
            json.dumps({"cluster": {"job_name": name}})
        )
        (tmp_path / "jobs" / name / "logs/worker-0.log").write_text("a line\n" * 100_000)
    left = {"exit_code": 1, "message": "ValueError: модель 🙂 — \udcff", "hint": "", "status": None}
    (tmp_path / "jobs/failed/status.json").write_text(json.dumps(left))


def shell(command: str, **environment: str) -> tuple[int, str, str]:
    """In bash; `$elasticdl` is the program."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.replace("$elasticdl", ELASTICDL)],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=LIMIT_S,
    )
    return done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")


@pytest.mark.parametrize(
    ("command", "code", "output", "errors"),
    [
        ("$elasticdl logs failed worker-0 -n 0 | head -1", 0, "a line\n", ""),
        ("$elasticdl wait failed -o json 2>/dev/null | true", 1, "", ""),
        ("$elasticdl list >&-", 0, "", ""),
        ("$elasticdl status failed >&- 2>&- <&-", 0, "", ""),
        ("$elasticdl status nobody >&-", 4, "", "Error: there is no job in jobs/nobody or nobody"),
        ("$elasticdl list > /dev/full", 1, "", "No space left on device"),
        ("$elasticdl report failed --output - | head -c 15", 0, "<!doctype html>", ""),
    ],
)
def test_nobody_who_reads_is_no_traceback_and_the_exit_code_means_the_job(
    command: str, code: int, output: str, errors: str
) -> None:
    found = shell(command)
    assert found[:2] == (code, output), found
    assert errors in found[2] and bool(errors) == bool(found[2]) and "Traceback" not in found[2]


@pytest.mark.parametrize(
    "locale",
    [{"LC_ALL": "C", "LANG": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}],
)
def test_no_locale_is_an_error(locale: dict[str, str]) -> None:
    code, output, errors = shell(
        "$elasticdl status failed && $elasticdl list && $elasticdl why failed", **locale
    )
    assert (code, errors) == (
        0,
        f"not available for failed: there is nothing in {Path.cwd()}/jobs/failed/events.jsonl"
        " yet\n",
    )
    assert output.count("ValueError: ") == 3
    code, output, errors = shell("$elasticdl status failed -o json", **locale)
    assert (code, errors) == (0, "") and json.loads(output)[
        "outcome"
    ] == "ValueError: модель 🙂 — \N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    "verb",
    [
        "wait begins",
        "status begins --watch",
        "status begins --watch -o json",
        "logs begins worker-0 -f",
    ],
)
def test_ctrl_c_ends_who_waits_with_130_and_a_word(verb: str, tmp_path: Path) -> None:
    (tmp_path / "jobs/begins/master.json").write_text(
        ""
    )  # A master that is about to listen: the job has not ended.
    command = [sys.executable, "-c", TELLS_WHEN_IT_WAITS, *verb.split()]
    waiting = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert waiting.stderr is not None and waiting.stderr.readline() == "it waits\n"
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=LIMIT_S)
    assert (waiting.returncode, errors.strip()) == (130, "interrupted")
