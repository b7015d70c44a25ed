"""The image, run as a job's pods run it: not as root, nothing writable but /tmp, in a namespace
that enforces that.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest

from elasticdl.cluster.base import ExitFacts, ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.plans import Identity, Image, Owner, Resources
from tests.kubernetes import image
from tests.kubernetes.bench import bench, plan
from tests.kubernetes.target_cluster import TargetCluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]
LIMIT_S = 90.0


def printed(place: TargetCluster, owner: Owner, name: str, *command: str) -> tuple[ExitFacts, str]:
    """How a pod with this command ended, and all that it printed."""

    async def scenario() -> tuple[ExitFacts, str]:
        async with bench(place, owner) as b:
            process = ProcessName(Role.WORKER, 0)
            # Who runs it is the image's own business: no user is set.
            b.plans[process] = replace(
                plan(place), image=Image(name), resources=Resources(), identity=Identity()
            )
            await b.cluster.create(ProcessSpec(process, command))
            facts = await b.ended(process, LIMIT_S)
            return facts, await asyncio.to_thread(
                place.kubectl, "-n", owner.namespace, "logs", b.pod(process)
            )

    return asyncio.run(scenario())


def test_elasticdl_runs_in_a_pod(place: TargetCluster, owner: Owner, elasticdl_image: str) -> None:
    facts, output = printed(place, owner, elasticdl_image, "elasticdl", "--help")
    assert facts.exit_code == 0, output
    assert "Train a model" in output


@pytest.mark.parametrize("role", ["master", "worker", "ps"])
def test_every_role_starts_in_a_pod_and_says_what_its_environment_lacks(
    place: TargetCluster, owner: Owner, elasticdl_image: str, role: str
) -> None:
    facts, output = printed(
        place, owner, elasticdl_image, "python3", "-m", f"elasticdl.{role}.main"
    )
    assert facts.exit_code not in (None, 0)
    assert "ELASTICDL_" in output, output


def test_tensorflow_and_the_extension_are_there_and_only_tmp_can_be_written(
    place: TargetCluster, owner: Owner, elasticdl_image: str
) -> None:
    program = (
        "import os, pathlib, elasticdl.native._native, tensorflow as tf, keras, kubernetes\n"
        "pathlib.Path('/tmp/x').write_text('x')\n"
        "assert not any(os.access(path, os.W_OK) for path in ('/', '/opt', '/opt/code', '/etc'))\n"
        "print(os.getuid(), tf.__version__)"
    )
    facts, output = printed(place, owner, elasticdl_image, "python3", "-c", program)
    assert facts.exit_code == 0, output
    assert output.split()[-2] == "1000"


def test_the_image_for_gpus_has_no_step_that_cannot_be_read(elasticdl_image: str) -> None:
    if os.environ.get("ELASTICDL_TEST_IMAGE"):
        pytest.skip("ELASTICDL_TEST_IMAGE is used in place of images that are built here")
    image.check_gpu()
