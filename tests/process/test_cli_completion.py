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
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m elasticdl.cli.main "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for name in ("ads", "adverts"):
        (tmp_path / "jobs" / name).mkdir(parents=True)
        (tmp_path / "jobs" / name / "job.json").write_text("{}")
    monkeypatch.chdir(tmp_path)


IN_BASH = """
eval "$(elasticdl completion bash)"
complete -p elasticdl > /dev/null || exit 9
compopt() { COMPREPLY=("$@"); }  # only readline itself knows of it
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_elasticdl_completion elasticdl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
IN_ZSH = """
compdef() { }
eval "$(elasticdl completion zsh)"
compadd() { print -l -- $completions; }
_describe() { print -l -- ${completions_with_descriptions%%:*}; }
_path_files() { print -- "$@"; }
words=("$@"); CURRENT=$#
_elasticdl_completion
"""
IN_FISH = """
elasticdl completion fish | source
complete -C (string join ' ' -- $argv) | string replace -r '\\t.*' ''
true
"""
WAYS = {
    "bash": ("--norc", "-c", IN_BASH, "bash"),
    "zsh": ("-f", "-c", IN_ZSH, "zsh"),
    "fish": ("--no-config", "-c", IN_FISH),
}


def completed(*words: str, shell: str = "bash") -> list[str]:
    """What a shell with our completion offers for the last of the words."""
    program = shutil.which(shell)
    assert program is not None
    done = subprocess.run(
        [program, *WAYS[shell], *words], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.split()


@pytest.mark.parametrize("shell", list(WAYS))
def test_shells_complete_verbs_flags_values_jobs_and_logs_of_this_machine(
    shell: str, tmp_path: Path
) -> None:
    if not shutil.which(shell):
        assert not os.environ.get("CI"), (
            f"in CI this must run, but there is no {shell}: see scripts/test-programs"
        )
        pytest.skip(f"there is no {shell} here")
    (tmp_path / "jobs/ads/logs").mkdir()
    (tmp_path / "jobs/ads/logs/worker-0.log").touch()
    assert completed("elasticdl", "train", "--num-w", shell=shell) == ["--num-workers"]
    assert completed("elasticdl", "status", "ad", shell=shell) == ["ads", "adverts"]
    if shell != "bash":
        return  # The words are the same ones in all shells: only how they are handed over differs.
    assert completed("elasticdl", "dash") == ["dashboard"]
    assert completed("elasticdl", "status", "-o", "y") == ["yaml"]
    assert completed("elasticdl", "logs", "ads", "w") == ["worker-0"]
    assert completed("elasticdl", "completion", "z") == ["zsh"]


def test_a_value_after_an_equals_sign_is_completed(tmp_path: Path) -> None:
    assert completed("elasticdl", "status", "--format", "=", "j") == ["json"], (
        "bash takes the word apart"
    )
    assert completed("elasticdl", "status", "--format", "=") == ["table", "json", "yaml"]
    for shell in ("zsh", "fish"):
        if shutil.which(shell):
            assert completed("elasticdl", "status", "--format=j", shell=shell) == ["--format=json"]


def test_a_directory_is_completed_by_the_shell_itself() -> None:
    assert completed("elasticdl", "status", "--job-dir", "") == ["-o", "dirnames"]


def test_bash_completes_jobs_namespaces_and_contexts_of_the_cluster_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster_of_one() as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
        cluster.add_job("ads-on-cluster")
        cluster.add_job("other")
        monkeypatch.setenv("ELASTICDL_COMPLETION_SECONDS", "30")
        assert completed("elasticdl", "stop", "ads") == ["ads", "ads-on-cluster"]
        assert completed("elasticdl", "stop", "--namespace", NAMESPACE, "ads") == ["ads-on-cluster"]
        for name in ("team-a", "team-b", "default"):
            cluster.objects.put("/api/v1/namespaces", {"metadata": {"name": name}})
        assert completed("elasticdl", "stop", "--kube-context", "here", "--namespace", "team") == [
            "team-a",
            "team-b",
        ]
        monkeypatch.setenv("ELASTICDL_COMPLETION_SECONDS", "0")
        assert completed("elasticdl", "train", "--kube-context", "h") == ["here"], (
            "that is in a file"
        )
        assert completed("elasticdl", "train", "--namespace", "team") == []
        assert completed("elasticdl", "stop", "ads") == ["ads"]


def test_a_cluster_that_does_not_answer_costs_a_moment_and_no_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster_of_one() as cluster:
        cluster.silent = True
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
        began_s = time.monotonic()
        assert completed("elasticdl", "status", "adv") == ["adverts"]
        assert time.monotonic() - began_s < 20, (
            "two programs were started, on a machine that may be busy"
        )


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_their_own(shell: str) -> None:
    done = subprocess.run(
        ["elasticdl", "completion", shell], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0 and f"_ELASTICDL_COMPLETE={shell}_complete" in done.stdout
