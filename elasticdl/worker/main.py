"""`python -m elasticdl.worker.main`: one worker process.

It blocks signals before it imports the rest. NumPy starts threads of its own, and a signal that
reaches a thread that does not block it ends the process instead of draining it.
"""

from __future__ import annotations

import logging

from elasticdl.cluster.local.parent_death import die_with_parent
from elasticdl.cluster.role_environment import grace_s
from elasticdl.own_process import hold_signals, log_error, log_to_stderr
from elasticdl.worker.process.os_process import drain_on_signal, end_by_force, leave
from elasticdl.worker.process.shutdown import Shutdown


def main() -> None:
    """Run the worker process."""
    die_with_parent()
    hold_signals()
    log_to_stderr()
    shutdown = Shutdown()
    drain_on_signal(shutdown, grace_s())
    end_by_force(shutdown)
    from elasticdl.worker.lifecycle import run

    try:
        run(shutdown)
    except Exception as error:  # noqa: BLE001 - the top of the process: it ends visibly
        if shutdown.fail(error):
            log_error(logging.getLogger("elasticdl.worker.lifecycle"), error)
    leave(shutdown)


if __name__ == "__main__":
    main()
