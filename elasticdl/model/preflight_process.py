"""`python -m elasticdl.model.preflight_process`: validate the model and the data of a job.

It reads a JobSpec as JSON from its stdin, or in a pod from ELASTICDL_JOB. To its stdout it writes
its progress (`stages.py`) and one JSON object:

    {"ok": true, "training": [{"name", "records", "fingerprint"}], "validation": [...],
     "prediction": [...], "model": {...}, "warnings": [...]}

or {"ok": false, "error", "hint", "exit_code": 2}.

In a pod each of these lines begins with CHECK_MARK: what user code prints is in the same log.

With `--process`, the module's PredictionOutputsProcessor gets the predictions of one batch. With
`--again`, what is at the addresses of results may be the job's own.

It runs in a process of its own because it imports TensorFlow and runs user code. User code gets an
empty stdin, and its output goes to stderr.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from elasticdl.cluster.kubernetes.planning import CHECK_AGAIN, CHECK_MARK, SPEC_VARIABLE
from elasticdl.cluster.local.parent_death import die_with_parent
from elasticdl.errors import ElasticDLError, ExitCode
from elasticdl.formatting import IMPORTING
from elasticdl.job import JobSpec
from elasticdl.model.stages import Stages
from elasticdl.model.tensorflow_import import load_tensorflow


def check(
    spec: JobSpec,
    stages: Stages | None = None,
    *,
    processes: bool = False,
    again: bool = False,
) -> dict[str, Any]:
    """Run `JobPreflight` and return its answer, or {"ok": false, ...}.

    Raises nothing that user code could cause.
    """
    stages = stages or Stages()
    stages.begin("importing TensorFlow")
    load_tensorflow()
    from elasticdl.model.module import load_module
    from elasticdl.model.preflight import JobPreflight

    try:
        stages.begin(IMPORTING)
        module = load_module(spec.model)
        return JobPreflight(spec, module, stages, processes=processes, again=again).run()
    except ElasticDLError as error:
        return _failed(error.message, error.hint)


def _failed(error: str, hint: str) -> dict[str, Any]:
    return {"ok": False, "error": error, "hint": hint, "exit_code": int(ExitCode.USAGE)}


def main() -> int:
    """Check the job that stdin has, and report to the process's original stdout."""
    die_with_parent()
    question = os.dup(0)
    in_pod = SPEC_VARIABLE in os.environ
    stages = Stages.on(os.dup(1), CHECK_MARK if in_pod else "")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    try:
        with open(question, encoding="utf-8") as file:
            spec = JobSpec.model_validate_json(os.environ.pop(SPEC_VARIABLE, "") or file.read())
        options = sys.argv[1:]
        answer_fields = check(
            spec, stages, processes="--process" in options, again=CHECK_AGAIN in options
        )
    except Exception as error:  # noqa: BLE001 - the top of the process: the caller always gets an answer
        trace = traceback.format_exc(limit=-4)
        answer_fields = _failed(f"the check itself failed: {error!r}", trace)
    stages.answer(_jsonable(answer_fields))
    return 0 if answer_fields["ok"] else int(answer_fields["exit_code"])


def _jsonable(value: object) -> object:
    """Replace NaN and infinity, which JSON lacks, by text."""
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Skip Python's shutdown: threads of TensorFlow or of user code would delay the answer.
    os._exit(code)
