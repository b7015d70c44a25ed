"""`python -m elasticdl.worker.main`: one worker process.

Signals are blocked before the rest is imported: NumPy starts threads of its own, and a signal that meets one thread that
does not block it ends the process instead of draining it.
"""

from __future__ import annotations

import logging
import sys

from elasticdl.cluster.leash import die_with_parent
from elasticdl.worker.ending import Ending
from elasticdl.worker.process import drain_on_signal, end_by_force, hold_signals, leave


def main() -> None:
    """The process."""
    die_with_parent()
    hold_signals()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    ending = Ending()
    drain_on_signal(ending)
    end_by_force(ending)
    from elasticdl.worker.working import log_error, run

    try:
        run(ending)
    except Exception as error:  # noqa: BLE001 - the top of the process: it ends visibly
        if ending.fail(error):
            log_error(error)
    leave(ending)


if __name__ == "__main__":
    main()
