"""How long a worker that was asked to end may take, before it ends by force."""

from __future__ import annotations

import threading
import time

import pytest

from elasticdl.cluster.role_environment import GRACE, grace_s
from elasticdl.errors import ExitCode, UserError
from elasticdl.on_train_end import ON_TRAIN_END_S
from elasticdl.rpc.conversation import Drain
from elasticdl.worker.process import os_process
from elasticdl.worker.process.os_process import (
    FAIL_S,
    KILL_MARGIN_S,
    end_by_force,
    force_at_s,
    forced_exit_code,
)
from elasticdl.worker.process.shutdown import Done, Shutdown
from tests.core.test_worker_orders import follow

pytestmark = pytest.mark.core

LIMIT_S = 10.0


def left_s(shutdown: Shutdown) -> float:
    """Until it ends by force, if the reason to end came just now."""
    now_s = time.monotonic()
    return force_at_s(shutdown.reason, now_s, shutdown.kill_at_s) - now_s


def about(seconds: float) -> object:
    return pytest.approx(seconds, abs=LIMIT_S)


def test_a_worker_that_drains_has_the_grace_of_the_order() -> None:
    shutdown, _, _ = follow(Drain("scaled down", 600.0))
    assert left_s(shutdown) == about(600.0 - KILL_MARGIN_S)


def test_of_several_requests_to_drain_the_earliest_end_counts() -> None:
    shutdown = Shutdown()
    shutdown.drain("SIGTERM", 600.0)
    shutdown.drain("the job is over", 300.0)
    shutdown.drain("SIGTERM", 900.0)
    assert left_s(shutdown) == about(300.0 - KILL_MARGIN_S)
    assert str(shutdown.reason) == "draining: SIGTERM"


def test_a_request_that_leaves_less_time_shortens_a_wait_that_continues() -> None:
    shutdown, ended = Shutdown(), threading.Event()
    end_by_force(shutdown, lambda _: ended.set())
    shutdown.drain("SIGTERM", 600.0)
    assert not ended.wait(0.1)
    shutdown.drain("stopped twice", 0.0)
    assert ended.wait(LIMIT_S)


def test_a_failure_gives_a_draining_worker_no_more_time() -> None:
    shutdown = Shutdown()
    shutdown.drain("SIGTERM", 10.0)
    shutdown.fail(UserError("while draining"))
    assert left_s(shutdown) <= 10.0 - KILL_MARGIN_S
    late = Shutdown()
    late.fail(UserError("by itself"))
    assert left_s(late) == pytest.approx(FAIL_S, abs=1.0)


def test_a_failure_after_the_end_of_the_job_has_time_to_be_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os_process, "FAIL_S", 2.0)
    shutdown, ended = Shutdown(), threading.Event()
    end_by_force(shutdown, lambda _: ended.set())
    shutdown.end(Done())
    assert not ended.wait(2.1)
    shutdown.fail(UserError("in on_train_end"))
    assert not ended.wait(1.0)
    assert ended.wait(LIMIT_S)


def test_the_exit_code_of_a_worker_that_hangs_while_it_ends_says_so() -> None:
    hangs, hurried, failed = Shutdown(), Shutdown(), Shutdown()
    for shutdown in (hangs, hurried, failed):
        shutdown.drain("stopped", 30.0)
    assert forced_exit_code(hangs) is ExitCode.FORCED
    hurried.drain("stopped twice", 0.0)
    assert forced_exit_code(hurried) is ExitCode.DRAINED, "it had no time to end in"
    failed.fail(UserError("while draining"))
    assert forced_exit_code(failed) is ExitCode.USER_ERROR


def test_a_signal_does_not_cut_off_what_a_module_does_at_the_end_of_a_job() -> None:
    shutdown = Shutdown()
    shutdown.end(Done())
    shutdown.drain("SIGTERM", 5.0)
    assert left_s(shutdown) == about(ON_TRAIN_END_S)


def test_a_worker_knows_the_grace_of_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GRACE, raising=False)
    assert grace_s() == 30.0
    monkeypatch.setenv(GRACE, "45")
    assert grace_s() == 45.0
