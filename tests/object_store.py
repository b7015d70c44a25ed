"""An S3 server with an object store's faults: latency, 503, torn connections, silence.

It serves what S3's own clients send for objects, listings and uploads in parts, and refuses unknown
access keys. It does not verify signatures. Objects are in memory.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest

KEY = "loopback"
SECRET = "loopback-secret"
_PAGE = 50
"""Entries of a page of a listing: small, so that tests see several."""


@dataclass(frozen=True)
class Stored:
    data: bytes
    etag: str
    wall_s: float


@dataclass
class Faults:
    """What goes wrong now; each counter is used up by that many requests.

    Nobody may write objects whose keys end with `read_only`, unless it is ''.
    """

    latency_s: float = 0.0
    unavailable: int = 0
    torn: int = 0
    silent: int = 0
    down: bool = False
    read_only: str = ""


@dataclass
class ObjectStore:
    """The server's content; `requests` and `bytes_sent` count what clients asked for."""

    address: str = ""
    faults: Faults = field(default_factory=Faults)
    buckets: dict[str, dict[str, Stored]] = field(default_factory=lambda: {"bucket": {}})
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    bytes_sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    ended: threading.Event = field(default_factory=threading.Event)

    def put(self, key: str, data: bytes, bucket: str = "bucket") -> str:
        """Write an object; returns its address."""
        etag = f'"{md5(data, usedforsecurity=False).hexdigest()}-{next(self.numbers)}"'
        with self.lock:
            self.buckets[bucket][key] = Stored(data, etag, time.time())
        return f"s3://{bucket}/{key}"

    def get(self, key: str, bucket: str = "bucket") -> bytes:
        return self.buckets[bucket][key].data

    def keys(self, prefix: str = "", bucket: str = "bucket") -> list[str]:
        with self.lock:
            return sorted(key for key in self.buckets[bucket] if key.startswith(prefix))

    def environment(self) -> dict[str, str]:
        """The variables by which clients find the server."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def take(self, fault: str) -> bool:
        with self.lock:
            left = getattr(self.faults, fault)
            setattr(self.faults, fault, max(0, left - 1))
            return bool(left > 0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Without these, headers wait for an acknowledgement before the body follows.
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    store: ObjectStore

    def handle_expect_100(self) -> bool:
        # In the buffer it would cost the client its second of patience for each upload.
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with suppress(ConnectionError, TimeoutError):
            super().handle()

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _serve(self) -> None:
        body = self._body()
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(url.query, True).items()}
        self.store.requests.append(f"{self.command} {bucket}/{key}")
        if self.store.faults.latency_s:
            time.sleep(self.store.faults.latency_s)  # a server's own slowness, not a test's wait
        if self.store.take("silent"):
            self.store.ended.wait(60)
            self.close_connection = True
            return
        if self.store.faults.down or self.store.take("unavailable"):
            self._error(503, "ServiceUnavailable")
        elif not self._is_allowed(key):
            self._error(403, "AccessDenied")
        elif bucket not in self.store.buckets:
            self._error(404, "NoSuchBucket")
        else:
            self._object(bucket, key, query, body) if key else self._bucket(bucket, query, body)

    def _is_allowed(self, key: str) -> bool:
        read_only = self.store.faults.read_only
        if read_only and self.command == "PUT" and key.endswith(read_only):
            return False
        return f"Credential={KEY}/" in self.headers.get("Authorization", "")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return body
        parts = []
        while body:
            head, _, body = body.partition(b"\r\n")
            size = int(head.split(b";")[0], 16)
            if size == 0:
                break
            parts.append(body[:size])
            body = body[size + 2 :]
        return b"".join(parts)

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _bucket(self, bucket: str, query: dict[str, str], body: bytes) -> None:
        if self.command == "POST" and "delete" in query:
            for found in ElementTree.fromstring(body).iter():
                if found.tag.endswith("Key"):
                    with self.store.lock:
                        self.store.buckets[bucket].pop(found.text or "", None)
            self._xml("<DeleteResult/>")
        elif self.command == "GET":
            self._xml(self._listing(bucket, query))
        else:
            self._answer(200)

    def _listing(self, bucket: str, query: dict[str, str]) -> str:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        keys = [
            key
            for key in self.store.keys(prefix, bucket)
            if key > query.get("continuation-token", "")
        ]
        size = min(_PAGE, int(query.get("max-keys", _PAGE)))
        contents: list[str] = []
        folders: list[str] = []
        last = ""
        for key in keys:
            if len(contents) + len(folders) == size:
                break
            last = key
            rest = key[len(prefix) :]
            folder = prefix + rest.partition(delimiter)[0] + delimiter if delimiter else ""
            if delimiter and delimiter in rest:
                if folder not in folders:
                    folders.append(folder)
                continue
            kept = self.store.buckets[bucket][key]
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(kept.wall_s))
            contents.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{stamp}</LastModified>"
                f"<ETag>{escape(kept.etag)}</ETag><Size>{len(kept.data)}</Size></Contents>"
            )
        more = bool(keys) and last != keys[-1]
        return (
            f"<ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(contents) + len(folders)}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>"
            + (f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else "")
            + "".join(contents)
            + "".join(
                f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
                for folder in folders
            )
            + "</ListBucketResult>"
        )

    def _object(self, bucket: str, key: str, query: dict[str, str], body: bytes) -> None:
        match self.command:
            case "PUT" if "uploadId" in query:
                self.store.uploads[query["uploadId"]][int(query["partNumber"])] = body
                self._answer(200, {"ETag": f'"{len(body)}"'})
            case "PUT":
                self.store.put(key, body, bucket)
                self._answer(200, {"ETag": self.store.buckets[bucket][key].etag})
            case "POST" if "uploads" in query:
                name = str(next(self.store.numbers))
                self.store.uploads[name] = {}
                self._xml(
                    f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId>"
                    "</InitiateMultipartUploadResult>"
                )
            case "POST":
                parts = self.store.uploads.pop(query["uploadId"])
                self.store.put(key, b"".join(parts[number] for number in sorted(parts)), bucket)
                etag = escape(self.store.buckets[bucket][key].etag)
                self._xml(
                    "<CompleteMultipartUploadResult>"
                    f"<ETag>{etag}</ETag></CompleteMultipartUploadResult>"
                )
            case "DELETE" if "uploadId" in query:
                self.store.uploads.pop(query["uploadId"], None)
                self._answer(204)
            case "DELETE":
                with self.store.lock:
                    self.store.buckets[bucket].pop(key, None)
                self._answer(204)
            case _:
                self._read(bucket, key)

    def _read(self, bucket: str, key: str) -> None:
        kept = self.store.buckets[bucket].get(key)
        if kept is None:
            self._error(404, "NoSuchKey")
            return
        facts = {
            "ETag": kept.etag,
            "Last-Modified": formatdate(kept.wall_s, usegmt=True),
            "Accept-Ranges": "bytes",
        }
        wanted = self.headers.get("Range", "")
        if not wanted or self.command == "HEAD":
            self._answer(200, facts, kept.data)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(len(kept.data), int(last or len(kept.data)) + 1)
        if begin >= len(kept.data):
            self._error(416, "InvalidRange")
            return
        facts["Content-Range"] = f"bytes {begin}-{end - 1}/{len(kept.data)}"
        self._answer(206, facts, kept.data[begin:end])

    def _error(self, code: int, name: str) -> None:
        self._answer(
            code,
            {"Content-Type": "application/xml"},
            f"<Error><Code>{name}</Code><Message>{name}</Message></Error>".encode(),
        )

    def _xml(self, text: str) -> None:
        self._answer(200, {"Content-Type": "application/xml"}, text.encode())

    def _answer(self, code: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if code == 206 and self.store.take("torn"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.wfile.write(body)
        with self.store.lock:
            self.store.bytes_sent += len(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self) -> None:
        # HTTPServer's would ask for the name of the address, which a cluster's network has not.
        TCPServer.server_bind(self)

    def handle_error(self, *_: object) -> None:
        pass  # clients break connections on purpose


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[ObjectStore]:
    """Serve a bucket named `bucket` for the time of the block, in this thread's network."""
    store = ObjectStore()
    server = _Server((host, 0), type("Handler", (_Handler,), {"store": store}))
    store.address = f"http://{host}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def reached(store: ObjectStore) -> Iterator[None]:
    """Let this process's clients find the server."""
    from elasticdl.storage.store import forget_connections

    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment().items():
            patch.setenv(name, value)
        forget_connections()
        try:
            yield
        finally:
            forget_connections()
