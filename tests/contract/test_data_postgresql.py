"""Tables of a real PostgreSQL, which listens on a socket in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from adbc_driver_postgresql import dbapi

from elasticdl.data import open_reader
from elasticdl.errors import UserError
from elasticdl.shard import Shard, ShardId

pytestmark = pytest.mark.contract
RECORDS = 5_000


def programs() -> Path | None:
    """The newest of Debian's folders with PostgreSQL's programs, or that on the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    on_path = shutil.which("postgres")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


@dataclass
class Server:
    programs: Path
    folder: Path

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off -c lc_messages=C"
        self._control("start", "--wait", f"--log={self.folder / 'log'}", f"--options={options}")

    def stop(self, mode: str = "immediate") -> None:
        self._control("stop", f"--mode={mode}")

    def make(self) -> None:
        # What is not given here comes from the environment.
        places = ("--locale=C.UTF-8", "--encoding=UTF8")
        self._run("initdb", "-D", "data", "--auth=trust", "--username=ed", "--no-sync", *places)

    def _control(self, verb: str, *arguments: str) -> None:
        self._run("pg_ctl", verb, "--pgdata=data", "--timeout=60", *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        # It refuses to run as root.
        as_user = {"user": "nobody", "group": "nogroup"} if os.getuid() == 0 else {}
        subprocess.run(
            [str(self.programs / program), *arguments],
            cwd=self.folder,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=120,
            **as_user,  # type: ignore[call-overload]
        )

    def execute(self, *statements: str) -> None:
        with dbapi.connect(f"postgresql:///postgres?host={self.folder}&user=ed") as connection:
            for statement in statements:
                with connection.cursor() as cursor:
                    cursor.execute(statement)
            connection.commit()

    def origin(self, table: str, database: str = "postgres") -> str:
        return f"postgresql:///{database}?host={self.folder}&user=ed&table={table}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = programs()
    if found is None:
        assert not os.environ.get("CI"), (
            "in CI these tests must run, but there is no PostgreSQL: see scripts/test-programs"
        )
        pytest.skip("there is no PostgreSQL: see scripts/test-programs")
    # Below pytest's own folder no other user may look, and the path of a socket is short.
    folder = Path(tempfile.mkdtemp(prefix="elasticdl-pg-", dir="/tmp"))
    if os.getuid() == 0:
        shutil.chown(folder, "nobody", "nogroup")
    server = Server(found, folder)
    try:
        server.make()
        server.start()
        try:
            server.execute(
                "CREATE TABLE t (id INT PRIMARY KEY, price NUMERIC(9, 2), word TEXT, raw BYTEA,"
                " yes BOOL, day DATE, list REAL[], u UUID)",
                "INSERT INTO t SELECT i, i / 4.0, 'w' || i, '\\x00ff', true, '1970-01-03', '{1,2}',"
                f" '00000000-0000-0000-0000-000000000001' FROM generate_series(1, {RECORDS}) AS i",
                "CREATE SCHEMA s",
                "CREATE TABLE padded (id CHAR(9))",
                "INSERT INTO padded SELECT 'w' || i FROM generate_series(1, 3) AS i",
                "CREATE SEQUENCE looks",
                # A sequence does not go back with a transaction that fails.
                "CREATE FUNCTION fails_once(state TEXT) RETURNS BOOL VOLATILE LANGUAGE plpgsql AS"
                " $$ BEGIN IF nextval('looks') = 1 THEN RAISE 'once' USING ERRCODE = state; END IF;"
                " RETURN true; END $$",
                *(
                    f"CREATE VIEW once_{state} AS SELECT id FROM t"
                    f" WHERE id <= 10 AND fails_once('{state}')"
                    for state in ("57P01", "40001", "53100", "08006", "57014", "42501")
                ),
                "CREATE VIEW s.v AS SELECT word AS k, id FROM t WHERE id <= 4500",
            )
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def blocks(origin: str, key: str, begin: int = 0, end: int | None = None) -> Iterator[Any]:
    """The records of a range, as a worker reads them."""
    counted = open_reader(origin, {"key": key}).sources()
    reader = open_reader(origin, {"key": key}, counted=counted)
    last = counted[0].records if end is None else end
    return iter(reader.read(Shard(ShardId(1), counted[0].name, begin, last)))


def test_values_and_a_range_are_those_of_the_table(server: Server) -> None:
    (block,) = blocks(server.origin("public.t"), "id", 4998, 5000)
    assert {name: values.tolist() for name, values in block.records.items()} == {
        "id": [4999, 5000],
        "price": [1249.75, 1250.0],
        "word": [b"w4999", b"w5000"],
        "raw": [b"\x00\xff"] * 2,
        "yes": [True, True],
        "day": [2, 2],
        "list": [[1.0, 2.0]] * 2,
        "u": [bytes(15) + b"\1"] * 2,
    }


def test_a_view_is_ordered_by_a_key_of_text(server: Server) -> None:
    everything = [i for block in blocks(server.origin("s.v"), "k") for i in block.records["id"]]
    assert sorted(everything) == list(range(1, 4501))
    found = [
        i for block in blocks(server.origin("s.v"), "k", 4090, 4100) for i in block.records["id"]
    ]
    assert found == everything[4090:4100]


@pytest.mark.parametrize(
    ("table", "database", "words"),
    [
        ("none", "postgres", 'relation "none" does not exist'),
        ("t%22;DROP TABLE t;--", "postgres", "does not exist"),
        ("t", "none", 'FATAL: database "none" does not exist'),
    ],
)
def test_what_the_server_refuses_is_reported_at_once(
    server: Server, table: str, database: str, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        open_reader(server.origin(table, database), {"key": "id"})


def test_a_key_that_a_parameter_is_not_compared_with_in_its_order_is_refused(
    server: Server,
) -> None:
    with pytest.raises(UserError, match='key "id" has 2 records from its first value') as caught:
        open_reader(server.origin("padded"), {"key": "id"}).sources()
    assert "TEXT or VARCHAR" in caught.value.hint


@pytest.mark.parametrize("state", ["57P01", "40001", "53100", "08006"])
def test_what_passes_is_repeated(server: Server, state: str) -> None:
    server.execute("SELECT setval('looks', 1, false)")
    (source,) = open_reader(server.origin(f"once_{state.lower()}"), {"key": "id"}).sources()
    assert source.records == 10


@pytest.mark.parametrize("state", ["57014", "42501"])
def test_what_does_not_pass_is_reported_at_once(server: Server, state: str) -> None:
    server.execute("SELECT setval('looks', 1, false)")
    with pytest.raises(UserError, match=r"database refuses it: .*once"):
        open_reader(server.origin(f"once_{state}"), {"key": "id"}).sources()


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_a_restart_of_the_server_repeats_and_loses_no_record(server: Server, mode: str) -> None:
    found = blocks(server.origin("t"), "id")
    ids = next(found).records["id"].tolist()
    server.stop(mode)
    server.start()
    for block in found:
        ids += block.records["id"].tolist()
    assert ids == list(range(1, RECORDS + 1))
