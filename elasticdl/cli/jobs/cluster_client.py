"""Blocking access to a cluster, through an event loop in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, final

from elasticdl.cluster.kubernetes.kubeconfig import no_cluster
from elasticdl.errors import (
    ClusterRefused,
    ElasticDLError,
    PermanentError,
    SpecError,
    TransientError,
)
from elasticdl.kubernetes_flags import namespace_name

if TYPE_CHECKING:
    from elasticdl.cluster.kubernetes.apiserver import ApiServer

T = TypeVar("T")
CALL_S = 40.0
"""Time limit of several requests in a row; each request has its own limit."""


@final
class LoopThread:
    """An event loop in a thread, until closed. Any thread may give it work."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # Daemon: a script that does not close it can still exit.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], limit_s: float | None = CALL_S) -> T:
        """Run `work` on the loop and return its result; blocks.

        Raises its errors, TransientError after `limit_s`, PermanentError if the thread has ended.
        """
        if not self._thread.is_alive():
            work.close()
            raise PermanentError(
                "the connection to the cluster is closed",
                hint="open a new one; a connection cannot be shared with a forked process",
            )
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(limit_s)
        except TimeoutError as error:
            raise TransientError(
                f"no answer within {limit_s:g} s" if limit_s is not None else str(error)
            ) from error
        finally:
            # Also after Ctrl-C: no work may continue in the background.
            future.cancel()

    def each(self, work: AsyncGenerator[T]) -> Iterator[T]:
        """Yield what an asynchronous generator yields, without a time limit."""
        try:
            while (item := self.run(_next(work), None)) is not None:
                yield item[0]
        finally:
            self.run(_closed(work))

    def close(self) -> None:
        """Cancel running work, then end the thread.

        A forked process has no such thread.
        """
        if self._loop.is_closed() or not self._thread.is_alive():
            return
        with suppress(TransientError):
            self.run(_end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()


async def _next(work: AsyncGenerator[T]) -> tuple[T] | None:
    async for value in work:
        return (value,)
    return None


async def _closed(work: AsyncGenerator[T]) -> None:
    """Close the generator; after Ctrl-C its last step may still be running."""
    while True:
        try:
            return await work.aclose()
        except RuntimeError:
            await asyncio.sleep(0.01)


async def _end_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@final
class ClusterClient:
    """A cluster and namespace, from the kubeconfig's current context or the surrounding pod."""

    def __init__(self, namespace: str = "", context: str = "") -> None:
        """Connect to the cluster; blocks. `namespace` defaults to that of the context.

        Raises SpecError, PermanentError if there is no cluster to talk to.
        """
        if reason := no_cluster():
            raise ClusterRefused(
                reason,
                hint=(
                    "name your kubeconfig in the variable KUBECONFIG; for a local job, omit the"
                    " Kubernetes options"
                ),
            )
        from elasticdl.cluster.kubernetes.apiserver import connect

        try:
            namespace_name(namespace)
        except ValueError as error:
            raise SpecError(f"--namespace {error}") from error
        self._thread = LoopThread("cluster")
        try:
            self.api: ApiServer = self._thread.run(connect(context))
        except BaseException:
            self._thread.close()
            raise
        self.namespace = namespace or self.api.namespace

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, T], limit_s: float | None = CALL_S) -> T:
        """See `LoopThread.run`."""
        return self._thread.run(work, limit_s)

    def each(self, work: AsyncGenerator[T]) -> Iterator[T]:
        """See `LoopThread.each`."""
        return self._thread.each(work)

    def close(self) -> None:
        """Drop all connections."""
        with suppress(ElasticDLError, RuntimeError):
            self._thread.run(self.api.close())
        self._thread.close()
