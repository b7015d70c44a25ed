"""Which user chose which item, with a known truth.

A user chooses an item with a probability that grows with the item's popularity and with the product
of two planted vectors. The best retrieval ranks items by exactly that.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

USERS, ITEMS, RANK = 2000, 1000, 4
CANDIDATES, TOP = 100, 10


def write(folder: Path, records: int) -> str:
    """train.npz and test.npz (an eighth of `records` more) with `user` and `item`, int64[n];
    truth.json has the share of test records whose item the planted scores rank among the first
    10 of it and 100 random items. Returns a summary.
    """
    score = _scores()
    user, item = draw(score, records + records // 8)
    for name, rows in (("train", slice(0, records)), ("test", slice(records, None))):
        np.savez(folder / f"{name}.npz", user=user[rows], item=item[rows])
    best = round(hit_rate(score, user[records:], item[records:]), 4)
    (folder / "truth.json").write_text(json.dumps({"planted_hit_rate": best}) + "\n")
    return f"the planted model's hit rate at {TOP} on the test records is {best}"


def _scores() -> NDArray[np.float64]:
    """Logits of every choice, [USERS, ITEMS]."""
    rng = np.random.default_rng(0)
    taste = rng.normal(0, 1, (USERS, RANK)) @ rng.normal(0, 1, (RANK, ITEMS))
    scores: NDArray[np.float64] = taste + rng.normal(0, 0.5, ITEMS)
    return scores


def draw(
    scores: NDArray[np.float64], records: int, seed: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Users and the items that they chose, int64[records] each."""
    rng = np.random.default_rng(seed)
    weights = np.exp(scores - scores.max(1, keepdims=True)).cumsum(1)
    user = rng.integers(0, USERS, records)
    threshold = rng.random(records) * weights[user, -1]
    item = np.array([np.searchsorted(weights[u], t) for u, t in zip(user, threshold, strict=True)])
    return user, item.clip(0, ITEMS - 1)


def hit_rate(
    scores: NDArray[np.float64], user: NDArray[np.int64], item: NDArray[np.int64]
) -> float:
    """How often fewer than TOP of CANDIDATES random items have a higher score than the item."""
    others = np.random.default_rng(2).integers(0, ITEMS, (len(user), CANDIDATES))
    higher = scores[user[:, None], others] > scores[user, item][:, None]
    return float((higher.sum(1) < TOP).mean())
