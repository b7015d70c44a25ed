"""A listener of reports for tests in which no keeper asks for leases."""

from __future__ import annotations

from typing import NoReturn

from elasticdl.rpc.conversation import Report


class ReportsOnly:
    """Takes no request for a lease."""

    def report_and_request(self, report: Report) -> NoReturn:
        raise AssertionError(f"nobody asks for a lease, but {report} carries a request")
