"""What the tests' own processes write to the temporary directory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.core


def test_temporary_files_are_among_those_that_pytest_removes(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with tempfile.NamedTemporaryFile() as file:
        assert Path(file.name).is_relative_to(tmp_path_factory.getbasetemp())
