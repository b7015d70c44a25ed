"""How counts, shares, times and sizes are said."""

from __future__ import annotations

import pytest

from elasticdl.formatting import amount, duration, exchange_words, number, percent, size, spoken

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0 records"),
        (1, "1 record"),
        (2, "2 records"),
        (1437, "1,437 records"),
        (1_000_000, "1,000,000 records"),
    ],
)
def test_one_is_said_without_an_s_and_many_with_commas(number: int, said: str) -> None:
    assert amount(number, "record") == said


def test_a_plural_of_its_own_is_said() -> None:
    assert (amount(1, "entry", "entries"), amount(2, "entry", "entries")) == (
        "1 entry",
        "2 entries",
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"), (0, "0"), (5.0, "5"), (1234.56, "1,235"), (12.34, "12.3"), (0.01234, "0.0123"),
        (0.00000123, "1.23e-6"), (123_456_789_012.0, "123,456,789,012"), (-1e300, "-1.00e300"),
        (10**12, "1.00e12"), (float("nan"), "–"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_that_say_something(value: float | None, said: str) -> None:
    assert number(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "–"), (0.4, "0 s"), (0.5, "1 s"), (2.5, "3 s"), (7, "7 s"), (59.6, "1:00"),
        (187, "3:07"), (3723, "1:02:03"), (2 * 86400, "2 d 00:00"),
    ],
)  # fmt: skip
def test_durations_are_read_at_a_glance_and_halves_go_up(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("done", "expected", "said"),
    [
        (0, 0, "0 %"),
        (29, 100, "29 %"),
        (111, 200, "55 %"),
        (999, 1000, "99 %"),
        (1000, 1000, "100 %"),
        (7, 5, "100 %"),
    ],
)
def test_a_share_is_rounded_down_so_that_all_is_only_said_of_all(
    done: int, expected: int, said: str
) -> None:
    assert percent(done, expected) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.44, "0.4 s"),
        (9.97, "10 s"),
        (119.9, "2 min"),
        (3_600, "60 min"),
        (7_199, "2.0 h"),
        (216_000, "2.5 d"),
    ],
)
def test_a_time_in_a_sentence_is_as_exact_as_it_matters(seconds: float, said: str) -> None:
    assert spoken(seconds) == said


@pytest.mark.parametrize(
    ("size_bytes", "said"),
    [
        (None, "–"),
        (0, "0 B"),
        (700, "700 B"),
        (8_448, "8.25 KiB"),
        (3 * 2**20, "3 MiB"),
        (1.5 * 2**30, "1.50 GiB"),
    ],
)
def test_a_size_has_the_unit_that_fits_it(size_bytes: float | None, said: str) -> None:
    assert size(size_bytes) == said


def test_what_takes_longer_than_a_step_is_no_share_of_it() -> None:
    assert exchange_words(0.5) == "pull and push take 50 % of a step"
    assert exchange_words(5.37) == "pull and push take 5.4 times as long as a step"
