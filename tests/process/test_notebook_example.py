"""The example notebook is what its source says, was really run, and runs without a notebook,
too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
ROOT = Path(__file__).parent.parent.parent
NOTEBOOK = json.loads((ROOT / "docs/notebook/example.ipynb").read_text())
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_has_the_cells_of_its_source() -> None:
    spec = importlib.util.spec_from_file_location("notebook_script", ROOT / "scripts/notebook.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    wanted = list(script.cells((ROOT / "docs/notebook/example.py").read_text()))
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in NOTEBOOK["cells"]] == wanted


def test_the_notebook_was_run_and_shows_its_live_view_and_no_token() -> None:
    outputs = [output for cell in CODE for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in CODE)
    assert {output["output_type"] for output in outputs} == {"stream", "display_data"}
    (view,) = (
        "".join(output["data"]["text/html"])
        for output in outputs
        if output["output_type"] == "display_data"
    )
    assert "<progress" in view and "100%" in view
    assert "token=" not in json.dumps(NOTEBOOK)


def test_its_code_runs(tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    text = "\n".join("".join(cell["source"]) for cell in CODE)
    assert "num_epochs=4" in text and "minibatch_size=64" in text
    text = text.replace("num_epochs=4", "num_epochs=1")
    program.write_text(text.replace("minibatch_size=64", "minibatch_size=128"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        timeout=540,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "'expected': 20000, 'trained': 20000" in done.stdout and "'lost': 0" in done.stdout
    accuracy = re.search(r"'accuracy': ([0-9.]+)", done.stdout)
    assert accuracy is not None and float(accuracy[1]) >= 0.9, done.stdout
