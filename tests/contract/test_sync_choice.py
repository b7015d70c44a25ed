"""Which optimizers of Keras train in synchronous steps where the user does not choose."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest

from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.model.sync_choice import SyncChoice, sync_choice

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


def chosen(
    spec: JobSpec, optimizer: Any, records: int = RECORDS, *, has_tables: bool = False
) -> SyncChoice:
    return sync_choice(spec, optimizer, records, has_tables=has_tables)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_trains_in_synchronous_steps_and_says_so(nesterov: bool) -> None:
    choice = chosen(job(), keras.optimizers.SGD(nesterov=nesterov, **MOMENTUM))
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
    choice = chosen(job(), optimizer())
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
    choice = chosen(job(**flags), keras.optimizers.SGD(**MOMENTUM))
    assert not choice.sync
    assert not choice.text


def test_steps_that_the_user_chose_stay_for_every_optimizer() -> None:
    assert chosen(job(sync=True), keras.optimizers.Adam()).sync


def test_an_evaluation_has_no_steps() -> None:
    assert not chosen(job(Action.EVALUATE), keras.optimizers.SGD(**MOMENTUM)).sync


@pytest.mark.parametrize(
    ("flags", "rule", "sync", "words"),
    [
        ({"minibatch_size": 15}, MOMENTUM, False, "--minibatch-size"),
        ({}, {"clipnorm": 1.0, **MOMENTUM}, False, "AllreduceStrategy"),
        ({"num_workers": 16}, MOMENTUM, True, "8 of 16 workers"),
    ],
    ids=["small minibatches", "clipped gradients", "workers without a part"],
)
def test_what_is_not_shared_or_not_by_all_is_a_warning(
    flags: dict[str, Any], rule: dict[str, Any], sync: bool, words: str
) -> None:
    choice = chosen(job(**flags), keras.optimizers.SGD(**rule))
    assert (choice.sync, choice.level) == (sync, "warning")
    assert words in choice.text


SHARES, WARNS, SILENT = (True, "info"), (False, "warning"), (False, "info")


@pytest.mark.parametrize(
    ("workers", "has_tables", "steps", "expected"),
    [
        ("1:2", False, 1199, SHARES),
        ("1:2", False, 1200, SILENT),
        ("4", False, 2399, SHARES),
        ("4", False, 2400, SILENT),
        ("8", False, 2399, SHARES),
        ("8", False, 2400, WARNS),
        ("8", False, 4799, WARNS),
        ("8", False, 4800, SILENT),
        ("2", True, 239, SHARES),
        ("2", True, 240, WARNS),
        ("2", True, 1199, WARNS),
        ("2", True, 1200, SILENT),
        ("1", False, 1, SILENT),
    ],
)
def test_few_steps_are_shared_and_those_beyond_warn_until_there_are_enough(
    workers: str, has_tables: bool, steps: int, expected: tuple[bool, str]
) -> None:
    spec = job(num_workers=workers, num_epochs=1, minibatch_size=64)
    choice = chosen(spec, keras.optimizers.Adam(), 64 * steps - 1, has_tables=has_tables)
    assert (choice.sync, choice.level) == expected
    assert ("--no-sync" in choice.text) == choice.sync
    assert ("; --sync avoids" in choice.text) == (expected == WARNS)
    assert (str(steps) in choice.text.replace(",", "")) == (expected != SILENT)


@pytest.mark.parametrize(
    ("workers", "has_tables", "steps", "limit"),
    [
        ("1:2", True, 239, None),
        ("1:2", True, 240, 0),
        ("2", True, 479, 0),
        ("2", True, 480, None),
        ("16", False, 3839, 0),
        ("16", False, 3840, None),
        ("1", True, 1, None),
    ],
)
def test_a_short_asynchronous_job_does_not_overlap_its_own_updates(
    workers: str, has_tables: bool, steps: int, limit: int | None
) -> None:
    spec = job(num_workers=workers, num_epochs=1, minibatch_size=64)
    choice = chosen(spec, keras.optimizers.Adam(), 64 * steps, has_tables=has_tables)
    assert choice.max_staleness == limit


def test_a_job_whose_few_steps_cannot_be_shared_does_not_overlap_them() -> None:
    assert chosen(job(), keras.optimizers.Adam(clipnorm=1.0), 64).max_staleness == 0


@pytest.mark.parametrize(
    ("rule", "steps", "limit"),
    [({}, 479, 0), ({}, 480, None), ({"momentum": 0.9}, 480, 0)],
    ids=["few", "enough", "momentum"],
)
def test_steps_that_cannot_be_shared_overlap_if_there_are_enough_without_momentum(
    rule: dict[str, float], steps: int, limit: int | None
) -> None:
    spec = job(num_workers=2, num_epochs=1, minibatch_size=64)
    choice = chosen(spec, keras.optimizers.SGD(0.1, clipnorm=1.0, **rule), 64 * steps)
    assert (choice.sync, choice.level) == WARNS
    assert choice.max_staleness == limit


@pytest.mark.parametrize(
    "flags", [{"sync": False}, {"max_staleness": 0}, {"distribution_strategy": "AllreduceStrategy"}]
)
def test_what_the_user_chose_stays_in_a_job_of_few_steps(flags: dict[str, Any]) -> None:
    choice = chosen(job(**flags), keras.optimizers.Adam(), 64)
    assert replace(choice, reason="") == SyncChoice(False)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({}, "few steps"),
        ({"num_epochs": 100}, "6,400 steps"),
        ({"num_epochs": 100, "num_workers": 8, "minibatch_size": 128}, "3,200 steps"),
        ({"sync": True}, "--sync"),
        ({"sync": False}, "--no-sync"),
        ({"num_workers": 1}, "one worker"),
        ({"max_staleness": 2}, "--max-staleness 2"),
        ({"minibatch_size": 8}, "small minibatches"),
        ({"distribution_strategy": "AllreduceStrategy"}, ""),
    ],
)
def test_each_choice_has_its_reason_in_a_few_words(flags: dict[str, Any], reason: str) -> None:
    spec = job(**{"minibatch_size": 64, "num_epochs": 1, **flags})
    assert chosen(spec, keras.optimizers.Adam(), 64 * 64).reason == reason
    assert chosen(job(), keras.optimizers.SGD(**MOMENTUM)).reason == "momentum"
    assert chosen(job(), keras.optimizers.SGD(clipnorm=1.0, **MOMENTUM)).reason == (
        "gradients are clipped"
    )


@pytest.mark.parametrize(
    ("size", "workers", "said"),
    [
        (32, 2, "of 32 records in 2 parts of 16;"),
        (32, 3, "of 32 records in 3 parts of 11, 33 records a step;"),
        (50, 4, "of 50 records in 4 parts of 12, 48 records a step;"),
    ],
)
def test_the_parts_of_a_step_are_counted_in_records(size: int, workers: int, said: str) -> None:
    spec = job(num_workers=workers, minibatch_size=size)
    assert said in chosen(spec, keras.optimizers.SGD(**MOMENTUM)).text
    assert spec.replace(sync=True).training_window * min(workers, 4) == int(
        said.rpartition(", ")[2].split()[0] if "a step" in said else size
    )


@pytest.mark.parametrize(
    ("flags", "optimizer", "way_out"),
    [
        ({"minibatch_size": 15}, keras.optimizers.Adam, "--minibatch-size 16"),
        ({}, lambda: keras.optimizers.Adam(clipnorm=1.0), "AllreduceStrategy"),
    ],
)
@pytest.mark.parametrize(("workers", "steps"), [(4, 10), (8, 4000)])
def test_few_steps_that_cannot_be_shared_warn_with_what_would_help(
    flags: dict[str, Any], optimizer: Any, way_out: str, workers: int, steps: int
) -> None:
    spec = job(**{"minibatch_size": 64, "num_epochs": 1, "num_workers": workers, **flags})
    choice = chosen(spec, optimizer(), spec.data.minibatch_size * steps)
    assert (choice.sync, choice.level) == WARNS
    assert "stale gradients" in choice.text
    assert way_out in choice.text
    assert "--sync" not in choice.text


FIGURES = Path(__file__).parents[2] / "docs/explanation/quality.md"
WITH_TABLES = {"deepfm"}
"""Modules with an embedding of 2 MiB or more. `deepfm_ids` stays below that."""
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
        has_tables = module in WITH_TABLES
        choice = chosen(spec, optimizer(), 64 * steps, has_tables=has_tables)
        # In synchronous steps no gradient is stale: the page has another reason.
        warns = choice.level == "warning" and "--sync" in choice.text
        assert choice.sync or warns, (module, workers)
