"""Which optimizers of Keras train in synchronous steps where the user does not choose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import pytest

from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.model.sync_choice import sync_choice

pytestmark = pytest.mark.contract

RECORDS = 1 << 20
MOMENTUM: dict[str, Any] = {"learning_rate": 0.1, "momentum": 0.9}


def job(action: Action = Action.TRAIN, **flags: object) -> JobSpec:
    needed = {"model_zoo": "z", "model_def": "m"}
    data = (
        {"training_data": "t"}
        if action is Action.TRAIN
        else {"validation_data": "t", "checkpoint_dir_for_init": "c"}
    )
    return JobSpec.from_flags(action, needed | data | {"num_workers": 4} | flags)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_trains_in_synchronous_steps_and_says_so(nesterov: bool) -> None:
    choice = sync_choice(job(), keras.optimizers.SGD(nesterov=nesterov, **MOMENTUM), RECORDS)
    assert choice.sync
    assert choice.level == "info"
    assert "4 parts" in choice.text
    assert "--no-sync" in choice.text


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.1),
        lambda: keras.optimizers.Adam(),
        lambda: keras.optimizers.AdamW(),
        lambda: keras.optimizers.Adagrad(),
        lambda: keras.optimizers.Ftrl(),
    ],
)
def test_other_optimizers_train_asynchronously(optimizer: Any) -> None:
    choice = sync_choice(job(), optimizer(), RECORDS)
    assert not choice.sync
    assert not choice.text


@pytest.mark.parametrize(
    "flags",
    [
        {"num_workers": 1},
        {"sync": False},
        {"max_staleness": 1},
        {"max_staleness": 0},
        {"distribution_strategy": "AllreduceStrategy"},
    ],
)
def test_what_the_user_chose_stays(flags: dict[str, Any]) -> None:
    choice = sync_choice(job(**flags), keras.optimizers.SGD(**MOMENTUM), RECORDS)
    assert not choice.sync
    assert not choice.text


def test_steps_that_the_user_chose_stay_for_every_optimizer() -> None:
    assert sync_choice(job(sync=True), keras.optimizers.Adam(), RECORDS).sync


def test_an_evaluation_has_no_steps() -> None:
    assert not sync_choice(job(Action.EVALUATE), keras.optimizers.SGD(**MOMENTUM), RECORDS).sync


def test_a_small_minibatch_is_not_shared_and_the_job_warns() -> None:
    choice = sync_choice(job(minibatch_size=15), keras.optimizers.SGD(**MOMENTUM), RECORDS)
    assert not choice.sync
    assert choice.level == "warning"
    assert "--minibatch-size" in choice.text


def test_clipped_gradients_are_not_shared_and_the_job_warns() -> None:
    choice = sync_choice(job(), keras.optimizers.SGD(clipnorm=1.0, **MOMENTUM), RECORDS)
    assert not choice.sync
    assert choice.level == "warning"
    assert "AllreduceStrategy" in choice.text


def test_workers_without_a_part_are_named() -> None:
    choice = sync_choice(job(num_workers=16), keras.optimizers.SGD(**MOMENTUM), RECORDS)
    assert choice.sync
    assert choice.level == "warning"
    assert "8 of 16 workers" in choice.text


@pytest.mark.parametrize(("records", "warns"), [(64 * 1199, True), (64 * 1200, False)])
def test_few_steps_of_several_workers_warn(records: int, warns: bool) -> None:
    two = job(num_workers="1:2", num_epochs=1, minibatch_size=64)
    choice = sync_choice(two, keras.optimizers.Adam(), records)
    assert not choice.sync
    assert ("--sync" in choice.text, choice.level == "warning") == (warns, warns)
    assert not sync_choice(two.replace(sync=False), keras.optimizers.Adam(), records).text


FIGURES = Path(__file__).parents[2] / "docs/explanation/quality.md"
CASE = re.compile(
    r"`(?P<module>\w+)`.*?(?P<epochs>\d+) epochs of (?P<steps>\d+) steps, (?P<rule>.*)"
)


def measured() -> list[tuple[str, int, int, Any, set[int]]]:
    """The rows of the page's table: module, epochs, steps of each, optimizer, workers that miss."""
    rules = {"SGD with momentum": lambda: keras.optimizers.SGD(**MOMENTUM)}
    rows = []
    for line in FIGURES.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 7 or not cells[0].startswith("`"):
            continue  # no row of this table, or its heading
        case = CASE.fullmatch(cells[0])
        assert case is not None, f"no module, epochs, steps and optimizer: {cells[0]}"
        rule = case["rule"]
        optimizer = rules.get(rule) or getattr(keras.optimizers, rule)
        within = cells[6].partition(":")[0]
        assert re.fullmatch(r"none|[24](, 4)?", within), f"no numbers of workers: {cells}"
        reached = {int(word) for word in re.findall(r"\d+", within)}
        rows.append(
            (case["module"], int(case["epochs"]), int(case["steps"]), optimizer, {2, 4} - reached)
        )
    return rows


def test_a_job_that_was_measured_to_miss_plain_keras_warns() -> None:
    rows = measured()
    assert {"iris", "digits_subclass", "two_tower"} <= {row[0] for row in rows}
    missing = [(*row[:4], workers) for row in rows for workers in row[4]]
    assert missing
    for module, epochs, steps, optimizer, workers in missing:
        spec = job(num_workers=workers, minibatch_size=64, num_epochs=epochs)
        choice = sync_choice(spec, optimizer(), 64 * steps)
        # In synchronous steps no gradient is stale: the page has another reason.
        warns = choice.level == "warning" and "--sync" in choice.text
        assert choice.sync or warns, (module, workers)
