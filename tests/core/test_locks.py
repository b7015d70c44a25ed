"""Lock files: all that comes from PyPI is pinned with hashes, in the same versions everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.core

LOCKS = (
    "requirements.lock",
    "docker/requirements.lock",
    "docker/requirements-gpu.lock",
    "docker/build.lock",
)


def pinned(path: Path) -> dict[str, str]:
    """Versions by package. Raises AssertionError for one that has no hash."""
    found = {}
    for entry in re.split(r"\n(?=\S)", path.read_text().strip()):
        first, *hashes = entry.replace("\\\n", "\n").split("\n")
        name, _, rest = first.partition("==")
        assert rest, f"{path}: {first} has no exact version"
        assert hashes and all(re.fullmatch(r"\s+--hash=sha256:[0-9a-f]{64}\s*", h) for h in hashes)
        found[name] = rest.partition(";")[0].strip()
    return found


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_has_one_version_and_a_hash() -> None:
    tested = pinned(ROOT / LOCKS[0])
    assert len(tested) > 50
    for name in LOCKS[1:]:
        others = pinned(ROOT / name)
        differing = {one: (other, tested[one]) for one, other in others.items() if one in tested}
        assert all(here == there for here, there in differing.values()), f"{name}: run `make lock`"


def test_the_images_lock_has_what_the_project_and_its_horovod_need() -> None:
    def named(requirements: list[str]) -> set[str]:
        return {
            re.split(r"[<>=\[]", requirement)[0].lower().replace("_", "-")
            for requirement in requirements
        }

    needed = named(project()["project"]["dependencies"])
    ring = named(project()["dependency-groups"]["ring"])
    assert needed | ring <= set(pinned(ROOT / "docker/requirements.lock"))
    gpu = set(pinned(ROOT / "docker/requirements-gpu.lock"))
    assert (needed - {"tensorflow-cpu"}) | ring | {"tensorflow", "nvidia-nccl-cu12"} <= gpu


def test_the_base_image_is_pinned_by_its_digest() -> None:
    text = (ROOT / "docker/Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE_IMAGE=(.*)$", text, re.MULTILINE)
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", base)
    bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE))
    assert bases - stages == {"${BASE_IMAGE}"}


def test_the_tools_of_the_image_are_those_of_a_build() -> None:
    tools = project()["dependency-groups"]["build"]
    assert set(project()["build-system"]["requires"]) == set(tools) - {"wheel"}


def test_horovod_names_the_same_needs_as_the_lock() -> None:
    script = (ROOT / "scripts/horovod").read_text()
    (needs,) = re.findall(r"^NEEDS=\((.*)\)$", script, re.MULTILINE)
    assert set(re.findall(r'"([^"]*)"', needs)) == set(project()["dependency-groups"]["ring"])


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.gpu"])
def test_an_image_installs_nothing_from_pypi_without_a_hash(name: str) -> None:
    text = (ROOT / "docker" / name).read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install [^&|\n]*", text)
    assert installs
    assert all("--require-hashes" in install or "--no-deps" in install for install in installs)


def test_the_image_is_built_of_all_cpp() -> None:
    """What is missing is an undefined symbol in a pod."""
    copied = re.findall(
        r"^COPY (elasticdl/\w+/native) \1$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE
    )
    sources = {path.parent for path in ROOT.glob("elasticdl/*/native/*.cc")}
    assert copied == sorted(str(path.relative_to(ROOT)) for path in sources)
