"""Names of jobs: valid names, generated names, and the next name if one is taken."""

from __future__ import annotations

import re
import time

LONGEST = 52
"""Maximum number of characters; Kubernetes allows 63 for pods, whose names begin with the job's."""
_VALID = re.compile(rf"[a-z]([-a-z0-9]{{0,{LONGEST - 2}}}[a-z0-9])?")


def is_valid(name: str) -> bool:
    """Whether a job may have this name, on this machine and on a cluster."""
    return _VALID.fullmatch(name) is not None


def generated_name(model_def: str) -> str:
    """A name from the model and the time."""
    stem = re.sub(r"[^a-z0-9]+", "-", model_def.lower()).strip("-")[:30].strip("-")
    if not stem[:1].isalpha():
        stem = f"job-{stem}".rstrip("-")
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(time.time()))}"


def next_name(name: str) -> str:
    """`ads-2` after `ads`, `ads-3` after `ads-2`, for names and paths.

    A date at the end is not such a number.
    """
    numbered = re.fullmatch(r"(.*)-(\d{1,3})", name)
    stem, number = (numbered[1], int(numbered[2]) + 1) if numbered else (name, 2)
    if "/" in name:
        return f"{stem}-{number}"
    return f"{stem[: LONGEST - len(str(number)) - 1].rstrip('-')}-{number}"


def directory_in_pod(name: str) -> str:
    """The directory of a job on a cluster without --job-dir.

    It is in the master's pod, and lost with it.
    """
    return f"/tmp/elasticdl/{name}"  # noqa: S108 - in a pod
