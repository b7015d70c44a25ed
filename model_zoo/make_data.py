"""Write the data of the model zoo: `python -m model_zoo.make_data NAME FOLDER`.

Tables come from scikit-learn's package.
"""

from __future__ import annotations

import argparse
import csv
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

IRIS = ("sepal_length", "sepal_width", "petal_length", "petal_width", "species")


def parts(records: int, seed: int = 0) -> dict[str, Any]:
    """Row numbers of `train` (four fifths) and `test`, shuffled."""
    order = np.random.default_rng(seed).permutation(records)
    return {"train": order[: records * 4 // 5], "test": order[records * 4 // 5 :]}


def iris(folder: Path, records: int) -> str:
    """train.csv, test.csv, and iris.sqlite with tables train and test."""
    from sklearn.datasets import load_iris

    found = load_iris()
    rows = [
        (*features, label)
        for features, label in zip(found.data.tolist(), found.target.tolist(), strict=True)
    ]
    database = folder / "iris.sqlite"
    database.unlink(missing_ok=True)
    with closing(sqlite3.connect(database)) as connection:
        for name, chosen in parts(len(rows)).items():
            part = [rows[i] for i in chosen]
            with (folder / f"{name}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([IRIS, *part])
            connection.execute(
                f"CREATE TABLE {name} ({', '.join(f'{column} REAL' for column in IRIS)})"
            )
            connection.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?)", part)
        connection.commit()
    return f"{len(rows)} flowers"


def digits(folder: Path, records: int) -> str:
    """train.npz and test.npz."""
    images, labels = _digits()
    for name, chosen in parts(len(labels)).items():
        np.savez(folder / f"{name}.npz", image=images[chosen], label=labels[chosen])
    return f"{len(labels)} images"


def digits_tfrecord(folder: Path, records: int) -> str:
    """train.tfrecord and test.tfrecord of tf.train.Example."""
    import tensorflow as tf

    images, labels = _digits()
    for name, chosen in parts(len(labels)).items():
        with tf.io.TFRecordWriter(str(folder / f"{name}.tfrecord")) as writer:
            for i in chosen:
                image = tf.train.Feature(float_list=tf.train.FloatList(value=images[i].ravel()))
                label = tf.train.Feature(int64_list=tf.train.Int64List(value=[labels[i]]))
                example = tf.train.Example(
                    features=tf.train.Features(feature={"image": image, "label": label})
                )
                writer.write(example.SerializeToString())
    return f"{len(labels)} images"


def _digits() -> tuple[Any, Any]:
    """float32[1797, 8, 8, 1] from 0 to 16, and int64[1797]."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return found.images.astype(np.float32)[..., None], found.target.astype(np.int64)


def breast_cancer(folder: Path, records: int) -> str:
    """train.parquet and test.parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    names = [_snake_case(str(name)) for name in found.feature_names]
    for name, chosen in parts(len(found.target)).items():
        columns = {column: found.data[chosen, i] for i, column in enumerate(names)}
        pq.write_table(
            pa.table({**columns, "benign": found.target[chosen]}),
            folder / f"{name}.parquet",
            row_group_size=128,
        )
    return f"{len(found.target)} patients"


def _snake_case(name: str) -> str:
    """`radius error` and `mean radius` become `error_radius` and `mean_radius`."""
    words = name.split()
    return "_".join(["error", *words[:-1]] if words[-1] == "error" else words)


def criteo(folder: Path, records: int) -> str:
    """Train and test as .tsv (Criteo's format) and .npz (ids), and truth.json."""
    from model_zoo.planted import write

    return write(folder, records)


MAKERS: dict[str, Callable[[Path, int], str]] = {
    "iris": iris,
    "digits": digits,
    "digits_tfrecord": digits_tfrecord,
    "breast_cancer": breast_cancer,
    "criteo": criteo,
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m model_zoo.make_data", description=__doc__)
    parser.add_argument("name", choices=sorted(MAKERS))
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--records", type=int, default=100_000, help="training records of criteo (default: 100000)"
    )
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    words = MAKERS[chosen.name](chosen.folder, chosen.records)
    print(
        f"{chosen.folder}: {', '.join(sorted(path.name for path in chosen.folder.iterdir()))};"
        f" {words}"
    )


if __name__ == "__main__":
    main()
