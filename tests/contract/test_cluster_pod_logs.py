"""A pod's log as it is followed: over real streams that break where they like."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from aiohttp import web

from elasticdl.cluster.kubernetes import pod_logs
from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.errors import ExitCode, PermanentError, TransientError
from tests.contract.api_client import connected

pytestmark = [pytest.mark.contract, pytest.mark.timeout(60)]
POD: dict[str, Any] = {
    "metadata": {"name": "digits-worker-0", "namespace": "ns", "uid": "u1", "labels": {}},
    "spec": {"nodeName": "node0"},
    "status": {"phase": "Running"},
}
ENDED = {**POD, "status": {"phase": "Succeeded"}}


def line(second: int, part: str, text: str) -> bytes:
    return f"2026-11-21T10:00:{second:02}{part}Z {text}\n".encode()


SILENT, SILENCE_S = b"silent", 0.2


class Logs:
    """`streams` are taken one by one: bytes to send, or a (code, message) to refuse with; then the
    pod has ended.
    """

    def __init__(self, *streams: list[bytes] | tuple[int, str]) -> None:
        self.streams = list(streams)
        self.queries: list[dict[str, str]] = []
        self.asked_s: list[float] = []

    async def log(self, request: web.Request) -> web.StreamResponse:
        self.asked_s.append(time.monotonic())
        self.queries.append(dict(request.query))
        stream = self.streams.pop(0)
        if isinstance(stream, tuple):
            return web.json_response({"message": stream[1]}, status=stream[0])
        answer = web.StreamResponse()
        await answer.prepare(request)
        for chunk in stream:
            if chunk == b"!":
                assert request.transport is not None
                request.transport.abort()
            if chunk == SILENT:
                await asyncio.sleep(2 * SILENCE_S)
                continue
            await answer.write(chunk)
        return answer

    async def pod(self, _request: web.Request) -> web.Response:
        return web.json_response(POD if self.streams else ENDED)


def serving(logs: Logs) -> AbstractAsyncContextManager[ApiServer]:
    pod = "/api/v1/namespaces/ns/pods/digits-worker-0"
    return connected(web.get(f"{pod}/log", logs.log), web.get(pod, logs.pod))


def read(logs: Logs, lines: int = 0, *, follow: bool = True) -> str:
    async def all_of_it() -> str:
        async with serving(logs) as api, asyncio.timeout(30):
            reading = (
                pod_logs.followed(api, POD, lines, silence_s=SILENCE_S, again_s=0.01)
                if follow
                else pod_logs.last(api, POD, lines)
            )
            return "".join([text async for text in reading])

    return asyncio.run(all_of_it())


def test_a_broken_stream_costs_no_line_and_repeats_none() -> None:
    first = [
        line(1, ".5", "one"),
        line(1, ".500000001", "two"),
        b"2026-11-21T10:00:01.6Z thr",
        b"!",
    ]
    again = [
        line(1, ".5", "one"),
        line(1, ".500000001", "two"),
        line(1, ".6", "three"),
        line(2, "", "four"),
    ]
    logs = Logs(first, again)
    assert read(logs, 10) == "one\ntwo\nthree\nfour\n"
    assert logs.queries[0]["tailLines"] == "10" and "sinceTime" not in logs.queries[0]
    assert (
        logs.queries[1]["sinceTime"] == "2026-11-21T10:00:01Z"
        and "tailLines" not in logs.queries[1]
    )


def test_a_last_line_without_an_end_and_bytes_that_are_no_text_are_shown() -> None:
    assert (
        read(Logs([line(1, "", "one"), b"2026-11-21T10:00:02Z \xff half"]))
        == "one\n\N{REPLACEMENT CHARACTER} half"
    )


def test_a_pod_that_is_not_there_yet_is_waited_for() -> None:
    waits = (
        400,
        'container "process" in pod "digits-worker-0" is waiting to start: ContainerCreating',
    )
    assert read(Logs(waits, waits, [line(1, "", "one")])) == "one\n"


def test_a_node_out_of_reach_is_asked_less_and_less_often() -> None:
    away = (500, "Get https://192.0.2.7:10250/containerLogs: no route to host")
    logs = Logs(*[away] * 5, [line(1, "", "one")])
    assert read(logs) == "one\n"
    for number in range(5):
        passed_s = logs.asked_s[number + 1] - logs.asked_s[number]
        assert passed_s >= 0.8 * 0.01 * 2 ** (number + 1), f"pause {number + 1}"


def test_a_pod_that_prints_nothing_is_asked_again_at_once() -> None:
    away = (500, "Get https://192.0.2.7:10250/containerLogs: no route to host")
    logs = Logs(*[away] * 6, *[[SILENT]] * 2, [line(1, "", "one")])
    assert read(logs) == "one\n"
    passed_s = logs.asked_s[-1] - logs.asked_s[-2]
    assert passed_s < SILENCE_S + 0.3, "not the pause of 0.64 s before the first that was silent"


def test_without_following_what_is_not_there_is_an_error_in_words() -> None:
    waits = (
        400,
        'container "process" in pod "digits-worker-0" is waiting to start: ContainerCreating',
    )
    with pytest.raises(
        TransientError, match="digits-worker-0 has printed nothing yet: node node0 is preparing it"
    ):
        read(Logs(waits), follow=False)
    gone = "pod digits-worker-0 is gone, and its log with it"
    for follow in (True, False):
        with pytest.raises(PermanentError, match=gone):
            read(Logs((404, "not found")), follow=follow)


def test_a_pod_that_goes_while_it_is_followed_has_ended() -> None:
    assert read(Logs([line(1, "", "all of it")], (404, "not found"))) == "all of it\n"
    with pytest.raises(PermanentError, match="you may not read logs in namespace ns") as caught:
        read(Logs((403, "forbidden")), follow=False)
    assert caught.value.exit_code is ExitCode.CLUSTER_REFUSED


def test_letters_that_are_cut_in_two_are_put_together() -> None:
    word = "größer\n".encode()
    assert read(Logs([word[:3], word[3:]]), follow=False) == "größer\n"
