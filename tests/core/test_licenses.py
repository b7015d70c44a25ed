"""What the wheel says of its license and of the works of others in it."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import nanobind
import pytest

import elasticdl.page
from scripts.sbom import complete, works_inside

pytestmark = pytest.mark.core
ROOT = Path(__file__).parents[2]
WHEEL = importlib.metadata.distribution("elasticdl")


def notice(name: str) -> str:
    """A license file of the installed package: an editable install takes the same ones as a
    wheel.
    """
    text = WHEEL.read_text(f"licenses/{name}")
    assert text is not None, name
    return text


def words(text: str) -> str:
    return re.sub(r"[\s*]+", " ", text)


def test_the_package_has_its_license_and_a_notice_of_each_work_in_it() -> None:
    assert WHEEL.metadata["License-Expression"] == "Apache-2.0"
    assert "Apache License" in notice("LICENSE") and "Version 2.0, January 2004" in notice(
        "LICENSE"
    )
    listed = set(re.findall(r": (\w+\.txt) \|", notice("licenses/README.md")))
    assert listed == {path.name for path in (ROOT / "licenses").glob("*.txt")}


def test_notices_are_those_of_the_versions_that_are_built_in() -> None:
    assert (
        notice("licenses/uPlot.txt")
        == (Path(elasticdl.page.__path__[0]) / "vendor/uPlot.LICENSE.txt").read_text()
    )
    assert notice("licenses/nanobind.txt") == importlib.metadata.distribution("nanobind").read_text(
        "licenses/LICENSE"
    )
    robin_map = Path(nanobind.source_dir()).parent / "ext/robin_map/include/tsl/robin_map.h"
    assert words(notice("licenses/robin_map.txt")).strip() in words(robin_map.read_text())


def test_the_sbom_has_each_work_of_the_notices_and_what_the_package_needs() -> None:
    listed = {
        "metadata": {"component": {"bom-ref": "root"}},
        "components": [
            {"name": re.split("[<>=]", one)[0], "bom-ref": one} for one in WHEEL.requires or ()
        ],
        "dependencies": [{"ref": "root"}, {"ref": "requirements-L1"}],
    }
    made = complete(listed, "3.0.19")
    inside = {
        component["name"]: component.get("version", "")
        for component in made["components"]
        if "type" in component
    }
    named = re.findall(r"^\| \[(\w+)\]", notice("licenses/README.md"), re.MULTILINE)
    assert sorted(inside) == sorted(named)
    assert inside["OpenSSL"] == "3.0.19"
    assert inside["nanobind"] == importlib.metadata.version("nanobind")
    *_, root = made["dependencies"]
    assert root["ref"] == "root" and "inside-OpenSSL" in root["dependsOn"]
    assert any("tensorflow" in one for one in root["dependsOn"])


@pytest.mark.parametrize("version", ["OPENSSL_VERSION_STR", "", "3.0", "3.0.19 7 Jan 2025"])
def test_the_sbom_takes_no_text_for_the_version_of_openssl(version: str) -> None:
    """Headers before OpenSSL 3 lack the macro, so the preprocessor prints its name."""
    with pytest.raises(SystemExit, match="OpenSSL 3"):
        works_inside(version)


def test_every_file_that_the_patch_changes_is_in_the_statement_of_changes() -> None:
    patched = re.findall(
        r"^\+\+\+ b/(\S+)", (ROOT / "scripts/horovod.patch").read_text(), re.MULTILINE
    )
    _, _, statement = notice("licenses/README.md").partition("## Statement of changes")
    assert patched
    assert [path for path in patched if Path(path).name not in statement] == []
