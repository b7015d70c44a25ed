"""Which servers share the parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class ServerMap:
    """The servers with the indices from `first` on, `number` of them.

    Row `id` is at server `first + id mod number`. Another number of servers is another map, with
    indices that no earlier one had, so that servers of both may run at once.
    """

    first: int
    number: int

    @property
    def indices(self) -> range:
        """The indices of the servers, in order."""
        return range(self.first, self.first + self.number)
