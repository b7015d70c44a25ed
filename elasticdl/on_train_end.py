"""The last thing that a worker does in a job that is done: `on_train_end` of its callbacks.

A worker and its master keep to the same limit.
"""

from __future__ import annotations

ON_TRAIN_END = "on_train_end"
"""What a worker reports as its activity meanwhile."""
ON_TRAIN_END_S = 600.0
"""Time limit in seconds."""
