"""How many files a process that listens may open. Imports nothing that starts threads."""

from __future__ import annotations

import resource


def raise_file_limit() -> None:
    """Raise the limit to what the system allows: each connection takes a file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
