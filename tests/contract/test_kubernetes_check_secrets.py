"""Before a job is submitted: do the Secrets that the user named exist?"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elasticdl.cluster.kubernetes.checking import look
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from tests.contract.small_cluster import SmallCluster, serving

pytestmark = pytest.mark.contract
FLAGS = {
    "model_zoo": "/zoo",
    "model_def": "iris",
    "training_data": "/data/iris.csv",
    "image_name": "registry/zoo:7",
    "job_name": "iris",
    "job_dir": "/tmp/iris",
    "tls": "page",
    "image_pull_secrets": "registry",
}


def found(*secrets: dict[str, Any]) -> list[str]:
    cluster = SmallCluster()
    for secret in secrets:
        cluster.put("/api/v1/namespaces/ns/secrets", secret)

    async def story() -> list[str]:
        async with serving(cluster) as api:
            findings = await look(api, JobSpec.from_flags(Action.TRAIN, FLAGS), "ns")
            return [finding.text for finding in findings if "secret " in finding.text]

    return asyncio.run(story())


def secret(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def test_secrets_that_are_not_there_are_named_with_their_flags() -> None:
    assert found() == [
        "there is no secret registry in namespace ns, which --image-pull-secrets names",
        "there is no secret page in namespace ns, which --tls names",
    ]


def test_a_secret_for_the_page_without_a_certificate_is_a_problem() -> None:
    assert found(secret("registry"), secret("page", **{"tls.crt": ""})) == [
        "secret page has no tls.crt and tls.key, which --tls needs"
    ]
    assert found(secret("registry"), secret("page", **{"tls.crt": "", "tls.key": ""})) == []
