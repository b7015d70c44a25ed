"""The check in a child: whatever user code does to it, the master gets words."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from elasticdl.cluster.local.machine import memory_kills
from elasticdl.errors import ExitCode, UserError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.preflight import (
    Preflight,
    PreflightChild,
    end_of_child,
    load_preflight,
    run_preflight,
    save_preflight,
)
from elasticdl.master.preflight_watch import PreflightLimits
from elasticdl.shard import Source
from tests.waiting import gone, until

pytestmark = pytest.mark.process

SPEC = JobSpec.from_flags(
    Action.TRAIN,
    {"model_zoo": "zoo", "model_def": "iris", "training_data": "iris.csv", "envs": "COLOUR=blue"},
)


def child(program: str, timeout_s: float = 30.0) -> Preflight:
    limits = PreflightLimits(part_s=timeout_s)
    return run_preflight(SPEC, command=(sys.executable, "-c", program), limits=limits)


GOOD = """
import json, sys
spec = json.load(sys.stdin)
print("user code prints this")
data = {"name": spec["data"]["training_data"], "records": 150, "fingerprint": "f"}
print(json.dumps({"ok": True, "training": [data], "tables": 2}))
"""


def test_what_the_child_found_is_taken() -> None:
    found = child(GOOD)
    assert found.training == (Source("iris.csv", 150, "f"),)
    assert found.validation == found.prediction == ()
    assert found.raw["tables"] == 2


def test_it_is_kept_for_the_master(tmp_path: Path) -> None:
    path = tmp_path / "preflight.json"
    assert load_preflight(path) is None
    found = child(GOOD)
    save_preflight(path, found)
    assert load_preflight(path) == found


@pytest.mark.parametrize(("mine", "level"), [(None, "2"), ("0", "0")])
def test_tensorflow_is_quiet_about_itself_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, mine: str | None, level: str
) -> None:
    if mine is None:
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    else:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", mine)
    found = child(
        'import json, os; print(json.dumps({"ok": True, "level":'
        ' os.environ["TF_CPP_MIN_LOG_LEVEL"]}))'
    )
    assert found.raw["level"] == level


def test_the_temporary_files_of_a_check_go_with_it() -> None:
    found = child(
        "import json, os, tempfile; folder = tempfile.mkdtemp();"
        ' print(json.dumps({"ok": True, "folder": folder, "set": os.environ["TMPDIR"]}))'
    )
    folder = Path(found.raw["folder"])
    assert str(folder.parent) == found.raw["set"] and not folder.parent.exists()


def test_what_a_dying_check_said_last_has_none_of_tensorflows_own_words(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import os, keras\nos.write(2, b'last words\\n')\nos._exit(3)\n")
    flags = {"model_zoo": str(tmp_path), "model_def": "m", "training_data": "iris.csv"}
    with pytest.raises(UserError) as caught:
        run_preflight(JobSpec.from_flags(Action.TRAIN, flags))
    assert caught.value.message.endswith(
        "ended with exit code 3 and no result; last output:\n  last words"
    )


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "preflight.json"
    path.write_text(text)
    with pytest.raises(UserError, match="not a preflight result"):
        load_preflight(path)


def test_what_is_wrong_with_the_model_comes_with_its_hint_and_exit_code() -> None:
    found = {"ok": False, "error": "iris.py:3: no loss", "hint": "define loss", "exit_code": 2}
    with pytest.raises(UserError) as caught:
        child(f"print({json.dumps(found)!r})")
    assert (caught.value.message, caught.value.hint, caught.value.exit_code) == (
        "iris.py:3: no loss",
        "define loss",
        ExitCode.USAGE,
    )


def test_a_module_that_ends_the_process_is_named_with_what_it_said() -> None:
    with pytest.raises(
        UserError, match=r"exit code 7 and no result; last output:\s+goodbye"
    ) as caught:
        child("import sys; print('goodbye', file=sys.stderr); sys.exit(7)")
    assert "iris" in caught.value.hint


def test_a_child_that_is_killed_is_named_by_its_signal() -> None:
    with pytest.raises(UserError, match="signal SIGKILL and no result, without output") as caught:
        child("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert "if memory runs out" in caught.value.hint


def test_a_child_that_crashes_is_reported_as_a_crash() -> None:
    with pytest.raises(UserError, match="signal SIGSEGV and no result") as caught:
        child("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert "a library in C or C++ crashed" in caught.value.hint


def test_a_child_that_the_kernel_killed_at_the_memory_limit_says_so(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 3\noom_kill 3\noom_group_kill 0\n")
    with subprocess.Popen(["sleep", "60"]) as process:
        ended = partial(end_of_child, process.pid)
        check = PreflightChild(
            process.pid, ended, cgroup=tmp_path, kills_before=memory_kills(tmp_path)
        )
        assert check.end() == ""
        process.kill()
        until("it has ended", lambda: bool(check.end()), 10)
        events.write_text("low 0\noom 4\noom_kill 4\noom_group_kill 0\n")
        with pytest.raises(UserError, match="out of memory at the limit") as caught:
            check.end()
    assert caught.value.exit_code is ExitCode.USAGE and "memory limit" in caught.value.hint


def test_a_child_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = f"""
import os, subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{grandchild.pid}}")
print("importing", file=sys.stderr, flush=True)
time.sleep(600)
"""
    with pytest.raises(UserError, match=r"did not finish within 3 s; last output:\s+importing"):
        child(program, timeout_s=3)
    for pid in map(int, pids.read_text().split()):
        until("it is gone", partial(gone, pid), 10)


def test_the_child_has_the_environment_of_the_job() -> None:
    program = """
import json, os
token = os.environ.get("ELASTICDL_TOKEN", "")
print(json.dumps({"ok": True, "colour": os.environ["COLOUR"], "token": token}))
"""
    assert child(program).raw["colour"] == "blue"


@pytest.mark.parametrize(
    "sources", ['"x"', '[{"name": "a"}]', '[{"name": "a", "records": "many"}]', "[3]"]
)
def test_nonsense_about_the_data_is_refused(sources: str) -> None:
    with pytest.raises(UserError, match="invalid training data"):
        child(f"""print('{{"ok": true, "training": {sources}}}')""")


LIMITS = PreflightLimits(still_s=2.0, stacks_s=0.2, quiet_s=0.5)


def checked(folder: Path, module: str, told: list[str]) -> Preflight:
    """The real check of a module, with short limits."""
    (folder / "m.py").write_text(module)
    flags = {"model_zoo": str(folder), "model_def": "m", "training_data": str(folder / "iris.csv")}
    return run_preflight(JobSpec.from_flags(Action.TRAIN, flags), limits=LIMITS, tell=told.append)


DEADLOCK = """import threading

lock = threading.Lock()
with lock:
    def run():
        with lock:
            pass
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
"""


def test_a_module_that_deadlocks_at_its_import_is_an_error_that_names_the_line(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    with pytest.raises(
        UserError, match="importing the model module has made no progress for"
    ) as caught:
        checked(tmp_path, DEADLOCK, told)
    place = f"at {tmp_path}/m.py:10, in <module>"
    assert place in caught.value.message
    assert any("importing the model module has taken" in text and place in text for text in told), (
        told
    )


def test_a_module_that_holds_the_interpreter_for_ever_at_its_import_is_an_error_that_names_the_line(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    holding = "import ctypes\n\nctypes.PyDLL(None).sleep(600)\n"
    with pytest.raises(UserError, match="has made no progress for") as caught:
        checked(tmp_path, holding, told)
    assert f"at {tmp_path}/m.py:3, in <module>" in caught.value.message


def test_an_import_that_is_slow_but_continues_is_none(tmp_path: Path) -> None:
    """It takes longer than it may stand still; the check goes on, and finds what is wrong after
    that.
    """
    told: list[str] = []
    slow = (
        "".join(f"import time; time.sleep(0.5)  # {n}\n" for n in range(12))
        + "raise ValueError('it came to its end')\n"
    )
    with pytest.raises(UserError, match="it came to its end"):
        checked(tmp_path, slow, told)
    assert any("importing the model module has taken" in text for text in told), told


def test_files_that_are_counted_are_reported_while_it_lasts(tmp_path: Path) -> None:
    program = """
import json, os, sys, time
for done in range(0, 101, 10):
    print(json.dumps({"counted": 32 * done, "files": 3200}), flush=True)
    time.sleep(0.5)
print(json.dumps({"ok": True}))
"""
    told: list[str] = []
    limits = PreflightLimits(part_s=3.0)
    run_preflight(SPEC, command=(sys.executable, "-c", program), limits=limits, tell=told.append)
    assert told and all(
        text.startswith("counting records: ") and text.endswith(" of 3,200 files") for text in told
    )
