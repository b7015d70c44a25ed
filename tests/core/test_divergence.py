"""A loss that rises again is noticed, and asynchronous workers are told what to do about it."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from elasticdl.master.core import commands as c
from elasticdl.master.core.ps.staleness import LOSS_WINDOW, LossWatch
from elasticdl.shard import Source
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core


def curve(falls: int, rises: int = 0, seed: int = 0) -> list[float]:
    """A noisy loss that falls from 2.5 to 0.05 and then returns."""
    noise = random.Random(seed)
    down = [0.05 + 2.45 * math.exp(-step / 40) for step in range(falls)]
    up = [min(3.0, down[-1] * math.exp(step / 20)) for step in range(rises)]
    return [value * math.exp(noise.gauss(0, 0.5)) for value in down + up]


@pytest.mark.parametrize("seed", range(50))
def test_a_noisy_loss_that_falls_is_not_noticed(seed: int) -> None:
    watch = LossWatch()
    assert not any(watch.add(loss) for loss in curve(2000, seed=seed))


@pytest.mark.parametrize("seed", range(10))
def test_a_loss_that_rises_is_noticed_once(seed: int) -> None:
    watch = LossWatch()
    losses = curve(400, 400, seed)
    assert not any(watch.add(loss) for loss in losses[:400])
    [(lowest, now)] = [risen for loss in losses[400:] if (risen := watch.add(loss))]
    assert lowest < 0.2
    assert now > 0.5


def test_a_loss_that_stays_where_it_began_is_not_noticed() -> None:
    watch = LossWatch()
    assert not any(watch.add(2.3) for _ in range(500))


def train(bench: Bench) -> list[c.Announce]:
    """Train with a loss that falls and rises; returns the warnings."""
    bench.up(bench.spec.cluster.num_workers.high, training=(Source("a", 100_000),))
    for index, loss in enumerate([2.0] * LOSS_WINDOW + [0.1] * LOSS_WINDOW + [1.9] * LOSS_WINDOW):
        worker = index % bench.spec.cluster.num_workers.high
        lease = bench.lease(worker)
        bench.progress(worker, lease, present(lease.shard).records, done=True, loss=loss)
    return [one for one in bench.of(c.Announce) if one.level == "warning"]


def test_asynchronous_workers_are_told_to_train_in_steps() -> None:
    [warning] = train(Bench(num_workers=4))
    assert warning.kind == "staleness"
    assert "rose from 0.1 to 1.9" in warning.text
    assert "--sync" in warning.text


@pytest.mark.parametrize("flags", [{"num_workers": 1}, {"num_workers": 4, "sync": True}])
def test_workers_without_stale_gradients_are_told_nothing(flags: dict[str, Any]) -> None:
    assert train(Bench(**flags)) == []
