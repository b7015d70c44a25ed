"""Make pyarrow's file system for a root: credentials come from the environment only."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from elasticdl.addresses import SCHEMES
from elasticdl.errors import UserError
from elasticdl.storage.address import Address
from elasticdl.storage.attempts import Limits, attempt, reason

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_CONNECT_S = 5.0
_GOOGLE_RETRY_S = 10
# An object below 5 MB takes one request to write in place of three. The stubs lack it.
_ONE_REQUEST: dict[str, Any] = {"allow_delayed_open": True}
_SDK_ATTEMPTS = 2
"""`attempt` repeats with longer pauses, and for longer."""


def connected(root: Address, limits: Limits) -> tuple[FileSystem, str]:
    """The file system, and what its paths have in front of a key.

    Raises UserError, or TransientError after the time limit.
    """
    scheme = SCHEMES.get(root.scheme)
    if scheme is None:
        return attempt(str(root), "connect", lambda: _of_fsspec(root), limits)
    if scheme.system == "s3":
        return attempt(str(root), "connect", lambda: _s3(root), limits), root.host
    return attempt(str(root), "connect", lambda: _of_pyarrow(root, scheme.system), limits)


def _s3(root: Address) -> FileSystem:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    url = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    if url.username or url.password:
        raise UserError(
            "AWS_ENDPOINT_URL has credentials in it", hint="remove them from the address"
        )
    region = named or ("us-east-1" if endpoint else resolve_s3_region(root.host))
    return S3FileSystem(
        region=region,
        scheme="http" if url.scheme == "http" else "https",
        endpoint_override=url.netloc or None,
        connect_timeout=_CONNECT_S,
        # Checking a key's parents at each write would cost a request per write.
        check_directory_existence_before_creation=False,
        **_ONE_REQUEST,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_SDK_ATTEMPTS),
    )


def _of_pyarrow(root: Address, scheme: str) -> tuple[FileSystem, str]:
    from pyarrow.fs import FileSystem

    try:
        # Google's client would repeat by itself for 15 minutes.
        options = f"?retry_limit_seconds={_GOOGLE_RETRY_S}" if scheme == "gs" else ""
        system, path = FileSystem.from_uri(f"{scheme}://{root.host}/{options}")
    except (NotImplementedError, ImportError) as error:
        raise UserError(
            f"this pyarrow cannot open {root.scheme}:// addresses: {error}",
            hint="install pyarrow from PyPI",
        ) from error
    except OSError as error:
        if root.scheme == "hdfs" and "libhdfs" in str(error).lower():
            raise UserError(
                f"{root.root}: Hadoop's client library is missing: {reason(error)}",
                hint="install Hadoop's client, and set HADOOP_HOME, JAVA_HOME and CLASSPATH",
            ) from error
        raise
    return system, path.strip("/")


def _of_fsspec(root: Address) -> tuple[FileSystem, str]:
    if importlib.util.find_spec("fsspec") is None:
        raise UserError(
            f"{root.scheme}:// addresses need fsspec, which is not installed",
            hint="pip install 'elasticdl[fsspec]'",
        )
    import fsspec
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    try:
        system, path = fsspec.url_to_fs(f"{root.root}/")
    except ValueError as error:
        raise UserError(
            f"{root.scheme}:// addresses are unknown: {error}",
            hint="use s3://, gs://, abfs://, hdfs://, or a path",
        ) from error
    except ImportError as error:
        raise UserError(
            f"{root.scheme}:// addresses need a package that is not installed: {error}",
            hint="install the package that the message names, on each machine of the job",
        ) from error
    # pyarrow's stubs say that it is abstract.
    handler: Any = FSSpecHandler
    return PyFileSystem(handler(system)), path.strip("/") if root.host else ""
