"""Short reviews with a known sentiment, and sequences of tokens with a known next one."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PLAIN, FEELING = 800, 60
"""Words without a meaning; words for each of good and bad."""
NOISE = 0.05
TOKENS, LENGTH, SURE = 64, 32, 0.8


def write_reviews(folder: Path, records: int) -> str:
    """train.csv and test.csv (a quarter of `records` more): text, label.

    The label is whether more good than bad was said; "not" before a word turns it around. A share
    of NOISE of the labels is wrong.
    """
    rng = np.random.default_rng(0)
    words = _words(rng)
    rows = [_review(rng, words) for _ in range(records + records // 4)]
    for name, part in (("train", rows[:records]), ("test", rows[records:])):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("text", "label"), *part])
    (folder / "truth.json").write_text(json.dumps({"planted_accuracy": 1 - NOISE}) + "\n")
    return f"the planted rule's accuracy is {1 - NOISE}"


def _words(rng: np.random.Generator) -> NDArray[np.str_]:
    """Distinct made-up words: plain ones, good ones, bad ones."""
    syllables = [f"{a}{b}" for a in "bdfgklmnprstvz" for b in "aeiou"]
    pairs = [f"{one}{two}" for one in syllables for two in syllables]
    return rng.permutation(pairs)[: PLAIN + 2 * FEELING]


def _review(rng: np.random.Generator, words: NDArray[np.str_]) -> tuple[str, int]:
    said: list[str] = []
    balance = 0
    for _ in range(2 * rng.integers(0, 3) + 1):
        bad, turned = rng.integers(0, 2, 2)
        feeling = words[PLAIN + bad * FEELING + rng.integers(0, FEELING)]
        said += [*words[rng.integers(0, PLAIN, rng.integers(1, 5))], *["not"] * turned, feeling]
        balance += 1 if bad == turned else -1
    text = " ".join(said).capitalize() + "."
    return text, int((balance > 0) != (rng.random() < NOISE))


def write_tokens(folder: Path, records: int) -> str:
    """train.npz and test.npz (an eighth of `records` more): `tokens` int64[n, LENGTH + 1].

    A token depends on the one before the last: with probability SURE it is the one that a planted
    permutation gives, else any. The first two of a sequence are any.
    """
    tokens = draw_tokens(records + records // 8)
    for name, rows in (("train", slice(0, records)), ("test", slice(records, None))):
        np.savez(folder / f"{name}.npz", tokens=tokens[rows])
    share = (LENGTH - 1) / LENGTH
    best = round(share * (SURE + (1 - SURE) / TOKENS) + (1 - share) / TOKENS, 4)
    (folder / "truth.json").write_text(json.dumps({"planted_accuracy": best}) + "\n")
    return f"the planted rule's accuracy is {best}"


def draw_tokens(records: int, seed: int = 0) -> NDArray[np.int64]:
    """Sequences int64[records, LENGTH + 1]."""
    rng = np.random.default_rng(seed)
    following = rng.permutation(TOKENS)
    tokens = rng.integers(0, TOKENS, (records, LENGTH + 1))
    sure = rng.random(tokens.shape) < SURE
    for place in range(2, LENGTH + 1):
        column = sure[:, place]
        tokens[column, place] = following[tokens[column, place - 2]]
    return tokens
