"""A stage for rings of real processes: a rendezvous, members that can be killed, and whoever says who is in the ring."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from elasticdl.rpc.conversation import RingForm
from elasticdl.rpc.rendezvous import Rendezvous, new_scope

LIMIT_S = 240.0
MEMBER = Path(__file__).parent / "ring_member.py"


@dataclass(eq=False)
class Member:
    """A member's process, and all that it told."""

    name: str
    process: asyncio.subprocess.Process
    errors_at: Path
    told: list[dict] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last_words(self) -> str:
        """The last line of its log."""
        return (self.errors_at.read_text().splitlines() or ["it printed nothing"])[-1]

    async def listen(self, log: Path) -> None:
        assert self.process.stdout is not None
        with log.open("a") as file:
            async for line in self.process.stdout:
                file.write(f"{self.name} {line.decode()}")
                if line.startswith(b"{"):
                    self.told.append({**json.loads(line), "heard": time.monotonic()})
                    self.changed.set()
        self.changed.set()

    async def until(self, found: Callable[[dict], bool]) -> dict:
        """The first thing told, of those before and those to come, for which `found` says yes."""
        begin = 0
        async with asyncio.timeout(LIMIT_S):
            while True:
                for one in self.told[begin:]:
                    if found(one):
                        return one
                begin = len(self.told)
                assert self.process.returncode is None, f"{self.name} ended with {self.process.returncode}: {self.last_words}"
                self.changed.clear()
                await self.changed.wait()

    async def step(self, version: int) -> dict:
        return await self.until(lambda one: one.get("step", 0) >= version)

    def losses(self) -> dict[int, float]:
        return {one["step"]: one["loss"] for one in self.told if "step" in one and one["loss"] is not None}


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
            **setting,
        }
        self.members: list[Member] = []
        self.progress: dict[tuple[int, int], int] = {}
        self._log = tmp_path / "members.log"
        self._rendezvous = Rendezvous()
        self._port = 0
        self._generation = 0
        self._scope = ""
        self._holders: set[str] = set()
        self._readers: list[asyncio.Task] = []
        self._all: list[Member] = []
        self._numbers = itertools.count()

    async def __aenter__(self) -> RingStage:
        self._port = await self._rendezvous.start("127.0.0.1")
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self._all:
            if member.process.returncode is None:
                member.process.kill()
            await member.process.wait()
        await asyncio.gather(*self._readers)
        await self._rendezvous.close()

    async def spawn(self) -> Member:
        """A member that is warm, and in no ring yet."""
        name = f"worker-{next(self._numbers)}"
        root = str(Path(__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
        errors_at = self._log.with_name(f"{name}.log")
        errors = errors_at.open("w")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(MEMBER), name, json.dumps(self.setting)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=root,
        )
        errors.close()
        member = Member(name, process, errors_at)
        self._all.append(member)
        self._readers.append(asyncio.create_task(member.listen(self._log)))
        await member.until(lambda one: one.get("ready", False))
        return member

    async def form(self, members: list[Member], *, wait: bool = True) -> None:
        """Publish a generation of these members, to them and to those of the one before."""
        self._generation += 1
        self._rendezvous.withdraw(self._scope)
        self._scope = new_scope(self._generation) if len(members) > 1 else ""
        if self._scope:
            self._rendezvous.open(self._scope)
        holders = tuple(rank for rank, one in enumerate(members) if one.name in self._holders)
        names = tuple(one.name for one in members)
        form = RingForm(self._generation, names, holders, 1, port=self._port, scope=self._scope)
        told = {id(one): one for one in (*members, *self.members)}.values()
        self.members = members
        for member in told:
            if member.process.returncode is None and member.process.stdin is not None:
                member.process.stdin.write((json.dumps(asdict(form)) + "\n").encode())
        if wait:
            generation = self._generation
            for member in members:
                await member.until(lambda one: one.get("entered", 0) >= generation)
            self._holders = set(names)

    def kill(self, *members: Member, with_signal: int = signal.SIGKILL) -> float:
        """Kill them; when that was (monotonic)."""
        for member in members:
            member.process.send_signal(with_signal)
        return time.monotonic()

    async def ends(self) -> list[dict]:
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
        """Of each version, the losses that anybody told."""
        found: dict[int, set[float]] = {}
        for member in self._all:
            for version, loss in member.losses().items():
                found.setdefault(version, set()).add(loss)
        return found
