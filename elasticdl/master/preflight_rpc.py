"""Answers whoever asks after a job whose master still looks at its model and data: in a pod that
may take minutes, and is seen
from outside only.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn, final

import grpc

from elasticdl.job import JobSpec
from elasticdl.master.core.state import JobState
from elasticdl.master.platform.platform import MasterEnvironment
from elasticdl.master.preflight_page import preflight_page
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.channel import SyncChecks, server_options
from elasticdl.rpc.elasticdl_pb2_grpc import MasterServicer, add_MasterServicer_to_server

_LOG = logging.getLogger(__name__)
_THREADS = 2
_CLOSE_S = 0.5


@final
class PreflightRpc(MasterServicer):
    """Speaks for the master until that speaks for itself. Its methods run in threads of gRPC's."""

    def __init__(self, spec: JobSpec) -> None:
        self._facts = JobState(spec).status()
        self._status = json.dumps(self._facts.to_json())
        self.page: Callable[[str], None] = lambda text: None
        """Where the page hears what the check is at."""
        self.stopped = ""
        """Why a person wants the job to end, if one does."""

    def tell(self, text: str) -> None:
        """What takes long in the check: to the log, to whoever asks, and to the page.

        From the main thread.
        """
        _LOG.info("%s", text)
        status = replace(self._facts, message=text, waiting=(text,))
        self._status = json.dumps(status.to_json())
        self.page(text)

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:
        return pb.StatusReply(status=self._status)

    def Stop(self, request: pb.StopRequest, context: grpc.ServicerContext) -> pb.Done:
        self.stop(request.reason or "no reason was given")
        return pb.Done()

    def stop(self, reason: str) -> None:
        """A person wants the job to end."""
        self.stopped = reason
        # The main thread waits for the check: this ends the wait, and the check with it.
        os.kill(os.getpid(), signal.SIGINT)

    def Scale(self, request: pb.ScaleRequest, context: grpc.ServicerContext) -> pb.Done:
        _later(context)

    def Checkpoint(self, request: pb.CheckpointRequest, context: grpc.ServicerContext) -> pb.Done:
        _later(context)


def _later(context: grpc.ServicerContext) -> NoReturn:
    context.abort(
        grpc.StatusCode.UNAVAILABLE, "the job has not begun: its model and data are being checked"
    )
    raise AssertionError("abort raises")


@contextmanager
def preflight_rpc_server(environment: MasterEnvironment, spec: JobSpec) -> Iterator[PreflightRpc]:
    """At the master's own address for as long as the context lasts.

    Without it, if the address cannot be had.
    """
    service = PreflightRpc(spec)
    server = grpc.server(
        ThreadPoolExecutor(_THREADS),
        interceptors=[SyncChecks(environment.token, lambda *_: "")],
        options=server_options(),
    )
    add_MasterServicer_to_server(service, server)
    try:
        server.add_insecure_port(f"{environment.host}:{environment.port}")
        server.start()
    except RuntimeError as error:
        _LOG.warning("nobody can ask after the job while it is being checked: %s", error)
    try:
        with preflight_page(environment, spec, service.stop) as page:
            service.page = page.tell
            yield service
    finally:
        server.stop(_CLOSE_S).wait(_CLOSE_S * 4)
