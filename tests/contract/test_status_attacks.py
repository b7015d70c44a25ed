"""The page under attack: other sites, other names, no token, odd paths, long logs."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from elasticdl.master.status import access
from elasticdl.master.status.limits import PageLimits
from elasticdl.tokens import bulk_key, process_token, proof_to_master, viewer_token
from tests.contract.status_stage import BEARER, TOKEN, Page, Stage, browser, get, paged, raw, staged

pytestmark = [pytest.mark.contract, pytest.mark.timeout(60)]
NEEDS_TOKEN = (
    ("GET", "/api/v1/status"),
    ("GET", "/api/v1/snapshot"),
    ("GET", "/api/v1/events"),
    ("GET", "/api/v1/timeline"),
    ("GET", "/api/v1/series"),
    ("GET", "/api/v1/shards"),
    ("GET", "/api/v1/logs"),
    ("GET", "/api/v1/logs/worker-0"),
    ("GET", "/api/v1/logs/worker-0/search?q=x"),
    ("GET", "/api/v1/stream"),
    ("GET", "/metrics"),
    ("POST", "/api/v1/stop"),
    ("POST", "/api/v1/scale"),
    ("POST", "/api/v1/replace"),
    ("POST", "/api/v1/checkpoint"),
    ("GET", "/no/such/thing"),
)


# who may ask


@pytest.mark.parametrize(
    "token",
    [
        None,
        "",
        "wrong",
        TOKEN[:-1],
        TOKEN + "x",
        "ÿ" * 30,
        "a" * 4000,
        process_token(TOKEN, "worker-0"),
        process_token(TOKEN, "ps-0"),
        proof_to_master(TOKEN),
        bulk_key(TOKEN, 0),
    ],
)
async def test_without_the_right_token_nothing_is_reported_and_nothing_is_done(
    tmp_path: Path, token: str | None
) -> None:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    cookies = (
        {}
        if token is None
        else {access.AccessGuard(TOKEN).cookie_name: token.encode("ascii", "ignore").decode()}
    )
    async with staged(tmp_path) as stage:
        for options in ({"headers": headers}, {"cookies": cookies}):
            async with browser(
                stage, **options, cookie_jar=aiohttp.CookieJar(unsafe=True)
            ) as session:
                for method, path in NEEDS_TOKEN:
                    body: dict[str, Any] = (
                        {"json": {"min": 9, "max": 9}} if method == "POST" else {}
                    )
                    async with session.request(method, path, **body) as answer:
                        assert answer.status == 401, path
                        assert "iris" not in await answer.text()
                async with session.get("/") as answer:
                    # Browsers are given the way in, and no error that they would tell people
                    # of.
                    assert (
                        answer.status == (401 if options.get("headers") else 200)
                        and "iris" not in await answer.text()
                    )
        assert stage.core.status().scale.high == 4 and not stage.core.status().outcome


async def test_the_token_is_given_once_and_the_cookie_opens_this_page_only(tmp_path: Path) -> None:
    async with (
        staged(tmp_path) as stage,
        browser(stage, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
    ):
        async with session.post("/session", json={"token": "wrong"}) as answer:
            assert answer.status == 401 and "Set-Cookie" not in answer.headers
        async with session.post("/session", json={"token": TOKEN}) as answer:
            assert answer.status == 204
            cookie = answer.headers["Set-Cookie"]
        assert (
            "HttpOnly" in cookie
            and "SameSite=Strict" in cookie
            and "Path=/" in cookie
            and TOKEN not in cookie
        )
        async with session.get("/") as answer:
            assert answer.status == 200 and TOKEN not in await answer.text()
        async with session.get("/api/v1/status") as answer:
            assert answer.status == 200
        value = cookie.partition("=")[2].partition(";")[0]
        async with (
            browser(stage, headers={"Authorization": f"Bearer {value}"}) as other,
            other.get("/api/v1/status") as answer,
        ):
            assert answer.status == 401
        async with session.delete("/session") as answer:
            assert answer.status == 204
        async with session.get("/api/v1/status") as answer:
            assert answer.status == 401


async def test_the_viewers_token_shows_everything_and_changes_nothing(tmp_path: Path) -> None:
    viewer = viewer_token(TOKEN)

    async def looks(stage: Stage, session: aiohttp.ClientSession) -> None:
        for method, path in NEEDS_TOKEN:
            body: dict[str, Any] = {"json": {"min": 9, "max": 9}} if method == "POST" else {}
            async with session.request(method, path, **body) as answer:
                if method == "POST":
                    assert answer.status == 403, path
                    assert "for reading only" in await answer.text()
                else:
                    assert answer.status == (404 if path.startswith("/no/") else 200), path
        async with session.get("/") as answer:
            assert answer.status == 200 and "data-read-only" in await answer.text()
        assert stage.core.status().scale.high == 4 and not stage.core.status().outcome

    async with staged(tmp_path) as stage:
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs/worker-0.log").write_text("x\n")
        async with browser(stage, headers={"Authorization": f"Bearer {viewer}"}) as session:
            await looks(stage, session)
        async with browser(stage, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            async with session.post("/session", json={"token": viewer}) as answer:
                assert answer.status == 204
            await looks(stage, session)
        async with browser(stage, headers=BEARER) as session, session.get("/") as answer:
            assert "data-read-only" not in await answer.text()


async def test_a_cookie_is_worth_nothing_after_the_sign_out_in_no_window(tmp_path: Path) -> None:
    async with (
        staged(tmp_path) as stage,
        browser(stage, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
    ):
        async with session.post("/session", json={"token": TOKEN}) as answer:
            name, _, value = answer.headers["Set-Cookie"].partition(";")[0].partition("=")
        jar = aiohttp.DummyCookieJar()
        kept = {"Cookie": f"{name}={value}"}
        async with browser(stage, headers=kept, cookie_jar=jar) as thief:
            async with thief.get("/api/v1/status") as answer, thief.get("/api/v1/stream") as stream:
                assert (answer.status, stream.status) == (200, 200)
                async with session.delete("/session") as end:
                    assert end.status == 204
                await stream.read()  # It ends.
            async with thief.get("/api/v1/status") as answer:
                assert answer.status == 401
        async with browser(stage, headers=BEARER) as owner, owner.get("/api/v1/status") as answer:
            assert answer.status == 200


async def test_a_session_does_not_outlive_its_master_and_the_oldest_makes_room(
    tmp_path: Path,
) -> None:
    async with (
        staged(tmp_path) as stage,
        browser(stage, cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        cookies = []
        for _ in range(access.MOST_SESSIONS + 1):
            async with session.post("/session", json={"token": TOKEN}) as answer:
                cookies.append(answer.headers["Set-Cookie"].partition(";")[0])
        assert len(set(cookies)) == len(cookies)
        for cookie, status in ((cookies[0], 401), (cookies[1], 200), (cookies[-1], 200)):
            async with session.get("/api/v1/status", headers={"Cookie": cookie}) as answer:
                assert answer.status == status
    async with (
        staged(tmp_path / "next") as stage,
        browser(stage, headers={"Cookie": cookies[-1]}) as session,
        session.get("/api/v1/status") as answer,
    ):
        assert answer.status == 401


async def test_viewers_who_sign_in_again_and_again_sign_no_owner_out(tmp_path: Path) -> None:
    async with (
        staged(tmp_path) as stage,
        browser(stage, cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        async with session.post("/session", json={"token": TOKEN}) as answer:
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
        for _ in range(access.MOST_SESSIONS + 1):
            async with session.post("/session", json={"token": viewer_token(TOKEN)}) as answer:
                assert answer.status == 204
        async with session.get("/api/v1/status", headers={"Cookie": cookie}) as answer:
            assert answer.status == 200


def test_cookies_of_two_jobs_on_one_machine_do_not_meet() -> None:
    assert access.AccessGuard("one").cookie_name != access.AccessGuard("two").cookie_name


async def test_the_form_without_a_script_signs_in_too(tmp_path: Path) -> None:
    async with (
        staged(tmp_path) as stage,
        browser(stage, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
    ):
        # As a browser sends it under `Referrer-Policy: no-referrer`.
        sent = {"Origin": "null", "Sec-Fetch-Site": "same-origin"}
        async with session.post("/session", data={"token": "wrong"}, headers=sent) as answer:
            assert answer.status == 401 and "Wrong token" in await answer.text()
        async with session.post(
            "/session", data={"token": f" {TOKEN}\n"}, headers=sent, allow_redirects=False
        ) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/")
        async with session.get("/") as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("origin", "site"),
    [
        ("https://evil.example", None),
        ("http://127.0.0.1", None),
        ("http://127.0.0.1:1", "same-site"),
        ("null", None),
        ("null", "cross-site"),
        ("http://localhost:PORT", None),
        ("http://127.0.0.1:PORT.evil.example", None),
        ("ftp://127.0.0.1:PORT", None),
        (None, "cross-site"),
        (None, "same-site"),
    ],
)
async def test_another_site_is_refused_whatever_the_browser_brings_along(
    page: Page, origin: str | None, site: str | None
) -> None:
    stage, session = page
    headers = {"Origin": origin.replace("PORT", str(stage.port))} if origin else {}
    headers |= {"Sec-Fetch-Site": site} if site else {}
    for path, body in (
        ("/api/v1/scale", {"min": 9, "max": 9}),
        ("/api/v1/stop", {}),
        ("/session", {"token": TOKEN}),
    ):
        async with session.post(path, json=body, headers=headers) as answer:
            assert answer.status == 403 and "Set-Cookie" not in answer.headers
    assert stage.core.status().scale.high == 4 and not stage.core.status().outcome


async def test_our_own_page_is_let_through_behind_whatever_forwards_to_it(page: Page) -> None:
    stage, session = page
    for host, origin in (
        (stage.host, f"http://{stage.host}"),
        ("localhost:8080", "http://localhost:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("iris-master:50003", "http://iris-master:50003"),
        ("IRIS-master", "https://iris-master"),
    ):
        async with session.post(
            "/api/v1/checkpoint", json={}, headers={"Host": host, "Origin": origin}
        ) as answer:
            assert answer.status == 202, host


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:PORT", "127.0.0.1.evil.example",
        "localhost.evil.example:PORT", "", "iris-master.evil.example", "2130706433", "[::2]", "[",
        "0.0.0.0:PORT", "127.0.0.2:PORT",
    ],
)  # fmt: skip
async def test_a_name_of_somebody_else_that_was_made_to_lead_here_is_refused(
    page: Page, host: str
) -> None:
    stage, _ = page
    for path in ("/", "/api/v1/status", "/static/x"):
        answer = await raw(stage, get(path, host.replace("PORT", str(stage.port))))
        assert answer.startswith(
            (b"HTTP/1.1 421 ", b"HTTP/1.1 400 ")
        ) and b"iris" not in answer.replace(host.encode(), b"")


async def test_a_request_without_a_host_is_refused(page: Page) -> None:
    stage, _ = page
    for version in ("1.0", "1.1"):
        answer = await raw(
            stage,
            f"GET /api/v1/status HTTP/{version}\r\nAuthorization: Bearer {TOKEN}\r\nConnection:"
            " close\r\n\r\n".encode(),
        )
        assert answer.split(b" ", 2)[1] in (b"421", b"400")


async def test_every_answer_tells_browsers_to_trust_nothing_else(page: Page) -> None:
    stage, session = page
    for path, code in (
        ("/", 200),
        ("/api/v1/status", 200),
        ("/static/none.js", 404),
        ("/none", 404),
        ("/metrics", 200),
        ("/api/v1/shards?limit=0", 400),
    ):
        async with session.get(path) as answer:
            assert answer.status == code
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'; ")
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert not [
                name for name in answer.headers if name.lower().startswith("access-control")
            ]
            assert "aiohttp" not in answer.headers["Server"]
    async with browser(stage) as stranger, stranger.get("/") as answer:
        assert answer.status == 200 and answer.headers["Content-Security-Policy"].startswith(
            "default-src 'self'"
        )


NONSENSE = {
    "no request at all": (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03<script>alert(1)</script>\r\n\r\n"
    ),
    "no version": b"GET /<script>alert(1)</script>\r\n\r\n",
    "another version": b"GET / HTTP/9.9\r\nHost: HOST\r\n\r\n",
    "a head without a colon": b"GET / HTTP/1.1\r\nHost: HOST\r\n<script>alert(1)</script>\r\n\r\n",
    "a head with a zero": b"GET / HTTP/1.1\r\nHost: HOST\r\nX: a\x00b\r\n\r\n",
    "a head that is too long": b"GET / HTTP/1.1\r\nHost: HOST\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    "too many heads": b"GET / HTTP/1.1\r\nHost: HOST\r\n" + b"X: y\r\n" * 300 + b"\r\n",
    "an address that is too long": b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "two lengths": (
        b"POST /session HTTP/1.1\r\nHost: HOST\r\nContent-Length: 3\r\nContent-Length:"
        b" 4\r\n\r\nabcd"
    ),
    "a length and chunks": (
        b"POST /session HTTP/1.1\r\nHost: HOST\r\nContent-Length: 3\r\nTransfer-Encoding:"
        b" chunked\r\n\r\n0\r\n\r\n"
    ),
    "broken chunks": (
        b"POST /session HTTP/1.1\r\nHost: HOST\r\nContent-Type:"
        b" application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    ),
    "an expectation": (
        b"POST /session HTTP/1.1\r\nHost: HOST\r\nExpect: wonders\r\nContent-Length:"
        b" 0\r\nConnection: close\r\n\r\n"
    ),
    "an expectation that is no text": (
        b"POST /session HTTP/1.1\r\nHost: HOST\r\nExpect: 100-contin\xff\r\nContent-Length:"
        b" 0\r\n\r\n"
    ),
    "a foreign host": b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
}


@pytest.mark.parametrize("what", NONSENSE)
async def test_what_makes_no_sense_is_answered_with_the_same_heads_and_not_repeated(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with paged(tmp_path) as (stage, _):
        answer = await raw(stage, NONSENSE[what].replace(b"HOST", stage.host.encode()))
        head, _, body = answer.partition(b"\r\n\r\n")
        lines = head.decode().lower().splitlines()
        assert lines[0].split()[1].startswith("4"), lines[0]
        for name, value in access.HEADERS.items():
            assert lines.count(f"{name}: {value}".lower()) == 1, name
        assert json.loads(body)["error"]["message"]
        assert b"alert" not in answer and b"aiohttp" not in answer.lower() and b"xxx" not in answer
    assert caplog.records == []


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "GET"])
async def test_other_methods_do_nothing(page: Page, method: str) -> None:
    stage, _ = page
    for verb in ("stop", "scale", "replace", "checkpoint"):
        answer = await raw(
            stage, get(f"/api/v1/{verb}", stage.host).replace(b"GET", method.encode(), 1)
        )
        assert answer.split(b" ", 2)[1] in (b"405", b"400", b"404"), answer
    if method != "GET":
        answer = await raw(
            stage, get("/api/v1/status", stage.host).replace(b"GET", method.encode(), 1)
        )
        assert answer.split(b" ", 2)[1] in (b"405", b"400", b"404"), answer
    assert not stage.core.status().outcome


async def test_forms_of_other_sites_cannot_look_like_json(page: Page) -> None:
    stage, session = page
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
    ):
        async with session.post(
            "/api/v1/stop", data=b'{"reason": "x"}', headers={"Content-Type": kind}
        ) as answer:
            assert answer.status == 415
    assert not stage.core.status().outcome


# how much one may ask


async def test_a_body_that_is_too_long_is_not_read(page: Page) -> None:
    stage, session = page
    for path in ("/api/v1/stop", "/session"):
        body = json.dumps({"reason": "x" * (2 * access.MOST_BODY_BYTES)}).encode()
        async with session.post(
            path, data=body, headers={"Content-Type": "application/json"}
        ) as answer:
            assert answer.status == 413
    claims = (
        f"POST /api/v1/stop HTTP/1.1\r\nHost: {stage.host}\r\nAuthorization: Bearer"
        f" {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n"
    )
    told = await raw(stage, claims.encode() + b"x" * (1 << 20), at_most=64)
    assert told.startswith(b"HTTP/1.1 413 ")
    for nonsense in (b"[" * 60_000, b"\xff\xfe", b'{"reason": "\\ud800"}', b"NaN", b"1e999999"):
        async with session.post(
            "/api/v1/stop", data=nonsense, headers={"Content-Type": "application/json"}
        ) as answer:
            assert answer.status in (202, 400), nonsense[:20]
    async with session.get("/api/v1/status") as answer:
        assert answer.status == 200


async def test_a_body_that_never_comes_is_given_up(tmp_path: Path) -> None:
    async with paged(tmp_path, limits=PageLimits(body_s=0.2)) as (stage, _session):
        head = (
            f"POST /api/v1/stop HTTP/1.1\r\nHost: {stage.host}\r\nAuthorization: Bearer"
            f" {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{{"
        )
        assert (await raw(stage, head.encode(), at_most=64)).startswith(b"HTTP/1.1 408 ")


async def test_connections_that_ask_for_nothing_are_hung_up_on_and_keep_nobody_out(
    tmp_path: Path,
) -> None:
    async with paged(tmp_path, limits=PageLimits(speak_within_s=1.0, most_connections=20)) as (
        stage,
        _session,
    ):
        opened = [await asyncio.open_connection("127.0.0.1", stage.port) for _ in range(40)]
        ends = await asyncio.gather(
            *(reader.read(1) for reader, _ in opened), return_exceptions=True
        )
        assert all(end == b"" or isinstance(end, ConnectionError) for end in ends)
        for _, writer in opened:
            writer.close()
        async with (
            browser(stage, headers=BEARER) as session,
            session.get("/api/v1/status") as answer,
        ):
            assert answer.status == 200


async def test_strangers_that_keep_coming_keep_nobody_with_the_token_out(tmp_path: Path) -> None:
    async with paged(tmp_path, limits=PageLimits(speak_within_s=60.0, most_connections=40)) as (
        stage,
        session,
    ):
        held: list[asyncio.StreamWriter] = []

        async def flood() -> None:
            while True:
                _, writer = await asyncio.open_connection("127.0.0.1", stage.port)
                writer.write(b"GET / HTTP/1.1\r\n")
                held.append(writer)
                await asyncio.sleep(0.001)

        async with session.get("/api/v1/status") as answer:
            assert answer.status == 200
        flooding = asyncio.create_task(flood())
        try:
            async with asyncio.timeout(30):
                while len(held) < 100:
                    await asyncio.sleep(0.01)
            for _ in range(20):
                async with (
                    browser(stage, headers=BEARER) as other,
                    other.get("/api/v1/status") as answer,
                ):
                    assert answer.status == 200
            async with session.get("/api/v1/status") as answer:
                assert answer.status == 200
        finally:
            flooding.cancel()
            for writer in held:
                writer.transport.abort()


# names and paths


TRAVERSALS = (
    "../secret", "..%2fsecret", "%2e%2e%2fsecret", "..%252fsecret", "....//secret",
    "%2fetc%2fpasswd", "..\\secret", "worker-0%00", "worker-0.log", "%c0%ae%c0%ae%2fsecret",
    "", ".", "..", "*", "a" * 3000,
)  # fmt: skip


@asynccontextmanager
async def with_logs(directory: Path) -> AsyncIterator[Stage]:
    """A page of a job of this machine, whose logs are files."""
    logs = directory / "logs"
    logs.mkdir()
    (logs / "worker-0.log").write_bytes(
        b"first line\n<script>alert(1)</script>\n\x1b[31mred\xff\nlast line\n"
    )
    (directory / "secret.log").write_text("the secret")
    (directory / "secret").write_text("the secret")
    (logs / "worker-9.log").symlink_to(directory / "secret")
    async with staged(directory) as stage:
        yield stage


@pytest.mark.parametrize("name", TRAVERSALS)
@pytest.mark.parametrize(
    "path", ["/api/v1/logs/{}", "/api/v1/logs/{}/search?q=secret", "/static/{}"]
)
async def test_names_are_looked_up_and_lead_nowhere_else(
    tmp_path: Path, name: str, path: str
) -> None:
    async with with_logs(tmp_path) as stage:
        answer = await raw(stage, get(path.format(name), stage.host))
        code = answer.split(b" ", 2)[1]
        assert code in (b"404", b"400") or (code == b"200" and name in (".",)), answer[:300]
        assert b"the secret" not in answer and b"root:" not in answer


async def test_a_link_among_the_logs_is_not_followed(tmp_path: Path) -> None:
    async with with_logs(tmp_path) as stage, browser(stage, headers=BEARER) as session:
        async with session.get("/api/v1/logs") as answer:
            assert [log["process"] for log in (await answer.json())["logs"]] == ["worker-0"]
        async with session.get("/api/v1/logs/worker-9") as answer:
            assert answer.status == 404


async def test_a_script_in_a_log_or_a_name_stays_text(tmp_path: Path) -> None:
    async with with_logs(tmp_path) as stage, browser(stage, headers=BEARER) as session:
        async with session.get("/api/v1/logs/worker-0?start=0") as answer:
            assert (
                answer.content_type == "application/json"
                and answer.headers["X-Content-Type-Options"] == "nosniff"
            )
            found = await answer.json()
        assert "<script>alert(1)</script>" in found["text"] and found["end"] == found["size"]
        async with session.get("/api/v1/logs/worker-0/search?q=%3CSCRIPT") as answer:
            assert [match["line"] for match in (await answer.json())["matches"]] == [
                "<script>alert(1)</script>"
            ]
        async with session.get("/api/v1/logs/<script>alert(1)<%2Fscript>") as answer:
            assert answer.status == 404 and answer.content_type == "application/json"
        stage.chronicle.append(
            {"at": 1.0, "at_s": 1.0}, {"kind": "job", "text": "</script><script>alert(1)</script>"}
        )
        async with session.get("/") as answer:
            page = await answer.text()
        assert "<script>alert(1)" not in page and "\\u003cscript>alert(1)" in page


# a log of ten gigabytes


async def test_a_log_of_ten_gigabytes_is_harmless(tmp_path: Path) -> None:
    async with with_logs(tmp_path) as stage, browser(stage, headers=BEARER) as session:
        huge = tmp_path / "logs" / "worker-1.log"
        with huge.open("wb") as file:
            file.truncate(10 << 30)
            file.seek(10 << 30)
            file.write(b"\nthe needle at the end\n")
        size = huge.stat().st_size
        tracemalloc.start()
        try:
            async with session.get("/api/v1/logs/worker-1?start=-100&limit=100") as answer:
                part = await answer.json()
            assert (
                part["text"].endswith("\nthe needle at the end\n")
                and part["end"] == part["size"] == size
            )
            async with session.get("/api/v1/logs/worker-1?start=0&limit=1048576") as answer:
                assert (await answer.json())["end"] == 1 << 20
            async with session.get("/api/v1/logs/worker-1?limit=1048577") as answer:
                assert answer.status == 400
            async with session.get("/api/v1/logs/worker-1/search?q=needle") as answer:
                found = await answer.json()
            assert found["more"] and found["matches"] == [] and 0 < found["searched_to"] <= 66 << 20
            # One request searches for a second at most, however far it gets: the next one goes
            # on.
            found = {"searched_to": size - (3 << 20), "more": True}
            while found["more"]:
                async with session.get(
                    f"/api/v1/logs/worker-1/search?q=NEEDLE&start={found['searched_to']}"
                ) as answer:
                    found = await answer.json()
            assert [match["line"] for match in found["matches"]] == ["the needle at the end"]
            assert (found["searched_to"], found["more"]) == (size, False)
            assert tracemalloc.get_traced_memory()[1] < 48 << 20
        finally:
            tracemalloc.stop()


async def test_a_log_is_followed_by_its_offset_and_letters_stay_whole(tmp_path: Path) -> None:
    async with with_logs(tmp_path) as stage, browser(stage, headers=BEARER) as session:
        text = "αβγ😀 line\n" * 200
        (tmp_path / "logs" / "worker-2.log").write_text(text, encoding="utf-8")
        at, read = 0, ""
        while True:
            async with session.get(f"/api/v1/logs/worker-2?start={at}&limit=7") as answer:
                part = await answer.json()
            assert part["start"] == at
            read, at = read + part["text"], part["end"]
            if at == part["size"]:
                break
        assert read == text


async def test_who_has_no_token_keeps_no_connection_and_writes_nothing_into_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with staged(tmp_path) as stage, browser(stage) as session:
        for method, path, more in (
            ("GET", "/", {}),
            ("GET", "/static/nothing", {}),
            ("GET", "/no/such/thing", {}),
            ("POST", "/session", {"json": {"token": "wrong"}}),
            (
                "POST",
                "/session",
                {
                    "data": b"abcde",
                    "headers": {"Content-Encoding": "gzip", "Content-Type": "application/json"},
                },
            ),
        ):
            async with session.request(method, path, **more) as answer:
                assert answer.headers.get("Connection") == "close", path
                assert answer.status < 500, await answer.text()
        async with session.get("/api/v1/status", headers=BEARER) as answer:
            assert answer.status == 200 and answer.headers.get("Connection") != "close"
    assert caplog.records == []
