"""The one home of the Kubernetes client: requests to an API server as JSON in and JSON out, with
errors of our own.

The client gives its configuration (kubeconfig with plugins, a pod's service account, TLS) and its
connection pool. Its
models are not used: to build 500 of them for a list costs the master a second. The server checks
spelling instead
(`fieldValidation=Strict`). Importing this module takes half a second: keep it lazy in the CLI.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import aiohttp
import yaml
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from elasticdl.cluster.kubernetes.plans import Json
from elasticdl.errors import ExitCode, PermanentError, TransientError

CONNECT_S, CALL_S = 10.0, 30.0
SETTLE_S = 15.0
"""An API server that starts answers before it knows accounts and roles again, and forbids for a
moment what it will allow.
"""
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_RETRY_AFTER_S = 120.0
_CONNECTIONS = 64
_GOODBYE_S = 0.1
_NO_WAY = b"it does not reach the pod's node"
"""What a failure on the way to a pod mostly is; the answer's own words are not to be had."""
_GARBLED = (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError)
"""What the client raises on a kubeconfig that is none."""
_PING_S, _CLOSE_S = 10.0, 1.0
Socket: TypeAlias = aiohttp.ClientWebSocketResponse


@dataclass(frozen=True, slots=True)
class Status:
    """What an API server said instead of doing it: the HTTP code, its `reason` in one word and its
    message.
    """

    code: int
    reason: str
    message: str


class ApiRefused(PermanentError):
    """The API server says no. The same request will get the same answer."""

    exit_code = ExitCode.CLUSTER_REFUSED

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


class ApiAway(TransientError):
    """The API server is not reached, too busy, or broken.

    `status` is None where nothing was heard from it.
    """

    def __init__(
        self, message: str, *, status: Status | None = None, retry_after_s: float = 1.0
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.status = status


@final
class ApiServer:
    """Use it from one event loop, and close it there. Make it with `connect`."""

    def __init__(
        self, configuration: Configuration, namespace: str, *, unsettled: bool = False
    ) -> None:
        """`namespace`: the one that the configuration names; 'default' where it names none.

        `unsettled`: it may have been away just before, as it is taken to be for a while whenever it
        is not reached.
        """
        self.namespace = namespace
        self._settled_at_s = time.monotonic() + SETTLE_S if unsettled else 0.0
        configuration.connection_pool_maxsize = _CONNECTIONS
        self._client = ApiClient(configuration)

    async def close(self) -> None:
        """Drop all connections."""
        await self._client.close()
        # A TLS connection takes a few turns of the loop to end; one that is cut off there is
        # reported as a leak.
        await asyncio.sleep(_GOODBYE_S)

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Read an object or a list. Raises ApiRefused, ApiAway."""
        return await self._json("GET", path, query)

    async def create(self, path: str, body: Json, *, dry_run: bool = False) -> Json:
        """Make an object, or only ask whether it could be made; unknown fields are refused.

        Raises ApiRefused, ApiAway.
        """
        return await self._json(
            "POST",
            path,
            {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})},
            body,
        )

    async def delete(self, path: str, options: Json | None = None) -> Json:
        """Delete an object; `options` are DeleteOptions. Raises ApiRefused, ApiAway."""
        return await self._json(
            "DELETE", path, None, {"apiVersion": "v1", "kind": "DeleteOptions", **(options or {})}
        )

    async def patch(self, path: str, body: Json) -> Json:
        """Merge `body` into an object. Raises ApiRefused, ApiAway."""
        return await self._json("PATCH", path, None, body)

    async def text(self, path: str, query: Mapping[str, str] | None = None) -> str:
        """Read something that is not JSON, a log for one. Raises ApiRefused, ApiAway."""
        async with self._answer("GET", path, query, None, CALL_S) as answer:
            return (await answer.read()).decode("utf-8", errors="replace")

    async def lines(
        self, path: str, query: Mapping[str, str], silence_s: float
    ) -> AsyncGenerator[bytes]:
        """A stream, line by line, until the server ends it.

        Raises ApiAway also when nothing came for `silence_s`.
        """
        async with self._answer("GET", path, query, None, silence_s, whole=False) as answer:
            rest = b""
            async for chunk in answer.content.iter_any():
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line

    async def chunks(
        self, path: str, query: Mapping[str, str], silence_s: float
    ) -> AsyncGenerator[bytes]:
        """A stream as it comes, until the server ends it.

        Raises ApiRefused, ApiAway (also after `silence_s` without a byte).
        """
        async with self._answer("GET", path, query, None, silence_s, whole=False) as answer:
            async for chunk in answer.content.iter_any():
                yield chunk

    @asynccontextmanager
    async def socket(
        self, path: str, query: Mapping[str, str], protocol: str
    ) -> AsyncGenerator[Socket]:
        """A WebSocket; a peer that answers no ping for a few seconds ends it.

        Raises ApiRefused, ApiAway: not reached, or no.
        """
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
            raise ApiAway(f"the API server is not reached within {CONNECT_S:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiAway(f"the API server is not reached: {error}") from error
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
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            _, url, headers, _, _ = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json, */*", "Content-Type": kind},
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
                ApiAway(f"the API server is not reached within {CONNECT_S:g} s")
            ) from error
        except TimeoutError as error:
            raise self._judged(ApiAway(f"the API server said nothing for {limit_s:g} s")) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._judged(ApiAway(f"the API server is not reached: {error}")) from error
        except ValueError as error:
            raise ApiAway(f"the API server's answer makes no sense: {error}") from error

    def _judged(self, said: ApiRefused | ApiAway) -> ApiRefused | ApiAway:
        """Of a server that was away, what it has not heard of yet is no refusal."""
        if isinstance(said, ApiRefused):
            unknown = said.status.code == 401 or (
                said.status.code == 403 and " cannot " in said.message
            )
            if unknown and time.monotonic() < self._settled_at_s:
                return ApiAway(
                    f"the API server has just come back: {said.message}", status=said.status
                )
        elif said.status is None or said.status.code >= 500:
            self._settled_at_s = time.monotonic() + SETTLE_S
        return said


def _object(body: bytes) -> Json:
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, got {body[:100]!r}")
    return found


def _error(code: int, body: bytes, retry_after: str) -> ApiRefused | ApiAway:
    try:
        said = _object(body)
    except ValueError:
        said = {"message": body[:500].decode("utf-8", errors="replace").strip()}
    status = Status(code, str(said.get("reason") or ""), str(said.get("message") or f"HTTP {code}"))
    if code not in (408, 429) and code < 500:
        return ApiRefused(status)
    seconds = (
        _seconds(retry_after)
        or _seconds((said.get("details") or {}).get("retryAfterSeconds"))
        or 1.0
    )
    return ApiAway(
        f"the API server answered {code}: {status.message}", status=status, retry_after_s=seconds
    )


def _seconds(text: object) -> float:
    """A Retry-After in seconds, bounded; 0 where there is none (dates are not sent by API
    servers).
    """
    return min(float(str(text)), _MAX_RETRY_AFTER_S) if str(text).isdecimal() else 0.0


async def connect(context: str = "", kubeconfig: str = "") -> ApiServer:
    """As this pod's service account within a cluster, else as the kubeconfig says.

    Raises PermanentError.

    `kubeconfig` (default: KUBECONFIG, else ~/.kube/config) or `context` given: always that.
    """
    configuration = Configuration()
    within = bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and not context and not kubeconfig
    try:
        if within:
            kubernetes_config.load_incluster_config(configuration)
            return ApiServer(configuration, _own_namespace(), unsettled=True)
        loader = await kubernetes_config.load_kube_config(
            kubeconfig or os.environ.get("KUBECONFIG") or None,
            context or None,
            client_configuration=configuration,
            persist_config=False,
        )
    except (kubernetes_config.ConfigException, OSError, *_GARBLED) as error:
        words = " ".join(str(error).split())
        raise PermanentError(
            f"no cluster to talk to: {words}", hint="see `kubectl config get-contexts`"
        ) from error
    chosen: Mapping[str, Any] = loader.current_context["context"]
    return ApiServer(configuration, chosen.get("namespace") or "default")


def _own_namespace() -> str:
    return (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
