"""The pod of a parameter server, whose node starts one container after the other in it: each is a
process of its own.
"""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.clock import ManualClock
from elasticdl.cluster.base import ExitStatus, ProcessExited, ProcessName, ProcessObserved, Role
from elasticdl.cluster.event_bus import EventBus, ProcessEvent
from elasticdl.cluster.kubernetes.labels import labels
from elasticdl.cluster.kubernetes.pod_tracker import PodTracker
from elasticdl.cluster.kubernetes.pods import has_ended, process_name

pytestmark = pytest.mark.core
RUNNING = {"running": {"startedAt": "2026-11-24T10:00:00Z"}}
BACK_OFF = {
    "waiting": {
        "reason": "CrashLoopBackOff",
        "message": "back-off 10s restarting failed container=process",
    }
}
NO_IMAGE = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}


def ps(incarnation: int) -> ProcessName:
    return ProcessName(Role.PS, 0, incarnation)


def end(code: int = 137, reason: str = "Error", lived: str = "10:20:00") -> dict[str, Any]:
    times = {"startedAt": "2026-11-24T10:00:00Z", "finishedAt": f"2026-11-24T{lived}Z"}
    return {"terminated": {"exitCode": code, "reason": reason, **times}}


def pod(
    state: dict[str, Any],
    restarts: int = 0,
    last: dict[str, Any] | None = None,
    *,
    leaving: bool = False,
) -> dict[str, Any]:
    """A pod that was made for the incarnation 2 of a server."""
    container = {
        "name": "process",
        "state": state,
        "lastState": last or {},
        "restartCount": restarts,
    }
    deleted = {"deletionTimestamp": "2026-11-24T10:00:00Z"} if leaving else {}
    return {
        "metadata": {"uid": "u", "name": "job-ps-0.2", "labels": labels("job", ps(2)), **deleted},
        "spec": {
            "containers": [{"name": "process", "image": "zoo"}],
            "nodeName": "node0",
            "restartPolicy": "OnFailure",
        },
        "status": {"phase": "Running", "containerStatuses": [container]},
    }


class Seen:
    """What the tracker tells of pods that it is shown one after the other."""

    def __init__(self) -> None:
        self.bus = EventBus()
        self.tracker = PodTracker(self.bus, ManualClock())
        self.told: list[ProcessEvent] = []
        self._post = self.bus.post
        self.bus.post = self._heard  # type: ignore[method-assign]

    def _heard(self, event: ProcessEvent) -> None:
        self.told.append(event)
        self._post(event)

    def changed(self, *pods: dict[str, Any]) -> list[ProcessEvent]:
        self.told.clear()
        for one in pods:
            assert self.tracker.changed(one) is None
        return list(self.told)


def running(incarnation: int) -> ProcessObserved:
    return ProcessObserved(ps(incarnation), True, "node0", "", place=ps(2))


def test_the_next_container_of_a_killed_server_is_its_next_incarnation() -> None:
    seen = Seen()
    assert seen.changed(pod(RUNNING)) == [running(2)]
    killed = ProcessExited(ps(2), ExitStatus(signal=9))
    following = ProcessObserved(ps(3), False, "node0", "node node0 is preparing it", place=ps(2))
    assert seen.changed(pod(end())) == [killed, following]
    assert seen.changed(pod(end()), pod(RUNNING, 1, end())) == [running(3)]
    assert seen.tracker.names() == [ps(3)]


def test_a_restart_between_two_looks_is_an_end_and_a_start() -> None:
    seen = Seen()
    seen.changed(pod(RUNNING))
    killed = ProcessExited(ps(2), ExitStatus(signal=9))
    assert seen.changed(pod(RUNNING, 1, end())) == [killed, running(3)]


def test_a_master_that_comes_later_counts_the_containers_that_it_did_not_see() -> None:
    seen = Seen()
    unseen, killed = ProcessExited(ps(2), ExitStatus()), ProcessExited(ps(3), ExitStatus(signal=9))
    assert seen.changed(pod(RUNNING, 2, end())) == [unseen, killed, running(4)]
    assert process_name(pod(RUNNING, 2, end())) == ps(4)


def test_a_server_whose_node_waits_before_it_starts_it_again_says_so() -> None:
    seen = Seen()
    seen.changed(pod(RUNNING, 1, end()))
    killed, following = seen.changed(pod(BACK_OFF, 1, end(1)))
    assert killed == ProcessExited(ps(3), ExitStatus(exit_code=1))
    assert following.name == ps(4) and isinstance(following, ProcessObserved)
    assert "back-off 10s" in following.waiting_for and not following.running


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(end(137, "OOMKilled"), id="its memory is full"),
        pytest.param(end(128, "StartError"), id="its program is missing"),
    ],
)
def test_a_pod_in_which_the_next_container_ends_the_same_way_is_given_up(
    last: dict[str, Any],
) -> None:
    seen = Seen()
    seen.changed(pod(RUNNING))
    ended = seen.tracker.changed(pod(last))
    assert ended is not None and ended.abandoned and ended.name == ps(2)
    assert ended.exit_status().reason == last["terminated"]["reason"]
    assert seen.tracker.changed(pod(RUNNING, 1, last)) is None and not seen.tracker.names()


@pytest.mark.parametrize(("lived", "most"), [("10:00:05", 3), ("10:05:00", 6)])
def test_a_pod_whose_containers_keep_ending_is_given_up(lived: str, most: int) -> None:
    seen = Seen()
    for number in range(most - 1):
        seen.changed(pod(RUNNING, number), pod(BACK_OFF, number, end(1, lived=lived)))
    last = seen.tracker.changed(pod(BACK_OFF, most - 1, end(1, lived=lived)))
    assert last is not None and last.abandoned and last.name == ps(2 + most - 1)
    assert last.exit_status() == ExitStatus(exit_code=1)


def test_containers_that_lived_long_are_followed_without_a_limit() -> None:
    seen = Seen()
    for number in range(20):
        seen.changed(pod(RUNNING, number), pod(BACK_OFF, number, end(1)))
    assert seen.tracker.names() == [ps(22)]


def test_a_pod_has_ended_when_no_container_follows() -> None:
    assert not has_ended(pod(end(1)))
    assert has_ended(pod(end(0, "Completed")))
    assert has_ended(pod(end(66), leaving=True))


def test_a_pod_that_is_deleted_between_two_containers_does_not_tell_an_end_twice() -> None:
    seen = Seen()
    seen.changed(pod(RUNNING), pod(BACK_OFF, 0, end(1)))
    ended = seen.tracker.gone(pod(BACK_OFF, 0, end(1), leaving=True))
    assert ended is not None and ended.name == ps(3)
    assert ended.exit_status() == ExitStatus(reason="Deleted")


def test_an_image_that_is_gone_before_the_next_container_is_the_end_of_the_next_process() -> None:
    seen = Seen()
    killed, following = seen.changed(pod(RUNNING), pod(NO_IMAGE, 0, end()))[1:]
    assert killed.name == ps(2) and following.name == ps(3)
    assert isinstance(following, ProcessObserved) and "cannot be pulled" in following.waiting_for
