"""A user's model zoo as an image, built by `elasticdl zoo` without any daemon, as it is in a
pod.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticdl.cli.zoo_template import MODULE
from elasticdl.cluster.kubernetes.plans import Owner
from tests.kubernetes import image
from tests.kubernetes.target_cluster import TargetCluster
from tests.kubernetes.test_kubernetes_image import printed

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]


def test_the_modules_are_in_the_image_and_cannot_be_written(
    place: TargetCluster, owner: Owner, elasticdl_image: str
) -> None:
    program = (
        "import os; print(sorted(os.listdir('/model_zoo')), os.access('/model_zoo', os.W_OK),"
        " os.getuid())"
    )
    facts, output = printed(place, owner, elasticdl_image, "python3", "-c", program)
    assert facts.exit_code == 0, output
    assert "'digits.py'" in output and "Dockerfile" not in output
    assert output.split()[-2:] == ["False", "1000"]


def test_a_package_that_is_not_there_ends_the_build_with_the_words_for_it(
    elasticdl_image: str, tmp_path: Path
) -> None:
    if os.environ.get("ELASTICDL_TEST_IMAGE"):
        pytest.skip("ELASTICDL_TEST_IMAGE is used in place of images that are built here")
    (tmp_path / "requirements.txt").write_text("./no-such-package\n")
    (tmp_path / "example.py").write_text(MODULE)
    with pytest.raises(RuntimeError) as failed:
        image.build_zoo(tmp_path)
    assert "building localhost/zoo:test failed: `buildah build` ended with exit code" in str(
        failed.value
    )
    assert "no-such-package" in str(failed.value)
