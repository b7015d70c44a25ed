"""Rows with the columns of the census income data of UCI, with a known truth.

Whether a person earns more than 50,000 is drawn from a planted logit with a weight per value, a
curve of the age, and a weight per pair of education and occupation. No model can rank better in
expectation than the planted one.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

Column: TypeAlias = NDArray[Any]

CATEGORIES = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay"
    " Never-worked",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th"
    " 12th Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    "marital_status": "Married-civ-spouse Divorced Never-married Separated Widowed"
    " Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty"
    " Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving"
    " Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native_country": "United-States Cambodia England Puerto-Rico Canada Germany India Japan Greece"
    " China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland"
    " France Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand"
    " Yugoslavia El-Salvador Peru Hong-Kong",
}
NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
LABEL = "income_bracket"
MISSING = 0.03


def write(folder: Path, records: int) -> str:
    """train.csv, test.csv (a quarter of `records` more) and truth.json; a summary of the truth."""
    columns, logit, label = draw(records + records // 4)
    names = [*NUMBERS, *CATEGORIES, LABEL]
    brackets = np.where(label, ">50K", "<=50K")
    rows = list(zip(*(columns[name].tolist() for name in names[:-1]), brackets, strict=True))
    for name, part in (("train", rows[:records]), ("test", rows[records:])):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([names, *part])
    best = round(float(roc_auc_score(label[records:], logit[records:])), 4)
    (folder / "truth.json").write_text(json.dumps({"planted_auc": best}) + "\n")
    return f"the planted model's AUC on the test records is {best}"


def draw(records: int, seed: int = 0) -> tuple[dict[str, Column], Column, Column]:
    """Columns (numbers as int64, categories as text, `?` where missing), logit and label."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Column] = {
        "age": rng.normal(39, 13, records).clip(17, 90).astype(np.int64),
        "education_num": rng.integers(1, 17, records),
        "capital_gain": _seldom(rng, records, 0.08, 8.5),
        "capital_loss": _seldom(rng, records, 0.05, 7.5),
        "hours_per_week": rng.normal(40, 12, records).clip(1, 99).astype(np.int64),
    }
    chosen = {}
    logit = -0.003 * (columns["age"] - 50.0) ** 2 + 0.1 * columns["education_num"]
    logit += 0.25 * np.log1p(columns["capital_gain"]) + 0.03 * columns["hours_per_week"]
    for name, text in CATEGORIES.items():
        values = np.array([*text.split(), "?"])
        popularity = 1 / np.arange(1, len(values)) ** 0.7
        numbers = rng.choice(len(values) - 1, records, p=popularity / popularity.sum())
        numbers[rng.random(records) < MISSING] = len(values) - 1
        columns[name], chosen[name] = values[numbers], numbers
        logit += rng.normal(0, 0.5, len(values))[numbers]
    pairs = rng.normal(0, 1, (17, 15))
    logit += pairs[chosen["education"], chosen["occupation"]]
    logit -= np.quantile(logit, 0.75)
    return columns, logit, rng.random(records) < 1 / (1 + np.exp(-logit))


def _seldom(rng: np.random.Generator, records: int, share: float, scale: float) -> Column:
    """Mostly 0; for a `share` of the records about exp(`scale`)."""
    amounts = np.exp(rng.normal(scale, 0.5, records)).astype(np.int64)
    return np.where(rng.random(records) < share, amounts, 0)
