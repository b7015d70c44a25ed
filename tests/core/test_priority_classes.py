"""docker/priorities.yaml: the ladder that `--worker-pod-priority 'elasticdl-rung-{rung}'` stands
workers on.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from elasticdl.cluster.kubernetes.priority_ladder import HIGHEST, PLACEHOLDER

pytestmark = pytest.mark.core
CLASSES = list(
    yaml.safe_load_all((Path(__file__).parents[2] / "docker/priorities.yaml").read_text())
)
VALUES = {one["metadata"]["name"]: one["value"] for one in CLASSES}
RUNGS = ["elasticdl-rung-" + PLACEHOLDER.format(rung=rung) for rung in range(1, HIGHEST + 1)]


def test_there_is_a_class_for_every_rung_and_one_above_them_all() -> None:
    assert list(VALUES) == ["elasticdl-guaranteed", *RUNGS]
    values = list(VALUES.values())
    assert values == sorted(set(values), reverse=True), "a higher rung gives way to every lower one"


def test_training_gives_way_to_whatever_has_no_class_and_buys_no_nodes() -> None:
    assert max(VALUES.values()) < -10, (
        "the cluster autoscaler's default cutoff for pods that are not worth a node"
    )
    assert not any(one.get("globalDefault") for one in CLASSES)
    assert {one["preemptionPolicy"] for one in CLASSES} == {"PreemptLowerPriority"}
