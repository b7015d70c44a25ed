"""The wheel, installed outside the clone, runs the README's first job.

C++ is not compiled again: the build gets the extension of this environment, as it is up to date.
`make wheel` makes the same wheel from the source distribution.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.process.test_docs_examples import BLOCKS, RUN, accuracy, receipt

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
LIMIT_S = 240


def run(*command: object, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    native = folder / "lib/elasticdl/native"
    native.mkdir(parents=True)
    for library in (ROOT / "elasticdl/native").glob("*.so"):
        shutil.copy(library, native)
    # A copy: the build writes messages, which other tests import at this moment.
    source = folder / "source"
    left_out = shutil.ignore_patterns("__pycache__", "*.so", "npm")
    for name in ("elasticdl", "licenses"):
        shutil.copytree(ROOT / name, source / name, ignore=left_out)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = ["build", "--build-base", folder / "build", "--build-lib", folder / "lib"]
    pack = ["bdist_wheel", "--bdist-dir", folder / "packed", "--dist-dir", folder / "dist"]
    about = ["egg_info", "--egg-base", folder]
    # A compiler that fails: nothing is compiled.
    env = {**os.environ, "CXX": "false", "CC": "false"}
    run(sys.executable, "setup.py", "--quiet", *about, *build, *pack, cwd=source, env=env)
    return next((folder / "dist").glob("*.whl"))


def test_the_wheel_has_code_page_licenses_and_nothing_of_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    about = "elasticdl-0.1.0.dist-info"
    for name in (
        "elasticdl/cli/main.py",
        "elasticdl/rpc/elasticdl_pb2.py",
        "elasticdl/page/vendor/uPlot.iife.min.js",
        "elasticdl/py.typed",
        f"{about}/licenses/LICENSE",
        f"{about}/licenses/licenses/nanobind.txt",
    ):
        assert name in names, name
    assert any(name.startswith("elasticdl/native/_native.") for name in names)
    assert {name.partition("/")[0] for name in names} == {"elasticdl", about}


def test_the_readme_trains_a_module_that_learns_outside_the_clone_without_a_compiler(
    wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / ".venv", with_pip=False)
    python = tmp_path / ".venv/bin/python"
    pip = ["-m", "pip", "--disable-pip-version-check", "--python", python, "install"]
    run(sys.executable, *pip, "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    site = tmp_path / f".venv/lib/python{sysconfig.get_python_version()}/site-packages"
    # The dependencies are those of this environment. Its own .pth files, which lead to the clone,
    # have no effect there.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {"PATH": f"{python.parent}:/usr/bin:/bin", "CXX": "false", "CC": "false"}
    env |= {"KUBECONFIG": str(tmp_path / "none"), "TF_CPP_MIN_LOG_LEVEL": "2"}
    paths = run(
        python,
        "-c",
        "import elasticdl, sys; print(elasticdl.__file__, *sys.path)",
        cwd=tmp_path,
        env=env,
    )
    assert paths.startswith(str(site)) and str(ROOT) not in paths.split()
    for block in BLOCKS["README.md"]:
        if block.marker == "file":
            (tmp_path / block.argument).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.argument).write_text(block.text)
        elif block.language in RUN and not block.marker:
            program = [python, "-c"] if block.language == "python" else RUN[block.language]
            run(*program, block.text, cwd=tmp_path, env=env)
    total = receipt(tmp_path, "iris")
    assert (total["expected"], total["trained"], total["lost"]) == (6000, 6000, 0)
    assert accuracy(tmp_path, "iris") >= 0.85
    assert (tmp_path / "export/saved_model.pb").exists()
