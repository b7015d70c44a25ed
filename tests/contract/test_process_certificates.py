"""Which processes the master gives a certificate."""

from __future__ import annotations

import pytest

from elasticdl.cluster.base import ProcessName
from elasticdl.master.gateway.servicer import Welcome
from elasticdl.tls.authority import Authority, KeyPair

pytestmark = pytest.mark.contract

KEY = KeyPair.new().public
PS, WORKER = ProcessName.parse("ps-0"), ProcessName.parse("worker-0")


def welcome(*, workers_serve: bool) -> Welcome:
    authority = Authority.new("job")
    return Welcome("token", 1, str, str, authority=authority, workers_serve=lambda: workers_serve)


def test_workers_get_one_only_where_they_have_copies_of_the_journal() -> None:
    assert welcome(workers_serve=True).certificate(WORKER, KEY)
    assert welcome(workers_serve=False).certificate(PS, KEY)
    assert not welcome(workers_serve=False).certificate(WORKER, b"")
    with pytest.raises(ValueError, match="worker-0 requested a certificate"):
        welcome(workers_serve=False).certificate(WORKER, KEY)
