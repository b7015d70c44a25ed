"""Builds what pyproject.toml cannot say: the C++ extension, the protocol messages, and what the
page takes from npm.
"""

from __future__ import annotations

import glob
import os
import runpy
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
PROTO = "elasticdl/rpc/elasticdl.proto"
PAGE = ROOT / "elasticdl/page"
FROM_NPM = {
    "dist/uPlot.iife.min.js": "uPlot.iife.min.js",
    "dist/uPlot.min.css": "uPlot.min.css",
    "LICENSE": "uPlot.LICENSE.txt",
}
SANITIZE = os.environ.get("ELASTICDL_SANITIZE", "")


def generate_messages() -> None:
    """elasticdl.proto -> elasticdl_pb2.py, .pyi and _grpc.py beside it."""
    from grpc_tools import protoc

    arguments = [
        "protoc",
        f"-I{ROOT}",
        f"--python_out={ROOT}",
        f"--pyi_out={ROOT}",
        f"--grpc_python_out={ROOT}",
        str(ROOT / PROTO),
    ]
    if protoc.main(arguments) != 0:
        sys.exit(f"protoc could not compile {PROTO}")


def bring_plots() -> None:
    """uPlot and its licence, of the version and with the hash that package-lock.json says, into
    elasticdl/page/vendor.
    """
    lock, vendor = PAGE / "npm/package-lock.json", PAGE / "vendor"
    if not lock.exists():
        return
    stamp = vendor / ".lock"
    if stamp.exists() and stamp.read_bytes() == lock.read_bytes():
        return
    modules = runpy.run_path(str(PAGE / "npm/install.py"))["installed"](PAGE / "npm")
    vendor.mkdir(exist_ok=True)
    for name, kept in FROM_NPM.items():
        shutil.copyfile(modules / "uplot" / name, vendor / kept)
    shutil.copyfile(lock, stamp)


class BuildPy(build_py):
    """Messages are modules, and uPlot is data: both must be there before either is collected."""

    def run(self) -> None:
        generate_messages()
        bring_plots()
        super().run()


class BuildExt(build_ext):
    """An editable install asks for the extension only. Its sources are compiled side by side."""

    def run(self) -> None:
        generate_messages()
        bring_plots()
        super().run()

    def build_extensions(self) -> None:
        one_by_one = self.compiler.compile

        def side_by_side(sources: list[str], **how: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [
                    made
                    for objects in pool.map(lambda source: one_by_one([source], **how), sources)
                    for made in objects
                ]

        self.compiler.compile = side_by_side
        super().build_extensions()


def native() -> Extension:
    """One extension for all C++: CPython's stable way in is nanobind, compiled along from its own
    package.
    """
    import nanobind

    binding = Path(nanobind.source_dir())
    sources = [
        *sorted(glob.glob("elasticdl/*/native/*.cc")),
        os.path.relpath(binding / "nb_combined.cpp", ROOT),
    ]
    flags = [
        "-std=c++17",
        "-O3",
        "-fvisibility=hidden",
        "-fno-strict-aliasing",
        "-fno-math-errno",
        "-ffp-contract=off",
        "-g1",
        "-Wall",
        "-DNDEBUG",
    ]
    # OpenSSL goes in, hidden: TensorFlow exports BoringSSL's functions of the same names to
    # libraries that are loaded later.
    link = [
        "-pthread",
        "-Wl,-Bstatic,-lssl,-lcrypto,-Bdynamic",
        "-Wl,--exclude-libs,libssl.a:libcrypto.a",
    ]
    if SANITIZE:
        flags += [f"-fsanitize={SANITIZE}", "-O1", "-UNDEBUG"]
        link += [f"-fsanitize={SANITIZE}"]
    includes = [nanobind.include_dir(), str(binding.parent / "ext/robin_map/include"), "."]
    headers = sorted(glob.glob("elasticdl/*/native/*.h"))
    return Extension(
        "elasticdl.native._native",
        sources,
        include_dirs=includes,
        depends=headers,
        extra_compile_args=flags,
        extra_link_args=link,
        language="c++",
    )


setup(ext_modules=[native()], cmdclass={"build_py": BuildPy, "build_ext": BuildExt})
