"""What Prometheus gets: read by its own parser, and the same names as docs/reference/metrics.md
says.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from elasticdl.cluster.base import ExitStatus
from elasticdl.history.snapshot import About
from elasticdl.job_status import JobStatus, RingStatus
from elasticdl.master.core import events as e
from elasticdl.master.status.metrics import MOST_PROCESSES, render
from elasticdl.shard import SnapshotId
from tests.core.conftest import Bench

pytestmark = pytest.mark.core

ABOUT = About('ads "2" \\ a\nb', "train", "ParameterServerStrategy", 1_700_000_000.0, "0.1.0")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
GAUGES = {
    "worker-0": {
        "records_per_s": 1200.5,
        "staleness_mean": 0.5,
        "staleness_limit": 1.0,
        "exchange_share": 0.4,
        "pull_ms": 2.0,
        "push_ms": 3.5,
        "step_ms": 10.0,
        "wait_ms": 0.25,
        "rss_bytes": 5e8,
        "cpu_s": 12.5,
    },
    "ps-0": {
        "pull_ms": 0.5,
        "push_ms": 0.7,
        "rows": 1000.0,
        "parameter_bytes": 4e6,
        "rss_bytes": 6e7,
        "cpu_s": 1.5,
    },
}


@pytest.fixture
def status() -> JobStatus:
    """Of a real core: a worker that was killed, a checkpoint, an evaluation's values; and what an
    onlooker adds.
    """
    job = Bench.running(2, num_workers=2, checkpoint_steps=10)
    job.t = 10.0
    lease = job.lease(0)
    job.finish(0, lease, loss=0.25, version=12)
    job.put(e.VersionAdvanced(0, 12))
    job.put(e.SnapshotSaved(0, SnapshotId(1), 12, "checkpoints/version-12", 1_000_000))
    job.put(e.TimeReported(0, {"worker-0": {"compute.step": 6.0, "pull.servers": 4.0}}))
    job.t = 15.0
    job.die(job.worker(1), ExitStatus(signal=9))
    job.put(e.WorkerStopRequested(0, job.worker(1), "it is good enough"))
    return replace(
        job.state.status(),
        ring=RingStatus(3, 3, ("worker-0", "worker-2"), "fine"),
        metrics={"auc": 0.9, "loss": math.nan},
        gauges=GAUGES,
        records_per_s=1200.5,
    )


def scraped(status: JobStatus) -> dict[str, Any]:
    families = text_string_to_metric_families(render(status, ABOUT).decode())
    return {family.name: family for family in families}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    (found,) = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and sample.labels == {"job": ABOUT.name, **labels}
    ]
    return found


def test_the_parser_of_prometheus_reads_the_numbers_of_the_status(status: JobStatus) -> None:
    families = scraped(status)
    records = status.records
    assert value(families, "elasticdl_records_trained_total") == records.trained == 16
    assert value(families, "elasticdl_records_expected") == records.expected
    assert value(families, "elasticdl_records_per_second") == 1200.5
    assert (
        value(families, "elasticdl_process_ends_total", role="worker", cause="infrastructure") == 1
    )
    assert value(families, "elasticdl_messages_dropped_total", cause="ended_process") == 1
    assert value(families, "elasticdl_workers", kind="most") == 2
    scale = replace(status.scale, autoscaled=1)
    chosen = scraped(replace(status, scale=scale))
    assert value(chosen, "elasticdl_workers", kind="autoscaled") == 1
    assert value(families, "elasticdl_processes", role="worker", state="ready") == 1
    assert value(families, "elasticdl_job_phase", phase="working") == 1
    assert value(families, "elasticdl_job_phase", phase="ended") == 0
    assert value(families, "elasticdl_model_version") == 12
    assert value(families, "elasticdl_loss") == 0.25
    assert value(families, "elasticdl_evaluation_metric", metric="auc") == 0.9
    assert math.isnan(value(families, "elasticdl_evaluation_metric", metric="loss"))
    assert value(families, "elasticdl_checkpoint_age_seconds") == 5.0
    assert value(families, "elasticdl_process_pull_seconds", process="worker-0") == 0.002
    assert value(families, "elasticdl_process_cpu_seconds_total", process="ps-0") == 1.5
    assert value(families, "elasticdl_ring_members") == 2
    assert (
        value(
            families,
            "elasticdl_job_info",
            action="train",
            strategy="ParameterServerStrategy",
            version="0.1.0",
        )
        == 1
    )


def test_documentation_and_exposition_are_the_same_names_types_and_labels(
    status: JobStatus,
) -> None:
    said = re.findall(
        r"^\| `(elasticdl_\w+)` \| (\w+) \| ([^|]*) \|",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    documented = {
        (name, kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in said
    }
    exposed = {
        (sample.name, family.type, frozenset(sample.labels) - {"job"})
        for family in scraped(status).values()
        for sample in family.samples
    }
    assert documented == exposed
    assert len(said) == len(documented)


def test_names_have_units_and_counters_say_so(status: JobStatus) -> None:
    families = scraped(status)
    for family in families.values():
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert not re.search(r"_(ms|s|mb|kb|percent)(_|$)", sample.name)


def test_a_counter_never_falls_while_a_job_continues() -> None:
    job = Bench.running(num_workers=1)
    before: dict[tuple[Any, ...], float] = {}
    for index in range(3):
        lease = job.lease(index)
        job.finish(index, lease)
        job.die(job.worker(index), ExitStatus(signal=9))
        job.attach(job.worker(index + 1))
        for family in scraped(job.state.status()).values():
            for sample in family.samples if family.type == "counter" else ():
                key = sample.name, *sorted(sample.labels.items())
                assert sample.value >= before.get(key, 0.0)
                before[key] = sample.value
    assert any(
        name.startswith("elasticdl_process_ends") and value == 3
        for (name, *_), value in before.items()
    )


def test_processes_with_numbers_of_their_own_are_bounded(status: JobStatus) -> None:
    many = {f"worker-{index}": {"rss_bytes": 1.0} for index in range(5 * MOST_PROCESSES)}
    families = scraped(replace(status, gauges=many))
    assert len(families["elasticdl_process_resident_memory_bytes"].samples) == MOST_PROCESSES


def test_a_job_that_has_not_begun_has_numbers_already() -> None:
    families = scraped(Bench().state.status())
    assert (
        value(families, "elasticdl_records_trained_total") == 0
        and not families["elasticdl_loss"].samples
    )
