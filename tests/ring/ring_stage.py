"""A stage for rings of real processes: a rendezvous, members that can be killed, and whoever says
who is in the ring.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from elasticdl.rpc.conversation import RingGeneration
from elasticdl.rpc.rendezvous import Rendezvous, new_scopes

LIMIT_S = 240.0
MEMBER = "tests.ring.ring_member"
FORKS = multiprocessing.get_context("forkserver")
"""Its server imports TensorFlow once for all members of all tests of this process."""


def prepare_server() -> None:
    """Start it as workers are started, but for what TensorFlow says of itself. Other tests of this
    process keep their variables.
    """
    FORKS.set_forkserver_preload([MEMBER])
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
        variables.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
        # Members end without Python's shutdown, which would delete AutoGraph's files.
        variables.setenv("TMPDIR", tempfile.gettempdir())
        forkserver.ensure_running()


def _enter(*arguments: object) -> None:
    """In the new process. Named here so that this one need not have TensorFlow."""
    importlib.import_module(MEMBER).run(*arguments)


class Process:
    """A process forked from the server, with pipes to it and from it."""

    def __init__(self, name: str, setting: dict[str, Any], errors_at: Path) -> None:
        hears, self._to = FORKS.Pipe(duplex=False)
        self._from, tells = FORKS.Pipe(duplex=False)
        self._forked = FORKS.Process(
            target=_enter, args=(name, setting, hears, tells, str(errors_at)), daemon=True
        )
        self._forked.start()
        for connection in (hears, tells):
            connection.close()
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._forked.sentinel, self._end)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._forked.sentinel)
        self._forked.join()
        self._ended.set()

    @property
    def returncode(self) -> int | None:
        return self._forked.exitcode if self._ended.is_set() else None

    async def wait(self) -> int | None:
        await self._ended.wait()
        return self.returncode

    def send_signal(self, number: int) -> None:
        assert self._forked.pid is not None
        os.kill(self._forked.pid, number)

    def tell(self, line: str) -> None:
        os.write(self._to.fileno(), line.encode())

    async def lines(self) -> AsyncIterator[bytes]:
        """What it prints, until it has ended."""
        reader = asyncio.StreamReader()
        pipe = os.fdopen(os.dup(self._from.fileno()), "rb")
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            async for line in reader:
                yield line
        finally:
            transport.close()

    def close(self) -> None:
        """After its end."""
        for connection in (self._to, self._from):
            connection.close()
        self._forked.close()


@dataclass(eq=False)
class Member:
    """A member's process, and all that it told."""

    name: str
    process: Process
    errors_at: Path
    told: list[dict[str, Any]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last_words(self) -> str:
        """The last line of its log."""
        return (self.errors_at.read_text().splitlines() or ["it printed nothing"])[-1]

    async def listen(self, log: Path) -> None:
        with log.open("a") as file:
            async for line in self.process.lines():
                file.write(f"{self.name} {line.decode()}")
                if line.startswith(b"{"):
                    self.told.append({**json.loads(line), "heard": time.monotonic()})
                    self.changed.set()
        self.changed.set()

    async def until(self, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first thing told, of those before and those to come, for which `found` says yes."""
        begin = 0
        async with asyncio.timeout(LIMIT_S):
            while True:
                for one in self.told[begin:]:
                    if found(one):
                        return one
                begin = len(self.told)
                assert self.process.returncode is None, (
                    f"{self.name} ended with {self.process.returncode}: {self.last_words}"
                )
                self.changed.clear()
                await self.changed.wait()

    async def step(self, version: int) -> dict[str, Any]:
        return await self.until(lambda one: one.get("step", 0) >= version)

    def losses(self) -> dict[int, float]:
        return {
            one["step"]: one["loss"]
            for one in self.told
            if "step" in one and one["loss"] is not None
        }


class RingStage:
    """The test is the master: it decides who is in the ring, and tells them."""

    def __init__(self, tmp_path: Path, **setting: object) -> None:
        self.setting = {
            "model": "exact",
            "records": 96,
            "batch": 8,
            "epochs": 2,
            "delay_s": 0.0,
            "long": {},
            "hung_s": 600.0,
            "virtual_workers": 0,
            **setting,
        }
        self.members: list[Member] = []
        self.progress: dict[tuple[int, int], int] = {}
        self._log = tmp_path / "members.log"
        self._rendezvous = Rendezvous()
        self._port = 0
        self._generation = 0
        self._scopes: tuple[str, ...] = ()
        self._holders: set[str] = set()
        self._readers: list[asyncio.Task[Any]] = []
        self._all: list[Member] = []
        self._numbers = itertools.count()

    async def __aenter__(self) -> RingStage:
        prepare_server()
        self._port = await self._rendezvous.start("127.0.0.1")
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self._all:
            with suppress(
                ProcessLookupError
            ):  # it has just ended by itself, which is seen by `wait` only
                if member.process.returncode is None:
                    member.process.send_signal(signal.SIGKILL)
            await member.process.wait()
        await asyncio.gather(*self._readers)
        for member in self._all:
            member.process.close()
        await self._rendezvous.close()

    async def spawn(self) -> Member:
        """A member that is warm, and in no ring yet."""
        name = f"worker-{next(self._numbers)}"
        errors_at = self._log.with_name(f"{name}.log")
        member = Member(name, Process(name, self.setting, errors_at), errors_at)
        self._all.append(member)
        self._readers.append(asyncio.create_task(member.listen(self._log)))
        await member.until(lambda one: one.get("ready", False))
        return member

    async def form(self, members: list[Member], *, wait: bool = True) -> None:
        """Publish a generation of these members, to them and to those of the one before."""
        self._generation += 1
        self._rendezvous.withdraw(self._scopes)
        self._scopes = new_scopes(self._generation, len(members))
        self._rendezvous.open(self._scopes)
        holders = tuple(rank for rank, one in enumerate(members) if one.name in self._holders)
        names = tuple(member.name for member in members)
        generation = RingGeneration(self._generation, names, holders, 1, port=self._port)
        scopes = dict(zip(names, self._scopes, strict=False))
        told = {id(one): one for one in (*members, *self.members)}.values()
        self.members = members
        for member in told:
            if member.process.returncode is None:
                mine = replace(generation, scope=scopes.get(member.name, ""))
                member.process.tell(json.dumps(asdict(mine)) + "\n")
        if wait:
            number = self._generation
            for member in members:
                await member.until(lambda one: one.get("entered", 0) >= number)
            self._holders = set(names)

    def kill(self, *members: Member, with_signal: int = signal.SIGKILL) -> float:
        """Kill them; when that was (monotonic)."""
        for member in members:
            member.process.send_signal(with_signal)
        return time.monotonic()

    async def ends(self) -> list[dict[str, Any]]:
        """What the members of the ring told last."""
        return [await member.until(lambda one: "end" in one) for member in self.members]

    def offsets(self) -> dict[tuple[int, int], int]:
        """(shard, attempt) -> the most that anybody reported."""
        found: dict[tuple[int, int], int] = {}
        for one in (one for member in self._all for one in member.told if "offset" in one):
            key = (one["shard"], one["attempt"])
            found[key] = max(found.get(key, 0), one["offset"])
        return found

    def losses(self) -> dict[int, set[float]]:
        """The losses of each version that any member reported."""
        found: dict[int, set[float]] = {}
        for member in self._all:
            for version, loss in member.losses().items():
                found.setdefault(version, set()).add(loss)
        return found
