"""Write the data of the model zoo: `python -m model_zoo.make_data NAME FOLDER`.

NAME is that of the data, or of a module that the zoo's README.md trains on it.

Small tables come from scikit-learn's package. The others are planted: drawn from a model that is
known, so that the best possible metric is known, too.
"""

from __future__ import annotations

import argparse
import csv
import re
import sqlite3
import tarfile
from collections.abc import Callable, Iterable
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
        features = (
            tf.train.Feature(float_list=tf.train.FloatList(value=images[i].ravel())) for i in chosen
        )
        _write_tfrecord(folder / f"{name}.tfrecord", features, labels[chosen])
    return f"{len(labels)} images"


def _write_tfrecord(path: Path, images: Iterable[Any], labels: Any) -> None:
    """Write tf.train.Examples with `image`, a tf.train.Feature, and `label`."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, number in zip(images, labels, strict=True):
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
            features = tf.train.Features(feature={"image": image, "label": label})
            writer.write(tf.train.Example(features=features).SerializeToString())


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
    from model_zoo.planted.criteo import write

    return write(folder, records)


def mnist(folder: Path, records: int, source: Path | None = None) -> str:
    """train.npz and test.npz: `image` uint8[n, 28, 28] and `label`.

    `source` is Keras' mnist.npz; without it images are planted.
    """
    from model_zoo.planted import images

    if source is None:
        drawn = {"train": images.mnist(records, 1), "test": images.mnist(records // 4, 2)}
    else:
        with np.load(source) as read:
            drawn = {name: (read[f"x_{name}"], read[f"y_{name}"]) for name in ("train", "test")}
    for name, (image, label) in drawn.items():
        np.savez(folder / f"{name}.npz", image=image, label=label.astype(np.int64))
    return f"{sum(len(label) for _, label in drawn.values())} images"


def cifar10(folder: Path, records: int, source: Path | None = None) -> str:
    """train.tfrecord and test.tfrecord: tf.train.Examples of 3,072 bytes and a label.

    `source` is cifar-10-binary.tar.gz; without it images are planted.
    """
    import tensorflow as tf

    from model_zoo.planted import images

    drawn = (
        {"train": images.cifar10(records, 1), "test": images.cifar10(records // 4, 2)}
        if source is None
        else _cifar10_of(source)
    )
    for name, (pixels, labels) in drawn.items():
        features = (
            tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()]))
            for image in pixels
        )
        _write_tfrecord(folder / f"{name}.tfrecord", features, labels)
    return f"{sum(len(labels) for _, labels in drawn.values())} images"


def _cifar10_of(archive: Path) -> dict[str, tuple[Any, Any]]:
    """Images uint8[n, 32, 32, 3] and labels of the binary version of CIFAR-10."""
    parts: dict[str, list[Any]] = {"train": [], "test": []}
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            file = tar.extractfile(member)
            if member.name.endswith(".bin") and file is not None:
                part = "test" if "test" in member.name else "train"
                parts[part].append(np.frombuffer(file.read(), np.uint8).reshape(-1, 1 + 3072))
    whole = {name: np.concatenate(rows) for name, rows in parts.items()}
    return {
        name: (rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0])
        for name, rows in whole.items()
    }


def census(folder: Path, records: int) -> str:
    """train.csv and test.csv with the columns of UCI's census income data, and truth.json."""
    from model_zoo.planted.census import write

    return write(folder, records)


def ratings(folder: Path, records: int) -> str:
    """train.npz and test.npz: which user chose which item; truth.json."""
    from model_zoo.planted.ratings import write

    return write(folder, records)


def reviews(folder: Path, records: int) -> str:
    """train.csv and test.csv: texts and whether they praise; truth.json."""
    from model_zoo.planted.text import write_reviews

    return write_reviews(folder, records)


def tokens(folder: Path, records: int) -> str:
    """train.npz and test.npz: sequences of tokens; truth.json."""
    from model_zoo.planted.text import write_tokens

    return write_tokens(folder, records)


MAKERS: dict[str, Callable[[Path, int], str]] = {
    "iris": iris,
    "digits": digits,
    "digits_tfrecord": digits_tfrecord,
    "breast_cancer": breast_cancer,
    "mnist": mnist,
    "cifar10": cifar10,
    "census": census,
    "criteo": criteo,
    "ratings": ratings,
    "reviews": reviews,
    "tokens": tokens,
}
RECORDS = {
    "mnist": 10_000,
    "cifar10": 5_000,
    "census": 20_000,
    "criteo": 100_000,
    "ratings": 60_000,
    "reviews": 10_000,
    "tokens": 10_000,
}
"""Training records of planted data."""
FROM_SOURCE: dict[str, Callable[[Path, int, Path], str]] = {"mnist": mnist, "cifar10": cifar10}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m model_zoo.make_data", description=__doc__)
    modules = data_of_modules()
    parser.add_argument(
        "name",
        type=lambda name: name if name in MAKERS else modules.get(name, name),
        choices=sorted(MAKERS),
        help="of the data, or of a module of the zoo",
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--records",
        type=int,
        help="training records of planted data (default: " + _defaults() + ")",
    )
    parser.add_argument(
        "--source",
        type=Path,
        help="the real data: mnist.npz of Keras, or cifar-10-binary.tar.gz",
    )
    chosen = parser.parse_args()
    records = chosen.records or RECORDS.get(chosen.name, 0)
    if chosen.source is not None and chosen.name not in FROM_SOURCE:
        parser.error(f"--source is for {' and '.join(FROM_SOURCE)} only")
    if chosen.source is not None and not chosen.source.is_file():
        parser.error(f"--source {chosen.source}: no such file")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    words = (
        MAKERS[chosen.name](chosen.folder, records)
        if chosen.source is None
        else FROM_SOURCE[chosen.name](chosen.folder, records, chosen.source)
    )
    print(
        f"{chosen.folder}: {', '.join(sorted(path.name for path in chosen.folder.iterdir()))};"
        f" {words}"
    )


def data_of_modules() -> dict[str, str]:
    """Which data the commands in README.md train each module on, by module."""
    commands = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    found = re.findall(r"--model-def (\w+)[^`]*? --training-data '?data/(\w+)", commands)
    return {module: data for module, data in found if data in MAKERS}


def _defaults() -> str:
    return ", ".join(f"{count} {name}" for name, count in RECORDS.items())


if __name__ == "__main__":
    main()
