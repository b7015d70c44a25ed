"""Logs of a job on a cluster that only its master has any more: kept when their pods ended, and
read from its page.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, final
from urllib.parse import quote

from elasticdl.cli.jobs.master_http import MasterPage

if TYPE_CHECKING:
    from elasticdl.cli.jobs.cluster_client import ClusterClient
    from elasticdl.cluster.kubernetes.port_forward import PodOf

_MOST_BYTES = 1 << 20
"""What the page gives at once."""


@final
class ArchivedLogs:
    """Blocks. Raises ElasticDLError where the page is not reached, or has no such log."""

    def __init__(self, page: MasterPage) -> None:
        self._page = page

    def sizes(self) -> dict[str, int]:
        """Bytes of each log that is kept, by process."""
        found = self._page.get("/api/v1/logs")["logs"]
        return {str(one["process"]): int(one["bytes"]) for one in found if one["bytes"] is not None}

    def last(self, process: str, lines: int) -> str:
        """The last lines; 0: all that is kept, a mebibyte at most."""
        path = f"/api/v1/logs/{quote(process, safe='')}?start=-{_MOST_BYTES}&limit={_MOST_BYTES}"
        return "".join(str(self._page.get(path)["text"]).splitlines(keepends=True)[-lines:])


@contextmanager
def kept_logs(
    line: ClusterClient, namespace: str, pod_of: PodOf, token: str
) -> Iterator[ArchivedLogs]:
    """Through the API server. Raises ElasticDLError if the master's pod is not reached."""
    from elasticdl.cluster.kubernetes.plans import STATUS_PORT
    from elasticdl.cluster.kubernetes.port_forward import PortForward

    tunnel = PortForward(line.api, namespace, pod_of, STATUS_PORT)
    address = line.run(tunnel.open())
    try:
        yield ArchivedLogs(MasterPage(address, token))
    finally:
        line.run(tunnel.close())
