"""Whole jobs on a ring in the core: kills, joins, drains, stopped members, broken steps; the weights know what they saw."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.core.ring_world import TRAIN, VALIDATION, RingWorld, make_spec

from elasticdl.errors import ExitCode
from elasticdl.master.core import events as e

pytestmark = pytest.mark.core


def started(**flags) -> RingWorld:
    world = RingWorld(make_spec(**flags))
    world.put(e.JobStarted(0.0, TRAIN, VALIDATION))
    return world


def test_a_job_on_a_ring_trains_every_record_once_and_needs_no_server():
    world = started(num_workers=3, checkpoint_steps=4, output="out")
    world.run_out()
    assert world.finish.exit_code is ExitCode.DONE
    assert world.rolled_back == 0
    world.check_truth()
