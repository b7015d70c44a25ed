"""`scripts/prepare` on machines whose interpreters lack something: it works, or says exactly what
to install.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pip
import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
TOOLS = [
    "bash",
    "sh",
    "cat",
    "cut",
    "dirname",
    "du",
    "find",
    "id",
    "ls",
    "mv",
    "rm",
    "sha256sum",
    "sleep",
    "sort",
    "tr",
    "xargs",
    "env",
]
LN = shutil.which("ln")
REAL = Path(sys.base_prefix) / f"bin/python3.{sys.version_info[1]}"
HIDE = (
    "import sys, sysconfig\nfor name in {hidden!r}: sys.modules[name] = None\nsys.base_prefix ="
    " {prefix!r}\n"
)


class Machine:
    """A checkout with nothing in it but the script, and a PATH with nothing on it but what a test
    puts there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder / "checkout", folder / "bin"
        (self.folder / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / "scripts/prepare", self.folder / "scripts")
        for name in ("requirements.lock", "pyproject.toml"):
            (self.folder / name).touch()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        self.program("g++", "exit 0")

    def program(self, name: str, body: str) -> Path:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def python(
        self, name: str, *hidden: str, prefix: str = "/opt/python", headers: bool = True
    ) -> Path:
        """An interpreter that lacks these modules.

        It links this environment's pip: bringing its own would take most of a test's time.
        """
        site = self.bin / f"{name}-site"
        site.mkdir()
        text = HIDE.format(hidden=hidden, prefix=prefix)
        if not headers:
            text += "import sysconfig\nsysconfig.get_path = lambda *_: '/nowhere'\n"
        (site / "sitecustomize.py").write_text(text)
        make = f"PYTHONPATH={site} {REAL} -m venv --clear --without-pip .venv"
        site_of = "cd .venv/lib/python3.*/site-packages"
        link = f"{LN} -s {Path(pip.__file__).parent} ."
        quickly = (
            f'if [ "$*" = "-m venv --clear .venv" ]; then {make} && {site_of} && exec {link}; fi'
        )
        return self.program(name, f'{quickly}\nPYTHONPATH={site} exec {REAL} "$@"')

    def prepare(self, **environment: str) -> subprocess.CompletedProcess[str]:
        # Pip's own wheel is all that is there to be installed.
        wheels = next(
            (Path(sys.base_prefix) / "lib").glob("python3.*/ensurepip/_bundled"),
            Path("/usr/share/python-wheels"),
        )
        clean: Mapping[str, str] = {
            "HOME": str(self.folder),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
        }
        told = {**clean, "PATH": str(self.bin), **environment}
        return subprocess.run(
            ["bash", str(self.folder / "scripts/prepare")],
            env={name: value for name, value in told.items() if value},
            capture_output=True,
            text=True,
            timeout=240,  # Against a hang: seconds where the machine is not busy.
        )

    @property
    def has_environment(self) -> bool:
        """As far as the script gets here, where there is nothing to build."""
        made = subprocess.run(
            [self.folder / ".venv/bin/python", "-c", "import pip"], capture_output=True
        )
        return made.returncode == 0 and (self.folder / ".venv/.locked").exists()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class Locked:
    """A lock that names `uv` and one other package, whose wheels are in a folder. There is no index
    to ask.
    """

    def __init__(self, machine: Machine, uv: str) -> None:
        self._machine, self._wheels = machine, machine.folder / "wheels"
        self._wheels.mkdir()
        locked = self._lock("other", "") + self._lock("uv", uv) + self._lock("wanted", "")
        (machine.folder / "requirements.lock").write_text(locked)
        environment = machine.folder / ".venv"
        subprocess.run(
            [machine.python("python3.11"), "-m", "venv", "--without-pip", environment],
            check=True,
            timeout=60,
        )
        # Bringing its own pip would take most of the test's time.
        site = next(environment.glob("lib/python3.*/site-packages"))
        (site / "pip").symlink_to(Path(pip.__file__).parent)

    def _lock(self, name: str, program: str) -> str:
        """Make a wheel. Return its lines in the lock."""
        path, about = self._wheels / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
        files = {
            f"{name}/__init__.py": "",
            f"{name}/__main__.py": program,
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{about}/RECORD": "",
        }
        with zipfile.ZipFile(path, "w") as wheel:
            for file, text in files.items():
                wheel.writestr(file, text)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return f"{name}==1.0 \\\n    --hash=sha256:{digest}\n"

    def prepare(self, **environment: str) -> subprocess.CompletedProcess[str]:
        unreachable = {"PIP_PROXY": "http://127.0.0.1:9", "PIP_RETRIES": "0"}
        return self._machine.prepare(
            **{
                "PIP_NO_INDEX": "",
                "PIP_FIND_LINKS": str(self._wheels),
                **unreachable,
                **environment,
            }
        )

    def has(self, name: str) -> bool:
        python = self._machine.folder / ".venv/bin/python"
        return subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode == 0


UV = """
import os, pathlib, sys
assert sys.argv[1:3] == ["pip", "install"] and "--require-hashes" in sys.argv
assert "wanted==1.0" in pathlib.Path(sys.argv[-1]).read_text()
pathlib.Path(os.environ["UV_CACHE_DIR"]).mkdir(parents=True)
"""


def test_uv_from_the_lock_installs_the_rest(machine: Machine) -> None:
    locked = Locked(machine, UV)
    ran = locked.prepare()
    assert machine.has_environment, ran.stderr
    assert locked.has("uv") and not locked.has("wanted") and not locked.has("other")
    assert (machine.folder / ".cache/elasticdl/uv").exists()


def test_pip_installs_all_where_uv_fails(machine: Machine) -> None:
    locked = Locked(machine, "raise SystemExit('uv fails')")
    ran = locked.prepare()
    assert machine.has_environment and "uv fails" in ran.stderr
    assert locked.has("wanted") and locked.has("other")


def test_pip_installs_all_where_it_has_an_index_of_its_own(machine: Machine) -> None:
    locked = Locked(machine, "raise SystemExit('uv was called')")
    ran = locked.prepare(PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert machine.has_environment and "uv was called" not in ran.stderr, ran.stderr
    assert locked.has("wanted") and locked.has("other")


def test_a_package_with_another_hash_is_not_installed(machine: Machine) -> None:
    locked = Locked(machine, "raise SystemExit('uv fails')")
    lock = machine.folder / "requirements.lock"
    name, digest = lock.read_text().splitlines()[-2:]
    lock.write_text(lock.read_text().replace(digest, digest[:-1] + "01"[digest.endswith("0")]))
    assert name.startswith("wanted")
    ran = locked.prepare()
    assert ran.returncode != 0 and not locked.has("wanted")
    assert not machine.has_environment


def somebody(machine: Machine) -> None:
    (machine.bin / "id").unlink()
    machine.program("id", "echo 1000")


def root_with_apt(machine: Machine, install: str) -> Path:
    (machine.bin / "id").unlink()
    machine.program("id", "echo 0")
    said = machine.folder / "installed"
    machine.program("apt-get", f'case "$1" in install) echo "$@" >> {said}; {install};; esac')
    return said


def test_an_interpreter_that_has_everything_goes_before_one_that_lacks_something(
    machine: Machine,
) -> None:
    machine.python("python3.11", "ensurepip", "pip", prefix="/usr")
    machine.python("python3")
    ran = machine.prepare()
    assert machine.has_environment, ran.stderr


def test_an_optimized_interpreter_goes_before_one_that_is_not(machine: Machine) -> None:
    said = machine.folder / "made by"
    prefixes = {"python3.11": "/opt/python", "python3": "/usr", "python3.12": "/usr"}
    for name, prefix in prefixes.items():
        program = machine.python(name, *(["ensurepip", "pip"] * (name == "python3")), prefix=prefix)
        told = f"[ \"$2\" != venv ] || echo {name} > '{said}'\nPYTHONPATH="
        program.write_text(program.read_text().replace("PYTHONPATH=", told))
    ran = machine.prepare()
    assert machine.has_environment, ran.stderr
    assert said.read_text() == "python3.12\n"


def test_without_ensurepip_the_interpreters_own_pip_makes_a_half_made_environment_anew(
    machine: Machine,
) -> None:
    python = machine.python("python3.11", "ensurepip", prefix="/usr")
    subprocess.run(
        [python, "-m", "venv", "--without-pip", machine.folder / ".venv"], check=True, timeout=60
    )
    ran = machine.prepare()
    assert machine.has_environment, ran.stderr


def test_the_systems_interpreter_names_the_packages_of_its_own_version(machine: Machine) -> None:
    somebody(machine)
    machine.python("python3.11", "ensurepip", "pip", prefix="/usr", headers=False)
    version = f"python3.{sys.version_info[1]}"
    ran = machine.prepare()
    assert ran.returncode == 2
    assert f"sudo apt-get install {version}-venv {version}-dev" in ran.stderr


def test_nothing_at_all_names_all_packages(machine: Machine) -> None:
    somebody(machine)
    (machine.bin / "g++").unlink()
    ran = machine.prepare()
    assert ran.returncode == 2
    assert "sudo apt-get install g++ libssl-dev python3 python3-venv python3-dev" in ran.stderr


def test_a_compiler_without_openssl_is_told_the_package(machine: Machine) -> None:
    somebody(machine)
    machine.python("python3.11")
    machine.program("g++", "exit 1")
    ran = machine.prepare()
    assert ran.returncode == 2 and "apt-get install libssl-dev" in ran.stderr


def test_an_interpreter_of_no_package_is_named_with_what_it_lacks(machine: Machine) -> None:
    said = root_with_apt(machine, "exit 1")
    python = machine.python("python3.11", "ensurepip", "pip")
    ran = machine.prepare()
    assert ran.returncode == 2
    assert f"{python} can make no virtual environment" in ran.stderr and "PYTHON=" in ran.stderr
    assert not said.exists()  # packages would not help it


def test_an_interpreter_without_headers_is_named(machine: Machine) -> None:
    python = machine.python("python3.11", headers=False)
    ran = machine.prepare()
    assert ran.returncode == 2
    assert f"{python} comes without Python.h" in ran.stderr


def test_an_interpreter_in_a_place_of_its_own_is_taken_when_named(
    machine: Machine, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "my python"
    elsewhere.mkdir()
    machine.python("python3.11", "ensurepip", "pip")
    python = machine.python("python3.12").rename(elsewhere / "python3")
    ran = machine.prepare(PYTHON=str(python))
    assert machine.has_environment, ran.stderr


@pytest.mark.parametrize("named", ["/nowhere/python3.11", "false"])
def test_a_named_interpreter_that_will_not_do_is_said(machine: Machine, named: str) -> None:
    machine.python("python3.11")
    machine.program("false", 'echo "Python 3.9.1"; exit 1')
    ran = machine.prepare(PYTHON=named)
    assert ran.returncode == 2
    assert f"Python 3.11 or 3.12 is needed; {named} here is" in ran.stderr


def test_root_has_the_packages_installed(machine: Machine) -> None:
    version = f"python3.{sys.version_info[1]}"
    whole = machine.python("whole")
    said = root_with_apt(machine, f"mv {whole} {machine.bin}/python3.11")
    machine.python("python3.11", "ensurepip", "pip", prefix="/usr")
    ran = machine.prepare()
    assert said.read_text().split()[-1:] == [f"{version}-venv"]
    assert machine.has_environment, ran.stderr


def test_packages_that_cannot_be_installed_are_named(machine: Machine) -> None:
    root_with_apt(machine, "exit 100")
    machine.python("python3.11", "ensurepip", "pip", prefix="/usr")
    ran = machine.prepare()
    assert ran.returncode == 2
    assert "apt-get could not install" in ran.stderr and "-venv" in ran.stderr


def test_no_shell_complains_about_the_script() -> None:
    checked = subprocess.run(
        ["bash", "-n", ROOT / "scripts/prepare"], capture_output=True, text=True, env=os.environ
    )
    assert checked.returncode == 0 and checked.stderr == ""
