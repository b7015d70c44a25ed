"""The only module that uses the Kubernetes client: requests with JSON in and JSON out.

The client provides its configuration (kubeconfig with plugins, a pod's service account, TLS) and
its connection pool. Its models are not used: building 500 of them for a list costs the master a
second. The server validates fields instead (`fieldValidation=Strict`). The import takes a third of
a second, so the CLI imports it lazily.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import aiohttp
import yaml

from elasticdl.cluster.kubernetes.kubeconfig import in_pod, kubeconfig_path
from elasticdl.cluster.kubernetes.plans import Json
from elasticdl.deferred_import import executed_at_first_use
from elasticdl.errors import ExitCode, PermanentError, TransientError

_OTHERS = "client config dynamic informer leaderelection stream utils watch"
_UNUSED = frozenset(
    [f"kubernetes.{name}" for name in _OTHERS.split()]
    + [f"kubernetes.aio.{name}" for name in _OTHERS.split() if name not in ("client", "config")]
)
"""The package imports all of its parts. These are half of them: 0.15 s in each command."""
with executed_at_first_use(_UNUSED):
    from kubernetes.aio import config as kubernetes_config
    from kubernetes.aio.client.api_client import ApiClient
    from kubernetes.aio.client.configuration import Configuration

CONNECT_S, CALL_S = 10.0, 30.0
SETTLE_S = 15.0
"""A starting API server may refuse valid accounts and roles for this long, until it knows them."""
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_RETRY_AFTER_S = 120.0
_CONNECTIONS = 1024
"""Each followed log has one."""
_HEADERS = {"Accept": "application/json, */*", "Content-Type": "application/json"}
_PATCH_TYPE = "application/strategic-merge-patch+json"
_GOODBYE_S = 0.1
_NO_WAY = b"it does not reach the pod's node"
"""The usual cause of a failure on the way to a pod; the answer itself is not available."""
_GARBLED = (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError)
"""What the client raises for an invalid kubeconfig."""
_PING_S, _CLOSE_S = 10.0, 1.0
Socket: TypeAlias = aiohttp.ClientWebSocketResponse


@dataclass(frozen=True, slots=True)
class Status:
    """The error answer of an API server: HTTP code, one-word `reason` and message."""

    code: int
    reason: str
    message: str


class ApiRefused(PermanentError):
    """The API server refuses a request; a repetition would get the same answer."""

    exit_code = ExitCode.CLUSTER_REFUSED

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


class ApiAway(TransientError):
    """The API server is unreachable, overloaded or broken.

    `status` is None if it did not answer.
    """

    def __init__(
        self, message: str, *, status: Status | None = None, retry_after_s: float = 1.0
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.status = status


@final
class ApiServer:
    """Use it from one event loop, and close it there. Create it with `connect`.

    Every request raises ApiRefused and ApiAway.
    """

    def __init__(
        self, configuration: Configuration, namespace: str, *, unsettled: bool = False
    ) -> None:
        """`namespace` is that of the configuration, or 'default'.

        `unsettled`: the server may have restarted just before, as is assumed whenever it was
        unreachable.
        """
        self.namespace = namespace
        self._settled_at_s = time.monotonic() + SETTLE_S if unsettled else 0.0
        configuration.connection_pool_maxsize = _CONNECTIONS
        self._client = ApiClient(configuration)

    async def close(self) -> None:
        await self._client.close()
        # A TLS connection takes a few turns of the loop to close, and is reported as a leak if it
        # does not get them.
        await asyncio.sleep(_GOODBYE_S)

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Read an object or a list."""
        return await self._json("GET", path, query)

    async def find(self, path: str) -> Json | None:
        """Read an object; None if there is none."""
        try:
            return await self.get(path)
        except ApiRefused as refused:
            if refused.status.code != 404:
                raise
            return None

    async def create(self, path: str, body: Json, *, dry_run: bool = False) -> Json:
        """Create an object, or with `dry_run` only validate that; unknown fields are refused."""
        return await self._json(
            "POST",
            path,
            {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})},
            body,
        )

    async def create_unseen(self, path: str, body: Json) -> bool:
        """Create an object that we may not read; False if there is one of its name."""
        try:
            await self.create(path, body)
        except ApiRefused as refused:
            if refused.status.code != 409:
                raise
            return False
        return True

    async def delete(
        self, path: str, options: Json | None = None, *, uid: str = "", version: str = ""
    ) -> None:
        """Delete an object, which may be gone; `options` are DeleteOptions.

        With a `uid`, an object of that name with another one stays. Raises ApiRefused, with code
        409 for an object that no longer has the `resourceVersion` `version`.
        """
        whole = {"apiVersion": "v1", "kind": "DeleteOptions", **(options or {})}
        if uid:
            whole["preconditions"] = {"uid": uid}
        if version:
            whole.setdefault("preconditions", {})["resourceVersion"] = version
        try:
            await self._json("DELETE", path, None, whole)
        except ApiRefused as refused:
            # Only with the precondition of a uid does a conflict mean that the object has gone.
            if refused.status.code not in ((404, 409) if uid and not version else (404,)):
                raise

    async def replace(self, path: str, body: Json) -> Json:
        """Replace an object, if it still has the `resourceVersion` of `body`.

        ApiRefused has code 409 if another client has changed it.
        """
        return await self._json("PUT", path, {"fieldValidation": "Strict"}, body)

    async def patch(self, path: str, change: Json) -> Json:
        """Change the fields of an object that `change` has; lists merge as their type says."""
        return await self._json("PATCH", path, {"fieldValidation": "Strict"}, change)

    async def text(self, path: str, query: Mapping[str, str] | None = None) -> str:
        """Read something other than JSON, such as a log."""
        async with self._answer("GET", path, query, None, CALL_S) as answer:
            return (await answer.read()).decode("utf-8", errors="replace")

    async def lines(
        self, path: str, query: Mapping[str, str], silence_s: float
    ) -> AsyncGenerator[bytes]:
        """A stream, line by line, as of `chunks`."""
        rest = b""
        async with aclosing(self.chunks(path, query, silence_s)) as chunks:
            async for chunk in chunks:
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line

    async def chunks(
        self, path: str, query: Mapping[str, str], silence_s: float
    ) -> AsyncGenerator[bytes]:
        """A stream as it comes, until the server ends it.

        ApiAway also comes after `silence_s` without a byte.
        """
        async with self._answer("GET", path, query, None, silence_s, whole=False) as answer:
            async for chunk in answer.content.iter_any():
                yield chunk

    @asynccontextmanager
    async def socket(
        self, path: str, query: Mapping[str, str], protocol: str
    ) -> AsyncGenerator[Socket]:
        """A WebSocket, closed when the peer does not answer pings for a few seconds."""
        rest, configuration = self._client.rest_client, self._client.configuration
        _, url, headers, _, _ = await self._client.param_serialize(
            "GET",
            path,
            query_params=list(query.items()),
            header_params={},
            auth_settings=["BearerToken"],
        )
        if rest.pool_manager is None:
            rest.pool_manager = rest._create_pool_manager()
        options: dict[str, Any] = {
            "proxy": rest.proxy,
            "proxy_headers": rest.proxy_headers,
            "heartbeat": _PING_S,
        }
        options["timeout"] = aiohttp.ClientWSTimeout(ws_close=_CLOSE_S)
        if configuration.tls_server_name:
            options["server_hostname"] = configuration.tls_server_name
        try:
            async with asyncio.timeout(CONNECT_S):
                opened = await rest.pool_manager.ws_connect(
                    url, protocols=(protocol,), headers=headers, max_msg_size=0, **options
                )
        except aiohttp.WSServerHandshakeError as error:
            raise _error(error.status, _NO_WAY if error.status >= 500 else b"", "") from error
        except TimeoutError as error:
            raise ApiAway(f"no connection to the API server within {CONNECT_S:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiAway(f"cannot reach the API server: {error}") from error
        try:
            yield opened
        finally:
            await opened.close()

    async def _json(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Json | None = None
    ) -> Json:
        async with self._answer(method, path, query, body, CALL_S) as answer:
            return _object(await answer.read())

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Json | None,
        limit_s: float,
        *,
        whole: bool = True,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """`limit_s` is for all of a whole answer, and for each silence within a stream."""
        limits = aiohttp.ClientTimeout(
            total=limit_s if whole else None, sock_connect=CONNECT_S, sock_read=limit_s
        )
        sent = {**_HEADERS, **({"Content-Type": _PATCH_TYPE} if method == "PATCH" else {})}
        try:
            _, url, headers, _, _ = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=sent,
                auth_settings=["BearerToken"],
            )
            answer = (
                await self._client.rest_client.request(
                    method, url, headers, body, _request_timeout=limits
                )
            ).response
            async with answer:
                if answer.status >= 400:
                    raise self._judged(
                        _error(
                            answer.status,
                            await answer.read(),
                            answer.headers.get("Retry-After", ""),
                        )
                    )
                yield answer
        except aiohttp.ConnectionTimeoutError as error:
            raise self._judged(
                ApiAway(f"no connection to the API server within {CONNECT_S:g} s")
            ) from error
        except TimeoutError as error:
            raise self._judged(
                ApiAway(f"the API server did not answer for {limit_s:g} s")
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._judged(ApiAway(f"cannot reach the API server: {error}")) from error
        except ValueError as error:
            raise ApiAway(f"the API server sent an invalid answer: {error}") from error

    def _judged(self, error: ApiRefused | ApiAway) -> ApiRefused | ApiAway:
        """Treat refusals of a server that was just unreachable as temporary."""
        if isinstance(error, ApiRefused):
            # A server that has just started answers 401 or 403 until it has loaded its
            # authorization rules.
            unknown = error.status.code == 401 or (
                error.status.code == 403 and " cannot " in error.message
            )
            if unknown and time.monotonic() < self._settled_at_s:
                return ApiAway(
                    f"the API server has just come back: {error.message}", status=error.status
                )
        elif error.status is None or error.status.code >= 500:
            self._settled_at_s = time.monotonic() + SETTLE_S
        return error


def _object(body: bytes) -> Json:
    parsed = json.loads(body)
    if not isinstance(parsed, dict):
        raise ValueError(f"expected an object, got {body[:100]!r}")
    return parsed


def _error(code: int, body: bytes, retry_after: str) -> ApiRefused | ApiAway:
    try:
        answer = _object(body)
    except ValueError:
        answer = {"message": body[:500].decode("utf-8", errors="replace").strip()}
    status = Status(
        code, str(answer.get("reason") or ""), str(answer.get("message") or f"HTTP {code}")
    )
    # 408 and 429 ask for a later try, like server errors.
    if code not in (408, 429) and code < 500:
        return ApiRefused(status)
    seconds = (
        _seconds(retry_after)
        or _seconds((answer.get("details") or {}).get("retryAfterSeconds"))
        or 1.0
    )
    return ApiAway(
        f"the API server answered {code}: {status.message}", status=status, retry_after_s=seconds
    )


def _seconds(text: object) -> float:
    """A bounded Retry-After in seconds; 0 if there is none (API servers do not send dates)."""
    return min(float(str(text)), _MAX_RETRY_AFTER_S) if str(text).isdecimal() else 0.0


async def connect(context: str = "", kubeconfig: str = "") -> ApiServer:
    """Connect as this pod's service account within a cluster, else by the kubeconfig.

    `kubeconfig` (default: KUBECONFIG, else ~/.kube/config) or `context`, if given, take precedence
    over the service account.

    Raises PermanentError.
    """
    configuration = Configuration()
    within = in_pod() and not context and not kubeconfig
    try:
        if within:
            kubernetes_config.load_incluster_config(configuration)
            return ApiServer(configuration, _own_namespace(), unsettled=True)
        loader = await kubernetes_config.load_kube_config(
            kubeconfig or kubeconfig_path() or None,
            context or None,
            client_configuration=configuration,
            persist_config=False,
        )
    except (kubernetes_config.ConfigException, OSError, *_GARBLED) as error:
        reason = " ".join(str(error).split())
        raise PermanentError(
            f"no usable Kubernetes configuration: {reason}",
            hint="see `kubectl config get-contexts`",
        ) from error
    chosen: Mapping[str, Any] = loader.current_context["context"]
    return ApiServer(configuration, chosen.get("namespace") or "default")


def _own_namespace() -> str:
    return (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
