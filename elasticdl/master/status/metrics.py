"""Export the master's status to Prometheus.

`_OF_PROCESSES` has the gauges of processes, and `_Scrape` all other metrics.
docs/reference/metrics.md lists every name, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TypeAlias, final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from elasticdl.history.snapshot import About
from elasticdl.job_status import JobStatus
from elasticdl.master.core.job_context import Phase

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_PROCESSES = 1_000
"""Maximum number of processes with their own metrics."""
_OF_PROCESSES = (
    ("records_per_s", "process_records_per_second", "Records per second of a worker.", 1.0),
    (
        "staleness_mean",
        "process_staleness_updates",
        "Updates of others between a worker's pull and its push, on average.",
        1.0,
    ),
    (
        "staleness_limit",
        "process_staleness_limit",
        "Own updates that a worker's step may miss.",
        1.0,
    ),
    (
        "exchange_share",
        "process_exchange_share",
        "Pull and push as a share of a worker's step, without overlap; with --max-staleness auto.",
        1.0,
    ),
    (
        "pull_ms",
        "process_pull_seconds",
        "Time of a pull: of a worker's whole pull, of a server's part.",
        1e-3,
    ),
    (
        "push_ms",
        "process_push_seconds",
        "Time of a push: of a worker's whole push, of a server's part.",
        1e-3,
    ),
    ("step_ms", "process_step_seconds", "Time that a worker's step computes.", 1e-3),
    ("wait_ms", "process_wait_seconds", "Time that a worker's step waits for its batch.", 1e-3),
    ("rss_bytes", "process_resident_memory_bytes", "Memory of a process.", 1.0),
    ("rows", "process_embedding_rows", "Rows of embedding tables that a server holds.", 1.0),
    (
        "parameter_bytes",
        "process_parameter_bytes",
        "Memory of a server's parameters with their slots.",
        1.0,
    ),
)
"""Gauge of the process, name, description and factor.

`worker/process/gauges.py` and `ps/gauges.py` measure them.
"""


def render(status: JobStatus, about: About) -> bytes:
    """Return the text of one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(status, about))
    return generate_latest(registry)


_Samples: TypeAlias = Sequence[tuple[dict[str, str], float]]


@final
class _Scrape:
    """A prometheus_client collector of one status."""

    def __init__(self, status: JobStatus, about: About) -> None:
        self._status = status
        self._about = about

    def collect(self) -> Iterator[Metric]:
        """Yield every family; a family without values has no samples."""
        yield from self._job()
        yield from self._records()
        yield from self._membership()
        yield from self._times()
        yield from self._model()
        yield from self._processes()

    def _job(self) -> Iterator[Metric]:
        status, about = self._status, self._about
        info = {
            "action": about.action,
            "strategy": about.strategy,
            "version": about.version_of_elasticdl,
        }
        yield self._gauge("job_info", "Labels describe the job; always 1.", [(info, 1)])
        phases: _Samples = [({"phase": str(phase)}, int(status.phase == phase)) for phase in Phase]
        yield self._gauge("job_phase", "1 for the current phase, 0 for the others.", phases)
        yield self._gauge(
            "job_start_time_seconds", "Start of the job, in unix time.", about.started_at
        )
        yield self._gauge("job_epoch", "The current epoch, from 0.", status.epoch)
        yield self._gauge("job_epochs", "Planned epochs.", status.epochs)
        yield self._gauge(
            "job_waits", "Number of things that the job waits for.", len(status.waiting)
        )
        yield self._gauge(
            "stalled", "1 while the job is stalled, else 0.", int(status.stall is not None)
        )
        over = status.exit_code is not None
        quiet_s = 0.0 if over else max(0.0, status.at_s - status.moved_s)
        yield self._gauge("quiet_seconds", "Time since the last activity in the job.", quiet_s)

    def _records(self) -> Iterator[Metric]:
        records = self._status.records
        yield self._gauge("records_expected", "Records of all epochs.", records.expected)
        for name, what, count in (
            ("trained", "Records done.", records.trained),
            ("repeated", "Records done again after a loss.", records.repeated),
            ("bad", "Records that could not be read.", records.bad),
            ("lost", "Records skipped in parked shards.", records.lost),
        ):
            yield self._counter(f"records_{name}", what, count)
        yield self._gauge(
            "records_left",
            "Records of all epochs that are not trained yet, or never will be.",
            records.left,
        )
        rate = self._status.records_per_s
        yield self._gauge("records_per_second", "Records per second of all workers.", rate)
        shards = [
            ({"task": task, "state": state}, count)
            for task, counts in self._status.shards.items()
            for state, count in asdict(counts).items()
        ]
        yield self._gauge(
            "shards", "Shards of all epochs, or of the current round of evaluation.", shards
        )

    def _membership(self) -> Iterator[Metric]:
        status = self._status
        wanted = status.scale
        scale = [
            ({"kind": "least"}, wanted.low),
            ({"kind": "most"}, wanted.high),
            ({"kind": "ordered"}, wanted.requested),
            ({"kind": "ready"}, wanted.observed),
        ]
        if wanted.autoscaled is not None:
            scale.append(({"kind": "autoscaled"}, wanted.autoscaled))
        yield self._gauge(
            "workers",
            "Workers: requested range (least, most), chosen by --autoscale (autoscaled), ordered,"
            " and ready.",
            scale,
        )
        states = [
            ({"role": role, "state": state}, count)
            for role, counts in status.states.items()
            for state, count in counts.items()
        ]
        yield self._gauge("processes", "Processes that have not ended, by role and state.", states)
        ends = [
            ({"role": role, "cause": cause}, count)
            for role, causes in status.ends.items()
            for cause, count in causes.items()
        ]
        yield self._counter("process_ends", "Ends of processes, by role and cause.", ends)
        dropped = [({"cause": cause}, count) for cause, count in status.dropped.items()]
        yield self._counter(
            "messages_dropped", "Messages between processes that had no effect, by cause.", dropped
        )
        ring = status.ring
        yield self._gauge(
            "ring_generation",
            "The newest generation of the ring.",
            ring.generation if ring else None,
        )
        yield self._gauge(
            "ring_members", "Members of the newest generation.", len(ring.members) if ring else None
        )

    def _times(self) -> Iterator[Metric]:
        account = self._status.receipt.goodput if self._status.receipt else None
        yield self._gauge(
            "goodput_ratio",
            "Share of the workers' time that computed what is in the model.",
            account.share if account else None,
        )
        # Not a counter: computing becomes repeated computing when weights are lost.
        yield self._gauge(
            "worker_time_seconds",
            "Time of all workers so far, by class and cause.",
            [
                ({"class": spent.kind, "cause": spent.cause}, spent.seconds)
                for spent in (account.spent if account else ())
            ],
        )

    def _model(self) -> Iterator[Metric]:
        status = self._status
        yield self._gauge("model_version", "Updates applied to the model.", status.version)
        updates = status.updates
        yield self._gauge(
            "updates_applied",
            "Updates in the model, of this job and the runs that it continues.",
            updates.applied if updates else None,
        )
        yield self._counter(
            "updates_lost",
            "Updates lost with parameter servers.",
            updates.lost if updates else None,
        )
        yield self._counter(
            "updates_repeated",
            "Updates undone because weights were lost.",
            updates.repeated if updates else None,
        )
        loss = status.loss
        yield self._gauge("loss", "Mean training loss of the last steps.", loss)
        known = {name: value for name, value in status.metrics.items() if value is not None}
        metrics = [({"metric": name}, value) for name, value in known.items()]
        yield self._gauge("evaluation_metric", "Values of the last evaluation.", metrics)
        newest = status.checkpoints[-1] if status.checkpoints else None
        yield self._gauge(
            "checkpoint_version",
            "Version of the newest complete checkpoint.",
            newest.version if newest else None,
        )
        yield self._gauge(
            "checkpoint_bytes",
            "Size of the newest complete checkpoint.",
            newest.bytes if newest else None,
        )
        age_s = max(0.0, status.at_s - newest.at_s) if newest else None
        yield self._gauge("checkpoint_age_seconds", "Age of the newest complete checkpoint.", age_s)

    def _processes(self) -> Iterator[Metric]:
        processes = list(self._status.gauges.items())[:MOST_PROCESSES]
        for gauge, name, what, factor in _OF_PROCESSES:
            yield self._gauge(
                name,
                what,
                [
                    ({"process": p}, gauges[gauge] * factor)
                    for p, gauges in processes
                    if gauge in gauges
                ],
            )
        seconds = [
            ({"process": process}, gauges["cpu_s"])
            for process, gauges in processes
            if "cpu_s" in gauges
        ]
        yield self._counter("process_cpu_seconds", "CPU time used by a process.", seconds)

    def _gauge(self, name: str, what: str, samples: _Samples | float | None) -> Metric:
        return self._filled(GaugeMetricFamily(f"elasticdl_{name}", what), "", samples)

    def _counter(self, name: str, what: str, samples: _Samples | float | None) -> Metric:
        return self._filled(CounterMetricFamily(f"elasticdl_{name}", what), "_total", samples)

    def _filled(self, family: Metric, suffix: str, samples: _Samples | float | None) -> Metric:
        """Add samples; a number is the only one, None is none."""
        if not isinstance(samples, Sequence):
            samples = [] if samples is None else [({}, samples)]
        for labels, value in samples:
            labels = {"job": self._about.name, **labels}
            family.add_sample(f"{family.name}{suffix}", labels, float(value))
        return family
