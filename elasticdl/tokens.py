"""The tokens of a job: each process holds its own, and all are derived from the job's.

The *job's token* is random. The master and the job's owner hold it, and nobody else: it stands for
the owner, and every other token is an HMAC-SHA256 under it. A token reveals nothing about the one
that it is derived from, so its holder can prove what it is, and nothing more.

A call carries no token, but a *proof*: derived once more, for one kind of server. Whoever receives
a proof, perhaps at the address of a process that died, can use it nowhere else.
"""

from __future__ import annotations

import hmac
import secrets

MOST_TERM = 1 << 53
"""A larger term is refused. A master's is the second of its start, or one more than the last."""


def new_token() -> str:
    """A job's token."""
    return secrets.token_urlsafe(32)


def derived(token: str, label: str) -> str:
    """64 hexadecimal digits. Labels name the purpose first, so that no two purposes share one."""
    return hmac.digest(token.encode(), label.encode(), "sha256").hex()


def process_token(job_token: str, process: str) -> str:
    """The token of one process, such as `worker-3`: it stands for that name only.

    `ps-0` and `ps-0.1` have the same: incarnations of a server may follow one another in one pod,
    whose description does not change.
    """
    name = process.partition(".")[0] if process.startswith("ps-") else process
    return derived(job_token, f"process {name}")


def viewer_token(job_token: str) -> str:
    """The token that opens the status page and the metrics, for reading only."""
    return derived(job_token, "viewer")


def run_name(job_token: str) -> str:
    """The name of this run of the job, in its checkpoints; no secret."""
    return derived(job_token, "run")[:16]


def bulk_key(job_token: str, server: int) -> str:
    """The key by which a parameter server recognises any worker, in all its incarnations."""
    return derived(job_token, f"bulk ps-{server}")


def bulk_token(key: str, process: str) -> str:
    """What a worker shows to the server that has this key; the same in rpc/native/greeting.h."""
    return derived(key, f"bulk {process}")


def journal_key(job_token: str) -> str:
    """The key by which a master recognises a copy of the journal as a master's."""
    return derived(job_token, "journal")


def proof_to_master(token: str) -> str:
    """What the holder of a token shows to the master."""
    return derived(token, "to the master")


def proof_to_server(server_token: str, term: int) -> str:
    """What the master of a term shows to a process that serves it and knows its own token only.

    A process that was deceived cannot deceive another one, nor name a later term.
    """
    return derived(server_token, f"from the master of term {term}")


def same(one: str, other: str) -> bool:
    """Compare in constant time: the time must not tell how much of a token is right."""
    # As bytes: `compare_digest` raises TypeError for strings that are not ASCII.
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))
