"""The master's HTTP API on a cluster: requests that its RPCs do not provide."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from elasticdl.errors import PermanentError, TransientError

_CALL_S = 10.0


def get_json(address: str, path: str) -> dict[str, Any]:
    """Return the JSON object at `path` of the page at `http://host:port/#token=…`; blocks.

    Raises TransientError if the page is unreachable, PermanentError with its message if it refuses.
    """
    page = urlsplit(address)
    token = page.fragment.partition("token=")[2]
    connection = http.client.HTTPConnection(page.netloc, timeout=_CALL_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body: dict[str, Any] = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TransientError(
            f"cannot reach the master's page: {error or type(error).__name__}"
        ) from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        message = (body.get("error") or {}).get("message")
        raise PermanentError(str(message or f"the master's page answered {answer.status}"))
    return body
