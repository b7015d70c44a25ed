"""The image, run as a job's pods run it: not as root, nothing writable but /tmp, in a namespace
that enforces that.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from elasticdl.cli.zoo_template import MODULE
from elasticdl.cluster.base import ExitStatus, ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.plans import Identity, Image, Owner, Resources
from tests.kubernetes import image
from tests.kubernetes.scripted_pods import plan, scripted_pods
from tests.kubernetes.target_cluster import TargetCluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]
LIMIT_S = 90.0
PROGRAM = """
import os, pathlib, subprocess
import elasticdl.native._native, keras, kubernetes, tensorflow

pathlib.Path("/tmp/x").write_text("x")
closed = ("/", "/opt", "/opt/code", "/etc", "/model_zoo")
assert not any(os.access(path, os.W_OK) for path in closed)
print(subprocess.run(["elasticdl", "--help"], check=True, capture_output=True, text=True).stdout)
print(sorted(os.listdir("/model_zoo")))
print(os.getuid())
"""


def printed(place: TargetCluster, owner: Owner, name: str, *command: str) -> tuple[ExitStatus, str]:
    """How a pod with this command ended, and all that it printed."""

    async def scenario() -> tuple[ExitStatus, str]:
        async with scripted_pods(place, owner) as b:
            process = ProcessName(Role.WORKER, 0)
            # Who runs it is the image's own business: no user is set.
            b.plans[process] = replace(
                plan(place), image=Image(name), resources=Resources(), identity=Identity()
            )
            await b.cluster.create(ProcessSpec(process, command))
            status = await b.ended(process, LIMIT_S)
            return status, await asyncio.to_thread(
                place.kubectl, "-n", owner.namespace, "logs", b.pod(process)
            )

    return asyncio.run(scenario())


def test_a_zoo_image_has_all_that_a_job_needs_and_only_tmp_can_be_written(
    place: TargetCluster, owner: Owner, elasticdl_image: str
) -> None:
    status, output = printed(place, owner, elasticdl_image, "python3", "-c", PROGRAM)
    assert status.exit_code == 0, output
    assert "Train a model" in output
    assert "'digits.py'" in output and "Dockerfile" not in output
    assert output.split()[-1] == "1000"


def test_the_image_for_gpus_has_no_step_that_cannot_be_read(elasticdl_image: str) -> None:
    if os.environ.get("ELASTICDL_TEST_IMAGE"):
        pytest.skip("ELASTICDL_TEST_IMAGE is used in place of images that are built here")
    image.check_gpu()


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
