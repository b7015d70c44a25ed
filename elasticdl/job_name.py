"""Names of jobs: what they may be, the one of a job that nobody named, and the next one where one
is taken.
"""

from __future__ import annotations

import re
import time

LONGEST = 52
"""Characters. Kubernetes allows 63 for the pods' names, which begin with it."""
_VALID = re.compile(rf"[a-z]([-a-z0-9]{{0,{LONGEST - 2}}}[a-z0-9])?")


def is_valid(name: str) -> bool:
    """Whether a job may be called so, on this machine and on a cluster."""
    return _VALID.fullmatch(name) is not None


def generated_name(model_def: str) -> str:
    """From the model and the time."""
    stem = re.sub(r"[^a-z0-9]+", "-", model_def.lower()).strip("-")[:30].strip("-")
    if not stem[:1].isalpha():
        stem = f"job-{stem}".rstrip("-")
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(time.time()))}"


def next_name(name: str) -> str:
    """`ads-2` after `ads`, `ads-3` after `ads-2`; of paths too.

    A date at the end is none of these numbers.
    """
    found = re.fullmatch(r"(.*)-(\d{1,3})", name)
    stem, number = (found[1], int(found[2]) + 1) if found else (name, 2)
    if "/" in name:
        return f"{stem}-{number}"
    return f"{stem[: LONGEST - len(str(number)) - 1].rstrip('-')}-{number}"
