"""Numbers from the wire that the master counts with."""

from __future__ import annotations

import pytest

from elasticdl.rpc.wire_counts import count_of

pytestmark = pytest.mark.core


@pytest.mark.parametrize("value", [-1, 2**62 + 1, 2**63 - 1])
def test_a_number_that_no_job_can_have_is_refused(value: int) -> None:
    """The master added 2 to the highest number of the wire, and could not send the sum."""
    with pytest.raises(ValueError, match=f"revocation is {value}, expected 0 to"):
        count_of(value, "revocation")


@pytest.mark.parametrize("value", [0, 1, 2**62])
def test_other_numbers_are_taken(value: int) -> None:
    assert count_of(value, "revocation") == value
