"""Data in Criteo's format with a known truth: a planted factorization machine generates the
labels.

No model can rank better in expectation than the planted one, so its AUC on the test records is
the upper bound.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NUMBERS, CATEGORIES, VALUES, RANK = 13, 26, 100, 4
MISSING = 0.05


@dataclass(frozen=True)
class Table:
    """counts int64[n, 13] (-1: empty), values int64[n, 26] in [0, VALUES) (0: empty), logit and
    label float64[n].
    """

    counts: NDArray[np.int64]
    values: NDArray[np.int64]
    logit: NDArray[np.float64]
    label: NDArray[np.int64]

    @property
    def numbers(self) -> NDArray[np.float32]:
        """Return the models' input for counts: log(1 + count), 0 where empty."""
        return np.log1p(np.maximum(self.counts, 0)).astype(np.float32)

    def part(self, rows: slice) -> Table:
        """Select records."""
        return Table(self.counts[rows], self.values[rows], self.logit[rows], self.label[rows])


def draw(records: int, seed: int = 0) -> Table:
    """Records with Zipf-distributed categories, about a quarter of them positive."""
    rng = np.random.default_rng(seed)
    counts = np.floor(np.exp(rng.normal(1.5, 1.0, (records, NUMBERS)))).astype(np.int64)
    counts[rng.random(counts.shape) < MISSING] = -1
    popularity = 1 / np.arange(1, VALUES) ** 1.3
    values = 1 + np.searchsorted(
        np.cumsum(popularity / popularity.sum()), rng.random((records, CATEGORIES))
    ).clip(0, VALUES - 2)
    values[rng.random(values.shape) < MISSING] = 0
    logit = _logit(np.log1p(np.maximum(counts, 0)), values, rng)
    label = (rng.random(records) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    return Table(counts, values, logit, label)


def _logit(
    numbers: NDArray[np.float64], values: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """w0 + sum of weights + sum over pairs of <v_i, v_j> (Rendle, Factorization Machines, 2010)."""
    columns = np.arange(CATEGORIES)
    linear = rng.normal(0, 0.3, (CATEGORIES, VALUES))[columns, values].sum(
        1
    ) + numbers @ rng.normal(0, 0.15, NUMBERS)
    vectors = rng.normal(0, 0.1, (CATEGORIES, VALUES, RANK))[columns, values]
    total = vectors.sum(1)
    pairs = 0.5 * (total**2 - (vectors**2).sum(1)).sum(1)
    score: NDArray[np.float64] = linear + pairs
    centred: NDArray[np.float64] = score - score.mean() - 1.4
    return centred


def auc(score: NDArray[np.float64], label: NDArray[np.int64]) -> float:
    """Area under the ROC curve."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(label, score))


def write_tsv(path: Path, table: Table) -> None:
    """Criteo's format: label, counts, 8 hex digits for each category; empty where missing."""
    codes = np.random.default_rng(7).integers(0, 1 << 32, (CATEGORIES, VALUES))
    with path.open("w") as file:
        for label, counts, values in zip(
            table.label.tolist(), table.counts.tolist(), table.values.tolist(), strict=True
        ):
            fields = [str(label), *("" if count < 0 else str(count) for count in counts)]
            fields += [
                "" if value == 0 else f"{codes[field, value]:08x}"
                for field, value in enumerate(values)
            ]
            file.write("\t".join(fields) + "\n")


def write_npz(path: Path, table: Table) -> None:
    """The same records with ids field * VALUES + value."""
    ids = table.values + np.arange(CATEGORIES) * VALUES
    np.savez(path, numbers=table.numbers, ids=ids, label=table.label[:, None].astype(np.float32))


def write(folder: Path, records: int, seed: int = 0) -> str:
    """Train and test (a quarter of `records` more) as .tsv and .npz, and truth.json; returns a
    summary of it.
    """
    table = draw(records + records // 4, seed)
    parts = {"train": table.part(slice(0, records)), "test": table.part(slice(records, None))}
    for name, part in parts.items():
        write_tsv(folder / f"{name}.tsv", part)
        write_npz(folder / f"{name}.npz", part)
    test = parts["test"]
    truth = {
        "planted_auc": round(auc(test.logit, test.label), 4),
        "positive": round(float(test.label.mean()), 4),
    }
    (folder / "truth.json").write_text(json.dumps(truth) + "\n")
    return (
        f"the planted model's AUC on the test records is {truth['planted_auc']};"
        f" {truth['positive']:.1%} of them are positive"
    )
