"""What pods' descriptions and API servers' sentences mean.

Descriptions as real clusters wrote them, cut to what matters.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elasticdl.clock import ManualClock
from elasticdl.cluster.base import ExitStatus, ProcessExited, ProcessName, ProcessObserved, Role
from elasticdl.cluster.event_bus import EventBus
from elasticdl.cluster.kubernetes.api_refusals import refusal
from elasticdl.cluster.kubernetes.labels import PLACE_LABEL, labels
from elasticdl.cluster.kubernetes.pod_tracker import (
    FORCE_AFTER_S,
    NODE_LOST,
    NOMINATED_LIMIT_S,
    OVERDUE_S,
    START_PROBLEM_LIMIT_S,
    PodTracker,
)
from elasticdl.cluster.kubernetes.pods import (
    DELETED,
    IMAGE_FAILED,
    NOT_PLACED,
    START_FAILED,
    exit_status,
    has_ended,
    observed,
    trouble,
)
from elasticdl.master.core.processes.causes import Cause, verdict_of

pytestmark = pytest.mark.core
W0 = ProcessName(Role.WORKER, 0)
BACK_OFF = {
    "waiting": {
        "reason": "ImagePullBackOff",
        "message": 'Back-off pulling image "r/zoo:1": 401 Unauthorized',
    }
}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


def pod(
    state: dict[str, Any] | None = None,
    *,
    uid: str = "u",
    node: str = "node0",
    deleted: int | None = None,
    **status: Any,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "uid": uid,
        "name": "job-worker-0",
        "labels": labels("job", W0),
        "resourceVersion": "1",
    }
    if deleted is not None:
        metadata |= {
            "deletionTimestamp": "2026-11-21T08:23:18Z",
            "deletionGracePeriodSeconds": deleted,
        }
    containers = [{"name": "process", "state": state}] if state else []
    spec = {
        "containers": [{"name": "process", "image": "r/zoo:1"}],
        **({"nodeName": node} if node else {}),
    }
    return {
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": "Pending", "containerStatuses": containers, **status},
    }


def terminated(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


RUNNING = {"running": {"startedAt": "2026-11-21T08:23:15Z"}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pod(terminated(0, "Completed")), ExitStatus(exit_code=0)),
        (
            pod(terminated(1, message="ValueError: x\n")),
            ExitStatus(exit_code=1, log_tail="ValueError: x\n"),
        ),
        (pod(terminated(66)), ExitStatus(exit_code=66)),
        (pod(terminated(137)), ExitStatus(signal=9)),
        (pod(terminated(143)), ExitStatus(signal=15)),
        (
            pod(terminated(128, "StartError", "no such file")),
            ExitStatus(exit_code=128, reason="StartError", log_tail="no such file"),
        ),
        (pod(terminated(255)), ExitStatus(exit_code=255)),
        (pod(terminated(137, "OOMKilled")), ExitStatus(signal=9, reason="OOMKilled")),
        (
            pod(terminated(137, "OOMKilled"), reason="Evicted"),
            ExitStatus(signal=9, reason="OOMKilled"),
        ),
        (
            pod(terminated(137, "ContainerStatusUnknown")),
            ExitStatus(reason="ContainerStatusUnknown"),
        ),
        (
            pod(phase="Failed", reason="Evicted", message="low on memory"),
            ExitStatus(reason="Evicted", log_tail="low on memory"),
        ),
        (
            pod(terminated(143), conditions=[DISRUPTED]),
            ExitStatus(signal=15, conditions=("DisruptionTarget:PreemptionByScheduler",)),
        ),
        (
            pod(terminated(0, "Completed"), conditions=[DISRUPTED | {"status": "False"}]),
            ExitStatus(exit_code=0),
        ),
        (pod(RUNNING), ExitStatus()),
        (pod(terminated(66), deleted=30), ExitStatus(exit_code=66, reason="Deleted")),
        (
            pod(terminated(143), deleted=30, conditions=[DISRUPTED]),
            ExitStatus(signal=15, conditions=("DisruptionTarget:PreemptionByScheduler",)),
        ),
        (pod(terminated(137, "OOMKilled"), deleted=30), ExitStatus(signal=9, reason="OOMKilled")),
        (
            pod(
                terminated(137, message="step 7"),
                phase="Failed",
                reason="Evicted",
                message="The node was low on memory",
            ),
            ExitStatus(signal=9, reason="Evicted", log_tail="The node was low on memory\nstep 7"),
        ),
    ],
)
def test_facts_of_an_end_are_the_platforms_own(found: dict[str, Any], expected: ExitStatus) -> None:
    assert exit_status(found, asked=False) == expected


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (pod(node=""), "waiting for a node"),
        (
            pod(
                node="",
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "message": "0/3 nodes are available",
                    }
                ],
            ),
            "no node has room for it: 0/3 nodes are available",
        ),
        (pod(), "node node0 is preparing it"),
        (pod({"waiting": {"reason": "ContainerCreating"}}), "node node0 is preparing it"),
        (
            pod(BACK_OFF),
            (
                "image r/zoo:1 cannot be pulled (ImagePullBackOff): Back-off pulling image"
                ' "r/zoo:1": 401 Unauthorized'
            ),
        ),
        (
            pod(
                {
                    "waiting": {
                        "reason": "CreateContainerConfigError",
                        "message": 'secret "t" not found',
                    }
                }
            ),
            'its container cannot be set up: secret "t" not found',
        ),
        (pod({"waiting": {"reason": "Odd"}}), "Odd"),
    ],
)
def test_what_a_pod_waits_for_is_reported_in_words(found: dict[str, Any], words: str) -> None:
    assert trouble(found).text == words
    assert observed(found) == ProcessObserved(
        W0, running=False, where=found["spec"].get("nodeName", ""), waiting_for=words
    )


@pytest.mark.parametrize(
    ("label", "place"), [("3", 3), ("0", None), ("1000000", None), ("third", None), (None, None)]
)
def test_a_pod_says_its_place_on_the_ladder(label: str | None, place: int | None) -> None:
    found = pod(RUNNING)
    if label is not None:
        found["metadata"]["labels"][PLACE_LABEL] = label
    assert observed(found).ladder_place == place


def test_a_pod_has_ended_with_its_container_or_with_its_phase() -> None:
    assert [
        has_ended(each) for each in (pod(), pod(RUNNING), pod(terminated(0)), pod(phase="Failed"))
    ] == [False, False, True, True]


QUOTA = (
    'pods "w" is forbidden: exceeded quota: team, requested: cpu=2,pods=1, used: cpu=8,pods=4,'
    " limited: cpu=8,pods=9"
)
SECURITY = (
    'pods "w" is forbidden: violates PodSecurity "restricted:latest": runAsUser=0 (pod must not set'
    " runAsUser=0)"
)
RIGHTS = (
    'pods is forbidden: User "system:serviceaccount:ns:elasticdl" cannot create resource "pods" in'
    ' API group "" in the namespace "ns"'
)


@pytest.mark.parametrize(
    ("code", "message", "words", "retry"),
    [
        (
            403,
            QUOTA,
            (
                "quota team exhausted: cpu 8 of 8 used, 2 more asked for; pods 4 of 9 used, 1 more"
                " asked for"
            ),
            True,
        ),
        (
            403,
            'pods "w" is forbidden: failed quota: team: must specify cpu for: process',
            "quota team requires the pod to specify cpu",
            False,
        ),
        (
            403,
            'pods "w" is forbidden: status unknown for quota: team, resources: cpu',
            "quota team is new",
            True,
        ),
        (
            403,
            'pods "w" is forbidden: not yet ready to handle request',
            "the API server has just started",
            True,
        ),
        (403, SECURITY, "pod security (restricted:latest) does not allow it: runAsUser=0", False),
        (
            403,
            RIGHTS,
            (
                "service account elasticdl of namespace ns may not create pods in namespace ns;"
                " docker/rbac.yaml"
            ),
            False,
        ),
        (
            403,
            'pods "w" is forbidden: no PriorityClass with name x was found',
            "no priority class x",
            False,
        ),
        (
            403,
            'error looking up service account ns/a: serviceaccount "a" not found',
            "no service account a",
            False,
        ),
        (
            403,
            'error looking up service account ns/default: serviceaccount "default" not found',
            "default",
            True,
        ),
        (
            403,
            (
                "forbidden: unable to create new content in namespace ns because it is being"
                " terminated"
            ),
            "being deleted",
            False,
        ),
        (403, "out of the blue", "the cluster forbids the pod: out of the blue", False),
        (
            400,
            'admission webhook "v.kyverno" denied the request: no latest tag',
            "webhook v.kyverno refused: no latest tag",
            False,
        ),
        (404, 'namespaces "ns" not found', "there is no namespace ns", False),
        (401, "Unauthorized", "does not accept our credentials", True),
        (422, "Pod is invalid: spec.x: Required", "does not accept the pod: Pod is invalid", False),
        (429, "too many requests", "429", True),
        (500, "failed calling webhook", "500", True),
    ],
)
def test_a_refusal_is_reported_in_words_and_whether_to_try_again(
    code: int, message: str, words: str, retry: bool
) -> None:
    told = refusal(code, message)
    assert words in told.reason
    assert told.retry is retry


class Tracked:
    def __init__(self) -> None:
        self.bus, self.clock = EventBus(), ManualClock()
        self.tracker = PodTracker(self.bus, self.clock)


def test_an_end_is_handed_out_once_however_often_it_is_seen() -> None:
    tracked = Tracked()
    assert tracked.tracker.changed(pod(RUNNING)) is None
    ended = tracked.tracker.changed(pod(terminated(1)))
    assert ended is not None and ended.exit_status().exit_code == 1
    assert tracked.tracker.changed(pod(terminated(1))) is None
    assert tracked.tracker.gone(pod(terminated(1))) is None


def test_a_pod_that_vanishes_while_it_runs_was_forced_away_by_somebody() -> None:
    tracked = Tracked()
    tracked.tracker.changed(pod(RUNNING))
    ended = tracked.tracker.gone(pod(RUNNING))
    assert ended is not None and ended.exit_status() == ExitStatus(reason="Deleted")
    assert tracked.tracker.names() == []


def test_an_end_asked_for_before_the_pod_was_seen_is_still_ours() -> None:
    tracked = Tracked()
    tracked.tracker.ask(W0, 5)
    ended = tracked.tracker.changed(pod(terminated(143)))
    assert ended is not None and ended.exit_status().asked


def test_news_is_not_told_twice_and_a_running_process_does_not_go_back_to_waiting() -> None:
    async def scenario() -> list[bool]:
        tracked = Tracked()
        events = tracked.bus.listen()
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        for state in (None, None, RUNNING, RUNNING, {"waiting": {"reason": "Odd"}}):
            tracked.tracker.changed(pod(state))
        tracked.bus.close()
        return [(await first).running] + [event.running async for event in events]  # type: ignore[union-attr]

    assert asyncio.run(scenario()) == [False, True]


def test_a_pod_of_another_kind_with_our_label_is_left_alone() -> None:
    tracked, stray = Tracked(), pod(RUNNING)
    stray["metadata"]["labels"] = {}
    assert tracked.tracker.changed(stray) is None and tracked.tracker.names() == []


def test_an_image_that_comes_in_time_is_not_given_up() -> None:
    tracked = Tracked()
    tracked.tracker.changed(pod(BACK_OFF))
    tracked.clock.advance(START_PROBLEM_LIMIT_S)
    assert tracked.tracker.hopeless() == []
    tracked.tracker.changed(pod())
    tracked.tracker.changed(pod(BACK_OFF))
    tracked.clock.advance(START_PROBLEM_LIMIT_S)
    assert tracked.tracker.hopeless() == []


def test_an_image_that_does_not_come_is_given_up_once_with_the_registrys_words() -> None:
    tracked = Tracked()
    tracked.tracker.changed(pod(BACK_OFF))
    tracked.clock.advance(START_PROBLEM_LIMIT_S + 1)
    (life,) = tracked.tracker.hopeless()
    assert tracked.tracker.hopeless() == []
    ended = tracked.tracker.gone(pod(terminated(137, "ContainerStatusUnknown")))
    assert ended is life
    assert (ended.exit_status().reason, "401 Unauthorized" in ended.exit_status().log_tail) == (
        "ImagePullFailed",
        True,
    )


def test_what_the_registry_said_is_reported_although_the_node_says_less_between_its_tries() -> None:
    tracked = Tracked()
    tracked.tracker.changed(
        pod(
            {"waiting": {"reason": "ErrImagePull", "message": "the registry said 401 Unauthorized"}}
        )
    )
    tracked.tracker.changed(pod({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}))
    tracked.clock.advance(START_PROBLEM_LIMIT_S + 1)
    (life,) = tracked.tracker.hopeless()
    assert "401 Unauthorized" in life.exit_status().log_tail


def test_a_container_that_can_never_be_set_up_is_given_up_as_a_start_error() -> None:
    tracked, stuck = (
        Tracked(),
        pod(
            {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "t" not found'}}
        ),
    )
    tracked.tracker.changed(stuck)
    tracked.clock.advance(START_PROBLEM_LIMIT_S + 1)
    (life,) = tracked.tracker.hopeless()
    assert (
        life.exit_status().reason == "StartError"
        and 'secret "t" not found' in life.exit_status().log_tail
    )


def test_a_pod_that_the_scheduler_forgets_is_given_up_once_with_the_node_that_it_chose() -> None:
    tracked = Tracked()
    tracked.tracker.changed(pod(node="", nominatedNodeName="node7"))
    tracked.clock.advance(NOMINATED_LIMIT_S)
    assert tracked.tracker.hopeless() == []
    tracked.clock.advance(1)
    (life,) = tracked.tracker.hopeless()
    assert tracked.tracker.hopeless() == []
    assert tracked.tracker.gone(pod(node="", nominatedNodeName="node7")) is life
    verdict = verdict_of(life.exit_status())
    assert (verdict.cause, "chose node node7" in verdict.text) == (Cause.NOT_PLACED, True)


@pytest.mark.parametrize(
    "then",
    [pod(node="", nominatedNodeName="node8"), pod(node=""), pod(nominatedNodeName="node7")],
    ids=["another node", "no node", "placed"],
)
def test_a_pod_for_which_the_scheduler_does_something_is_not_given_up(then: dict[str, Any]) -> None:
    tracked = Tracked()
    tracked.tracker.changed(pod(node="", nominatedNodeName="node7"))
    tracked.clock.advance(NOMINATED_LIMIT_S)
    tracked.tracker.changed(then)
    tracked.clock.advance(NOMINATED_LIMIT_S)
    assert tracked.tracker.hopeless() == []


def test_a_pod_that_is_placed_after_all_is_not_given_up_for_what_comes_later() -> None:
    tracked = Tracked()
    tracked.tracker.changed(pod(node="", nominatedNodeName="node7"))
    tracked.clock.advance(NOMINATED_LIMIT_S + 1)
    assert tracked.tracker.hopeless() != []
    tracked.tracker.changed(pod(RUNNING))
    ended = tracked.tracker.gone(pod(terminated(137, "ContainerStatusUnknown")))
    assert ended is not None
    assert verdict_of(ended.exit_status()).cause is Cause.NODE_LOST


def test_a_pod_that_is_asked_to_end_or_that_another_scheduler_places_is_not_given_up() -> None:
    tracked = Tracked()
    ours, theirs = (pod(node="", uid=uid, nominatedNodeName="node7") for uid in "uv")
    theirs["spec"]["schedulerName"] = "volcano"
    theirs["metadata"]["labels"] = labels("job", ProcessName(Role.WORKER, 1))
    for one in (ours, theirs):
        tracked.tracker.changed(one)
    tracked.tracker.ask(W0, 30)
    tracked.clock.advance(NOMINATED_LIMIT_S + 1)
    assert tracked.tracker.hopeless() == []


def test_a_deletion_that_we_asked_for_is_not_somebodys() -> None:
    tracked = Tracked()
    tracked.tracker.changed(pod(RUNNING))
    tracked.tracker.ask(W0, 30)
    ended = tracked.tracker.changed(pod(terminated(143), deleted=30))
    assert ended is not None and (ended.exit_status().asked, ended.exit_status().reason) == (
        True,
        "",
    )


WORDS = [
    (pod(terminated(137, "OOMKilled")), Cause.OUT_OF_MEMORY),
    (
        pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory."),
        Cause.EVICTED,
    ),
    (pod(phase="Failed", reason="Preempting"), Cause.PREEMPTED),
    (
        pod(
            phase="Failed",
            reason="Terminated",
            message="Pod was terminated in response to imminent node shutdown.",
        ),
        Cause.NODE_DRAINED,
    ),
    (pod(phase="Failed", reason="NodeLost"), Cause.NODE_LOST),
    (
        pod(
            phase="Failed",
            reason="OutOfcpu",
            message="Pod was rejected: Node didn't have enough resource: cpu",
        ),
        Cause.EVICTED,
    ),
    (pod(phase="Failed", reason="UnexpectedAdmissionError", message="no gpu"), Cause.EVICTED),
    (pod(terminated(137, "ContainerStatusUnknown")), Cause.NODE_LOST),
    (pod(terminated(128, "StartError", 'exec: "trian": not found')), Cause.START_ERROR),
    (pod(terminated(127, "ContainerCannotRun", "no such file")), Cause.START_ERROR),
    (pod(terminated(143), deleted=30), Cause.DELETED),
    (pod(terminated(64, message="ValueError: no")), Cause.USER_ERROR),
    (pod(terminated(137)), Cause.INFRASTRUCTURE),
    *(
        (pod(terminated(66), deleted=30, conditions=[DISRUPTED | {"reason": reason}]), cause)
        for reason, cause in (
            ("PreemptionByScheduler", Cause.PREEMPTED),
            ("EvictionByEvictionAPI", Cause.EVICTED),
            ("TerminationByKubelet", Cause.EVICTED),
            ("DeletionByTaintManager", Cause.NODE_DRAINED),
            ("DeletionByPodGC", Cause.NODE_LOST),
        )
    ),
]


@pytest.mark.parametrize(("found", "cause"), WORDS)
def test_every_word_of_the_platform_has_its_cause(found: dict[str, Any], cause: Cause) -> None:
    told = verdict_of(exit_status(found, asked=False))
    assert told.cause is cause and told.text
    spoken = found["status"].get("message") or (
        (found["status"]["containerStatuses"] or [{}])[0].get("state") or {}
    ).get("terminated", {}).get("message")
    if cause in (Cause.EVICTED, Cause.START_ERROR) and spoken:
        assert spoken in told.text


def test_our_own_words_have_their_causes() -> None:
    causes = {
        word: verdict_of(ExitStatus(reason=word, log_tail="401")).cause
        for word in (IMAGE_FAILED, START_FAILED, NOT_PLACED, DELETED, NODE_LOST)
    }
    assert causes == {
        IMAGE_FAILED: Cause.IMAGE,
        START_FAILED: Cause.START_ERROR,
        NOT_PLACED: Cause.NOT_PLACED,
        DELETED: Cause.DELETED,
        NODE_LOST: Cause.NODE_LOST,
    }


def test_a_pod_that_its_node_does_not_end_is_lost_after_its_grace_and_told_once() -> None:
    tracked = Tracked()
    tracked.tracker.changed(pod(RUNNING, deleted=30))
    tracked.clock.advance(30 + OVERDUE_S)
    assert tracked.tracker.lost() == []
    tracked.clock.advance(1)
    assert [life.name for life in tracked.tracker.lost()] == [W0]
    assert (
        tracked.tracker.lost() == []
        and tracked.tracker.gone(pod(terminated(137), deleted=30)) is None
    )


@pytest.mark.parametrize(
    ("first_s", "second_s", "forced"), [(600, 0, True), (5, 600, False), (5, 5, False)]
)
def test_only_a_shorter_grace_forces_a_pod_off_the_books(
    first_s: float, second_s: float, forced: bool
) -> None:
    tracked = Tracked()
    tracked.tracker.changed(pod(RUNNING))
    tracked.tracker.ask(W0, first_s)
    tracked.clock.advance(0.5)
    tracked.tracker.ask(W0, second_s)
    assert tracked.tracker.overstaying() == []
    tracked.clock.advance(second_s + FORCE_AFTER_S + 0.1)
    assert bool(tracked.tracker.overstaying()) is forced
    assert tracked.tracker.overstaying() == []


def test_an_event_of_the_past_does_not_bring_an_ended_process_back() -> None:
    tracked = Tracked()
    tracked.bus.post(ProcessExited(W0, ExitStatus(exit_code=0)))
    tracked.tracker.changed(pod(RUNNING, uid="another"))
    assert isinstance(tracked.bus.newest(W0), ProcessExited)
