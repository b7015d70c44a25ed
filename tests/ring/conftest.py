"""Data of the ring's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_zoo import make_data


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.npz and test.npz."""
    folder = tmp_path_factory.mktemp("digits")
    make_data.MAKERS["digits"](folder, 0)
    return folder
