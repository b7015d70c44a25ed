"""Logs of a job on a cluster that only its master has any more: kept when their pods ended, and read from its page."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final
from urllib.parse import quote

from elasticdl.errors import PermanentError, TransientError

if TYPE_CHECKING:
    from elasticdl.cli.line import ClusterLine
    from elasticdl.cluster.tunnel import PodOf

_CALL_S = 10.0
_MOST_BYTES = 1 << 20
"""What the page gives at once."""


@final
class KeptLogs:
    """Blocks. Raises ElasticDLError where the page is not reached, or has no such log."""

    def __init__(self, address: str, token: str) -> None:
        self._address, self._token = address, token

    def sizes(self) -> dict[str, int]:
        """Bytes of each log that is kept, by process."""
        found = self._get("/api/v1/logs")["logs"]
        return {str(one["process"]): int(one["bytes"]) for one in found if one["bytes"] is not None}

    def last(self, process: str, lines: int) -> str:
        """The last lines; 0: all that is kept, a mebibyte at most."""
        text = str(self._get(f"/api/v1/logs/{quote(process, safe='')}?start=-{_MOST_BYTES}&limit={_MOST_BYTES}")["text"])
        return "".join(text.splitlines(keepends=True)[-lines:])

    def _get(self, path: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._address, timeout=_CALL_S)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self._token}"})
            answer = connection.getresponse()
            found: dict[str, Any] = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TransientError(f"the master's page is not reached: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise PermanentError(str((found.get("error") or {}).get("message") or f"the master's page answered {answer.status}"))
        return found


@contextmanager
def kept_logs(line: ClusterLine, namespace: str, pod_of: PodOf, token: str) -> Iterator[KeptLogs]:
    """Through the API server. Raises ElasticDLError if the master's pod is not reached."""
    from elasticdl.cluster.plans import STATUS_PORT
    from elasticdl.cluster.tunnel import Tunnel

    tunnel = Tunnel(line.api, namespace, pod_of, STATUS_PORT)
    address = line.run(tunnel.open())
    try:
        yield KeptLogs(address, token)
    finally:
        line.run(tunnel.close())
