"""The process that sends traces, and a receiver that decodes them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest

from elasticdl.history.job_event import EventStep, meaning
from elasticdl.tracking.spans import span_id, trace_id
from tests.contract.test_trackers import LIMIT_S, Processes
from tests.contract.test_trackers import processes as _processes
from tests.waiting import until

pytestmark = [pytest.mark.contract, pytest.mark.timeout(300)]
processes = _processes


class Receiver(ThreadingHTTPServer):
    """Keeps the decoded requests; refuses the first one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.refused = 0
        self.paths: set[str] = set()
        self.requests: list[Any] = []

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in tuple(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.add(self.path)
        if not self.server.refused:
            self.server.refused = 1
            self.send_response(400)
        else:
            self.server.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(LIMIT_S)


def write(folder: Path, seq: int, kind: str, step: EventStep, **details: float | str) -> None:
    row = {"seq": seq, "at": 1.7e9 + seq, "at_s": float(seq), "kind": kind, "text": f"event {seq}"}
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({**row, "details": meaning(step, **details)}) + "\n")


def test_a_job_with_two_masters_is_one_trace(processes: Processes, receiver: Receiver) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.server_port}",
        "OTEL_RESOURCE_ATTRIBUTES": "team=a",
    }
    processes.what = "traces"
    processes.write_job("")
    folder = processes.folder
    write(folder, 0, "job", EventStep.BEGUN, term=1, away_s=0.0)
    write(folder, 3, "job", EventStep.PHASE, phase="training", before="starting", before_s=2.5)
    write(folder, 4, "ring", EventStep.COMPLETE, generation=1, seconds=0.5)
    write(folder, 5, "shard", EventStep.ENDED, shard=3, epoch=0, records=64, seconds=1.5)
    first = processes.start(**variables)
    until("the spans came", lambda: len(receiver.spans) == 3, LIMIT_S)
    first.kill()
    said, _ = first.communicate()
    levels = [json.loads(line)["level"] for line in said.splitlines()]
    assert levels == ["info", "warning"], "the first request was refused"
    write(folder, 9, "job", EventStep.BEGUN, term=2, away_s=1.0)
    write(folder, 12, "job", EventStep.ENDED, exit_code=0)
    processes.start(**variables)
    assert processes.end(version=3)[0] == 0
    run = json.loads((folder / "traces.json").read_text())["run"]
    spans = {span.span_id: span for span in receiver.spans}
    assert {span.trace_id for span in receiver.spans} == {trace_id(run).to_bytes(16, "big")}
    begun = int(1.7e9)
    assert sorted(
        (span.name, span.start_time_unix_nano / 1e9 - begun, span.end_time_unix_nano / 1e9 - begun)
        for span in spans.values()
    ) == [
        ("job", 0.0, 12.0),
        ("phase starting", 0.5, 3.0),
        ("ring forms", 3.5, 4.0),
        ("shard", 3.5, 5.0),
        ("without a master", 8.0, 9.0),
    ]
    root = span_id(run, "job").to_bytes(8, "big")
    assert {span.parent_span_id for span in spans.values() if span.name != "job"} == {root}
    assert spans[root].name == "job" and not spans[root].parent_span_id
    given = {
        attribute.key: attribute.value.string_value
        for attribute in receiver.requests[0].resource_spans[0].resource.attributes
    }
    assert (given["service.name"], given["team"]) == ("elasticdl", "a")
    assert given["elasticdl.job"] == "job-1" and receiver.paths == {"/v1/traces"}


def test_a_trace_that_is_not_sampled_sends_nothing(
    processes: Processes, receiver: Receiver
) -> None:
    processes.what = "traces"
    processes.write_job("")
    write(processes.folder, 12, "job", EventStep.ENDED, exit_code=0)
    processes.start(
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.server_port}",
        OTEL_TRACES_SAMPLER="parentbased_always_off",
    )
    code, said = processes.end(version=3)
    assert code == 0 and len(said) == 1 and not receiver.paths


def test_a_trace_goes_over_grpc(processes: Processes) -> None:
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

    requests: list[Any] = []

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: Any) -> Any:
            del context
            requests.append(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        processes.what = "traces"
        processes.write_job("")
        write(processes.folder, 0, "job", EventStep.BEGUN, term=1, away_s=0.0)
        write(processes.folder, 12, "job", EventStep.ENDED, exit_code=0)
        processes.start(
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        )
        assert processes.end(version=3)[0] == 0
    finally:
        server.stop(None).wait(LIMIT_S)
    [span] = requests[0].resource_spans[0].scope_spans[0].spans
    assert span.name == "job" and len(requests) == 1
