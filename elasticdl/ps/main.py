"""`python -m elasticdl.ps.main`: one parameter server process.

It blocks signals before it imports the rest. NumPy and gRPC start threads of their own, and a
signal that reaches a thread that does not block it ends the process in the middle of its work.
"""

from __future__ import annotations

from elasticdl.cluster.local.parent_death import die_with_parent
from elasticdl.own_process import hold_signals, log_to_stderr, raise_file_limit
from elasticdl.paused_collection import paused_collection
from elasticdl.ps.os_process import fail, leave, leave_on_signal


def main() -> None:
    """Run the server process."""
    die_with_parent()
    # Before anything that starts threads: they inherit the mask.
    hold_signals()
    raise_file_limit()
    log_to_stderr()
    leave_on_signal()
    try:
        with paused_collection():
            from elasticdl.cluster.role_environment import RoleEnvironment
            from elasticdl.ps.lifecycle import serve

        leave(serve(RoleEnvironment.read()))
    except Exception as error:  # noqa: BLE001 - the top of the process: it ends visibly
        fail(error)


if __name__ == "__main__":
    main()
