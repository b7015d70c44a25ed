"""A pseudo-random order of many numbers that takes neither time to make nor memory to keep.

A Feistel network of four rounds permutes the numbers below a power of four (Luby and Rackoff, "How
to construct pseudorandom permutations", 1988). Results beyond the size are permuted again until one
fits ("cycle walking": Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import final, overload

_ROUNDS = 4
_MIX = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


@final
class Permutation(Sequence[int]):
    """The numbers 0 … size-1 in an order that depends on `seed` only. Immutable."""

    def __init__(self, size: int, seed: str) -> None:
        self._size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        digest = hashlib.blake2b(seed.encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = tuple(
            int.from_bytes(digest[8 * round_index : 8 * round_index + 8], "little")
            for round_index in range(_ROUNDS)
        )

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        if isinstance(place, slice):
            return [self[index] for index in range(*place.indices(self._size))]
        if not -self._size <= place < self._size:
            raise IndexError(f"{place} of {self._size}")
        number = self._permuted(place % self._size)
        while number >= self._size:
            number = self._permuted(number)
        return number

    def _permuted(self, number: int) -> int:
        half = self._half
        left, right = number >> half, number & ((1 << half) - 1)
        for key in self._keys:
            # The upper bits of the product depend on all bits of `right`.
            mixed = ((right ^ key) * _MIX & _WORD) >> (64 - half)
            left, right = right, left ^ mixed
        return left << half | right
