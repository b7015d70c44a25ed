"""`elasticdl zoo`: what it writes, what it asks of which program, and what it says when that
fails.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticdl.cli import main
from elasticdl.cli.image_builders import Build, Builder, carry_out
from elasticdl.errors import PermanentError

pytestmark = pytest.mark.core


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs: empty, for shell scripts that a test puts there."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main.run([str(part) for part in ("zoo", *arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_new_zoo_has_a_dockerfile_on_the_base_image_requirements_and_a_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(
        capsys, "init", tmp_path / "zoo", "--base-image", "registry.example.com/elasticdl:7"
    )
    local, image = err.splitlines()
    assert (
        f"elasticdl train --model-zoo {tmp_path}/zoo --model-def example --training-data" in local
    )
    assert f"elasticdl zoo build {tmp_path}/zoo --image" in image
    names = sorted(Path(line).name for line in out.splitlines())
    assert (code, names) == (
        0,
        [".dockerignore", "Dockerfile", "example.csv", "example.py", "requirements.txt"],
    )
    text = (tmp_path / "zoo/Dockerfile").read_text()
    assert "ARG BASE_IMAGE=registry.example.com/elasticdl:7\nFROM ${BASE_IMAGE}" in text
    assert (
        text.index("USER root")
        < text.index("RUN ")
        < text.index("USER 1000:1000")
        < text.index("COPY . /model_zoo")
    )
    assert "@" not in text


def test_a_zoo_that_has_modules_keeps_them_and_gets_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text("MINE = 1\n")
    (tmp_path / "requirements.txt").write_text("scikit-learn\n")
    code, out, err = run(capsys, "init", tmp_path)
    assert (code, sorted(Path(line).name for line in out.splitlines())) == (
        0,
        [".dockerignore", "Dockerfile"],
    )
    assert "mine.py already" in err and "--model-def MODULE --training-data DATA" in err
    assert (tmp_path / "requirements.txt").read_text() == "scikit-learn\n"


def test_a_zoo_that_has_a_dockerfile_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM mine\n")
    code, out, err = run(capsys, "init", tmp_path)
    assert (code, out) == (2, "")
    assert "exists already" in err and "elasticdl zoo build" in err
    assert os.listdir(tmp_path) == ["Dockerfile"]


@pytest.mark.parametrize(
    ("builder", "expected"),
    [
        (
            Builder.DOCKER,
            [
                "docker",
                "build",
                "--tag=zoo:1",
                "--build-arg=BASE_IMAGE=base:2",
                "--network=host",
                "/zoo",
            ],
        ),
        (
            Builder.PODMAN,
            [
                "podman",
                "build",
                "--tag=zoo:1",
                "--build-arg=BASE_IMAGE=base:2",
                "--network=host",
                "/zoo",
            ],
        ),
        (
            Builder.BUILDAH,
            [
                "buildah",
                "build",
                "--layers",
                "--tag=zoo:1",
                "--build-arg=BASE_IMAGE=base:2",
                "--network=host",
                "/zoo",
            ],
        ),
    ],
)
def test_each_builder_gets_its_own_words(builder: Builder, expected: list[str]) -> None:
    assert Build("/zoo", "zoo:1", "base:2", ("--network=host",)).command(builder) == expected


def test_without_any_builder_each_is_named_with_its_reason(
    tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "init", tmp_path / "zoo")
    code, out, err = run(capsys, "build", tmp_path / "zoo", "--image", "zoo:1")
    assert (code, out) == (1, "")
    assert "docker is not installed; podman is not installed; buildah is not installed" in err
    assert "apt-get install buildah" in err


def test_a_docker_without_a_daemon_is_passed_over(
    tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "init", tmp_path / "zoo")
    script(programs, "docker", "echo Cannot connect to the Docker daemon >&2; exit 1")
    script(programs, "buildah", 'for part in "$@"; do echo "got $part"; done')
    code, out, err = run(
        capsys, "build", tmp_path / "zoo", "--image", "zoo:1", "--", "--network=host"
    )
    assert (code, out) == (0, "zoo:1\n")
    told = [line for line in err.splitlines() if line.startswith("got ")]
    assert told == [
        "got build",
        "got --layers",
        "got --tag=zoo:1",
        "got --network=host",
        f"got {tmp_path / 'zoo'}",
    ]
    code, _, err = run(capsys, "build", tmp_path / "zoo", "--image", "zoo:1", "--builder", "docker")
    assert (
        code == 1
        and "the docker daemon does not answer (Cannot connect to the Docker daemon)" in err
    )


def test_a_build_that_fails_ends_with_what_the_builder_said_last(
    tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "init", tmp_path / "zoo")
    script(
        programs,
        "podman",
        "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i; done; echo no such package >&2;"
        " exit 7",
    )
    code, out, err = run(capsys, "build", tmp_path / "zoo", "--image", "zoo:1")
    assert (code, out) == (1, "")
    last = err[err.index("Error:") :]
    assert "building zoo:1 failed: `podman build` ended with exit code 7" in last
    assert "  line 40\n  no such package" in last and "line 20" not in last


def test_a_build_that_takes_too_long_is_ended(programs: Path) -> None:
    script(programs, "buildah", "echo begun; /bin/sleep 60; echo never")
    with pytest.raises(
        PermanentError,
        match=(
            r"building zoo:1 failed: `buildah build` took longer than 1 s; last output:\n  begun"
        ),
    ):
        carry_out(["buildah", "build"], "building zoo:1", 1)


def test_an_image_is_pushed_by_the_builder_that_has_it(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(programs, "podman", 'test "$1" != image && echo pushed by podman')
    script(programs, "buildah", 'test "$1" = inspect && exit 0; echo pushed by buildah "$@"')
    code, out, err = run(capsys, "push", "registry.example.com/zoo:1")
    assert (code, out) == (0, "registry.example.com/zoo:1\n")
    assert "pushed by buildah push registry.example.com/zoo:1" in err


def test_an_image_that_nobody_has_is_not_pushed(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(programs, "buildah", "exit 1")
    code, _, err = run(capsys, "push", "zoo:1")
    assert code == 1
    assert (
        "no local image zoo:1: docker is not installed; podman is not installed; buildah does not"
        " have it" in err
    )


@pytest.mark.parametrize("name", ["--privileged", "a b", "", "zoo;rm"])
def test_what_can_be_no_image_is_refused_before_anything_is_run(
    tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run(capsys, "init", tmp_path / "zoo")
    code, _, err = run(capsys, "build", tmp_path / "zoo", f"--image={name}")
    assert code == 2 and f"invalid image name {name!r}" in err
