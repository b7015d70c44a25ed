"""`python -m elasticdl.model.check`: a JobSpec as JSON on stdin, what is wrong or what is there as
one JSON object on stdout.

Runs in a process of its own, since it imports TensorFlow and runs the user's code. Whatever that
prints goes to stderr.

{"ok": true, "training": [{"name", "records", "fingerprint"}], "validation": [...], "prediction":
[...], "model": {...},
 "warnings": [...]}, or {"ok": false, "error", "hint", "exit_code": 2}.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from elasticdl.cluster.local.parent_death import die_with_parent
from elasticdl.errors import ElasticDLError, ExitCode
from elasticdl.formatting import IMPORTING
from elasticdl.job import JobSpec
from elasticdl.model.stages import Stages
from elasticdl.model.tensorflow_import import load_tensorflow


def check(spec: JobSpec, stages: Stages | None = None) -> dict[str, Any]:
    """What `JobPreflight.run` finds, or {"ok": false, ...}.

    Raises nothing that user code could cause.
    """
    stages = stages or Stages()
    stages.begin("importing TensorFlow")
    load_tensorflow()
    from elasticdl.model.module import load_module
    from elasticdl.model.preflight import JobPreflight

    try:
        stages.begin(IMPORTING)
        return JobPreflight(spec, load_module(spec.model), stages).run()
    except ElasticDLError as error:
        return {
            "ok": False,
            "error": error.message,
            "hint": error.hint,
            "exit_code": int(ExitCode.USAGE),
        }


def main() -> int:
    """Reads stdin, writes one line to the stdout that the process began with."""
    die_with_parent()
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    stages = Stages.of_environment()
    try:
        found = check(JobSpec.model_validate_json(sys.stdin.read()), stages)
    except Exception as error:  # noqa: BLE001 - the top of the process: whoever asked gets an answer
        trace = traceback.format_exc(limit=-4)
        found = {
            "ok": False,
            "error": f"the check itself failed: {error!r}",
            "hint": trace,
            "exit_code": int(ExitCode.USAGE),
        }
    with answer:
        json.dump(_jsonable(found), answer)
        answer.write("\n")
    return 0 if found["ok"] else int(found["exit_code"])


def _jsonable(value: Any) -> Any:  # noqa: ANN401
    """NaN and infinity, which JSON has not, as text."""
    if isinstance(value, Mapping):
        return {key: _jsonable(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(one) for one in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Without Python's shutdown: threads of TensorFlow or of the user's code would hold the answer
    # up.
    os._exit(code)
