"""What tensors come in: the one word for Keras' nested inputs and outputs."""

from __future__ import annotations

from typing import Any, TypeAlias

Structure: TypeAlias = Any
"""One tensor, or dicts, tuples and lists of them, nested."""
