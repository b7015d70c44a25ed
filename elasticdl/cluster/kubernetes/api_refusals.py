"""Why a Kubernetes cluster refuses to create a pod, and whether it may accept it later. Pure.

The patterns match messages of the API server's admission plugins; an unknown message is shown as it
is.
"""

from __future__ import annotations

import re

from elasticdl.cluster.base import CreateRefused

_QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.+), used: (?P<used>.+), limited:"
    r" (?P<limit>.+)"
)
_MUST_SAY = re.compile(r"failed quota: (?P<name>[^:]+): must specify (?P<what>.+)")
_NOT_COUNTED = re.compile(r"status unknown for quota: (?P<name>[^,]+)")
_STARTING = "not yet ready to handle request"
_POD_SECURITY = re.compile(r'violates PodSecurity "(?P<level>[^"]+)": (?P<why>.+)')
_RIGHTS = re.compile(
    r'User "(?P<user>[^"]+)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group'
    r' "[^"]*"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
_WEBHOOK = re.compile(
    r'admission webhook "(?P<name>[^"]+)" denied the request: (?P<why>.+)', re.DOTALL
)
_PRIORITY = re.compile(r"no PriorityClass with name (?P<name>\S+) was found")
_ACCOUNT = re.compile(r'serviceaccount "(?P<name>[^"]+)" not found')
_NAMESPACE = re.compile(r'namespaces "(?P<name>[^"]+)" not found')
_SERVICE_ACCOUNT_USER = re.compile(r"system:serviceaccount:(?P<namespace>[^:]+):(?P<name>.+)")


def refusal(code: int, message: str) -> CreateRefused:
    """Interpret an answer with an HTTP `code` of 400 or more to a request to create a pod."""
    if code == 403:
        return _forbidden(message)
    if code == 404 and (match := _NAMESPACE.search(message)):
        return CreateRefused(f"there is no namespace {match['name']}", retry=False)
    if code == 401:
        # The server refuses a token for a moment while it is being renewed.
        return CreateRefused(f"the cluster does not accept our credentials: {message}", retry=True)
    if webhook := _WEBHOOK.search(message):
        return CreateRefused(
            f"the cluster's admission webhook {webhook['name']} refused: {webhook['why'].strip()}",
            retry=False,
        )
    if code in (400, 422):
        return CreateRefused(f"the cluster does not accept the pod: {message}", retry=False)
    return CreateRefused(
        f"the cluster answered {code}: {message}", retry=code == 429 or code >= 500
    )


def no_priority_class(name: str) -> str:
    """What to do about a missing class; those of the priority ladder have a command."""
    return f"there is no priority class {name}; " + (
        "the cluster's administrator installs it with `elasticdl cluster setup`"
        if name.startswith("elasticdl-")
        else "see `kubectl get priorityclasses`"
    )


def _forbidden(message: str) -> CreateRefused:
    if match := _QUOTA.search(message):
        return CreateRefused(_quota(match), retry=True)
    if match := _MUST_SAY.search(message):
        return CreateRefused(
            f"quota {match['name']} requires the pod to specify {match['what']}", retry=False
        )
    if match := _NOT_COUNTED.search(message):
        # A new quota forbids everything until its controller has counted, a moment later.
        return CreateRefused(
            f"quota {match['name']} is new, and its usage is not counted yet", retry=True
        )
    if _STARTING in message:
        return CreateRefused(
            "the API server has just started and has not loaded its rules yet", retry=True
        )
    if match := _POD_SECURITY.search(message):
        return CreateRefused(
            f"the namespace's pod security ({match['level']}) does not allow it: {match['why']}",
            retry=False,
        )
    if match := _RIGHTS.search(message):
        return CreateRefused(_missing_right(match), retry=False)
    if match := _WEBHOOK.search(message):
        return CreateRefused(
            f"the cluster's admission webhook {match['name']} refused: {match['why'].strip()}",
            retry=False,
        )
    if match := _PRIORITY.search(message):
        return CreateRefused(no_priority_class(match["name"]), retry=False)
    if match := _ACCOUNT.search(message):
        # A new namespace gets its `default` account a moment later.
        return CreateRefused(
            f"there is no service account {match['name']}; see docker/rbac.yaml",
            retry=match["name"] == "default",
        )
    if "because it is being terminated" in message:
        return CreateRefused("the namespace is being deleted", retry=False)
    return CreateRefused(f"the cluster forbids the pod: {message}", retry=False)


def _quota(match: re.Match[str]) -> str:
    """`quota team-a exhausted: cpu 8 of 8 used, 2 more asked for`."""
    asked, used, limit = (_quantities(match[part]) for part in ("asked", "used", "limit"))
    parts = [
        f"{what} {used.get(what, '?')} of {limit.get(what, '?')} used, {amount} more asked for"
        for what, amount in asked.items()
    ]
    return f"quota {match['name']} exhausted: {'; '.join(parts)}"


def _quantities(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.strip().split(",") if "=" in part)


def _missing_right(match: re.Match[str]) -> str:
    account = _SERVICE_ACCOUNT_USER.fullmatch(match["user"])
    who = (
        f"service account {account['name']} of namespace {account['namespace']}"
        if account
        else f"user {match['user']}"
    )
    where = f" in namespace {match['namespace']}" if match["namespace"] else ""
    return (
        f"{who} may not {match['verb']} {match['resource']}{where}; docker/rbac.yaml"
        " grants the rights that a job needs"
    )
