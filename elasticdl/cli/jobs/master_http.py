"""The master's HTTP API on a cluster: requests that its RPCs do not provide."""

from __future__ import annotations

import http.client
import json
from typing import Any, final
from urllib.parse import urlsplit

from elasticdl.errors import PermanentError, TransientError

_CALL_S = 10.0


@final
class MasterPage:
    """A client of the master's page; blocks. `address` is host:port."""

    def __init__(self, address: str, token: str) -> None:
        self._address, self._token = address, token

    @classmethod
    def at(cls, address: str) -> MasterPage:
        """Return the client for `http://host:port/#token=…`."""
        parts = urlsplit(address)
        return cls(parts.netloc, parts.fragment.partition("token=")[2])

    def get(self, path: str) -> dict[str, Any]:
        """Return a JSON object.

        Raises TransientError if the page is unreachable, PermanentError with its message if it
        refuses.
        """
        connection = http.client.HTTPConnection(self._address, timeout=_CALL_S)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self._token}"})
            answer = connection.getresponse()
            body: dict[str, Any] = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TransientError(
                f"cannot reach the master's page: {error or type(error).__name__}"
            ) from error
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise PermanentError(
                str(
                    (body.get("error") or {}).get("message")
                    or f"the master's page answered {answer.status}"
                )
            )
        return body
