"""Completion, by the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.process.cluster_of_one import NAMESPACE, cluster_of_one

pytestmark = pytest.mark.process
LIMIT_S = 60.0
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`elasticdl` is a program on the path, and there are two jobs in ./jobs."""
    program = tmp_path / "bin/elasticdl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m elasticdl.cli.main "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for name in ("ads", "adverts"):
        (tmp_path / "jobs" / name).mkdir(parents=True)
        (tmp_path / "jobs" / name / "job.json").write_text("{}")
    monkeypatch.chdir(tmp_path)


def completed(*words: str) -> list[str]:
    """What a bash with our completion offers for the last of the words."""
    bash = shutil.which("bash")
    assert bash is not None
    script = """
eval "$(elasticdl completion bash)"
complete -p elasticdl > /dev/null || exit 9
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_elasticdl_completion elasticdl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
    command = [bash, "--norc", "-c", script, "bash", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_bash_completes_verbs_flags_and_jobs_of_this_machine() -> None:
    assert completed("elasticdl", "dash") == ["dashboard"]
    assert completed("elasticdl", "train", "--num-w") == ["--num-workers"]
    assert completed("elasticdl", "status", "ad") == ["ads", "adverts"]
    assert completed("elasticdl", "completion", "z") == ["zsh"]


def test_bash_completes_jobs_on_the_cluster_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster_of_one() as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
        cluster.add_job("ads-on-cluster")
        cluster.add_job("other")
        monkeypatch.setenv("ELASTICDL_COMPLETION_SECONDS", "30")
        assert completed("elasticdl", "stop", "ads") == ["ads", "ads-on-cluster"]
        assert completed("elasticdl", "stop", "--namespace", NAMESPACE, "ads") == ["ads-on-cluster"]
        monkeypatch.setenv("ELASTICDL_COMPLETION_SECONDS", "0")
        assert completed("elasticdl", "stop", "ads") == ["ads"]


def test_a_cluster_that_does_not_answer_costs_a_moment_and_no_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster_of_one() as cluster:
        cluster.silent = True
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
        began_s = time.monotonic()
        assert completed("elasticdl", "status", "adv") == ["adverts"]
        assert time.monotonic() - began_s < 20, "two programs were started, on a machine that may be busy"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_their_own(shell: str) -> None:
    done = subprocess.run(["elasticdl", "completion", shell], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0 and f"_ELASTICDL_COMPLETE={shell}_complete" in done.stdout
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=done.stdout, capture_output=True, text=True, timeout=LIMIT_S)
        assert checked.returncode == 0, checked.stderr
