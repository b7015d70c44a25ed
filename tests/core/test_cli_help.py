"""Help is there at once: what makes a program slow to start is what it imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.cli.main import GROUPS, VERBS, run

pytestmark = pytest.mark.core
ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 60.0
PROGRAM = """
import contextlib, io, json, sys
from elasticdl.cli.main import VERBS, run
def loaded(*words):
    with contextlib.redirect_stdout(io.StringIO()):
        assert run([*words, "--help"]) == 0
    return sorted(sys.modules)
OF_A_JOB = ("train", "evaluate", "predict", "check")
found = [loaded()]
found.append([loaded(verb) for verb in VERBS if verb not in OF_A_JOB][-1])
found.append([loaded(verb) for verb in OF_A_JOB][-1])
print(json.dumps(found))
"""
_SLOW = {
    "tensorflow",
    "keras",
    "kubernetes",
    "grpc",
    "google",
    "numpy",
    "rich",
    "aiohttp",
    "asyncio",
    "ssl",
    "yaml",
}


def test_help_imports_little_and_only_what_flags_are_made_of() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=LIMIT_S,
        check=True,
    )
    overview, of_verbs, of_all = map(set, json.loads(done.stdout))
    assert not _SLOW & of_all
    assert not {"pydantic", "elasticdl.job", "elasticdl.master.preflight"} & of_verbs, (
        "only the flags of a job are made of it"
    )
    assert len(overview) < 180 and len(of_verbs) < 290 and len(of_all) < 390, (
        "look with: python -X importtime"
    )


def test_help_names_units_and_what_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "--num-workers N|MIN:MAX",
        "--ttl-seconds SECONDS",
        "--evaluation-seconds SECONDS",
        "--embedding-threshold-bytes BYTES",
    ):
        assert words in text
    for flag in ("--model-zoo", "--model-def", "--training-data"):
        assert "[required]" in text.partition(f"{flag} ")[2].partition(" --")[0], flag
    assert text.count("[required]") == 3


def test_every_verb_is_in_one_group_of_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(VERBS)
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {verb} " in text for verb in VERBS) and all(
        f"\n{title}:\n" in text for title in GROUPS
    )


def test_resume_is_a_flag_and_the_error_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["resume", "first"]) == 2
    assert "`elasticdl train -f JOB_DIR/job.yaml --resume`" in capsys.readouterr().err
