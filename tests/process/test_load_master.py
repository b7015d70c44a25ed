"""A real master with a few hundred clients over real sockets: the benchmark, small."""

from __future__ import annotations

import asyncio

import pytest

from bench.load_master import measured

pytestmark = pytest.mark.process

CLIENTS = 200
NOTICE_S = 20.0
"""Ten seconds after a connection broke, and what a busy machine adds."""


def test_a_master_serves_hundreds_of_workers_notices_a_killed_one_and_is_taken_over() -> None:
    result = asyncio.run(measured(CLIENTS, 3.0))
    load = result.load
    assert (load.clients, load.stranded) == (CLIENTS, 0)
    assert load.lease_p50_ms is not None and load.lease_p99_ms is not None
    assert load.noticed_s is not None and load.noticed_s < NOTICE_S
    assert load.rss_mib < 250
    # All but the killed client, or all with its successor.
    assert result.taken_over in (CLIENTS - 1, CLIENTS)
