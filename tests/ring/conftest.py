"""Data and modules of the ring's tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model_zoo import make_data

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.npz and test.npz."""
    folder = tmp_path_factory.mktemp("digits")
    make_data.MAKERS["digits"](folder, 0)
    return folder


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's modules, and those of tests: `paced` trains until it is told to hurry."""
    folder = tmp_path_factory.mktemp("zoo")
    for modules in (
        ROOT / "model_zoo",
        ROOT / "tests/kubernetes/zoo",
        ROOT / "tests/ring/ring_zoo",
    ):
        shutil.copytree(
            modules, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    return folder
