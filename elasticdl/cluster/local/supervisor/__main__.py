"""`python -m elasticdl.cluster.local.supervisor IMPORTS COMMAND...`: supervise one local job.

IMPORTS are the modules that all workers import, with commas between them, or ''. COMMAND starts a
master. ELASTICDL_JOB_DIR names the job's directory. SIGTERM stops the job gracefully, a second one
ends it, and SIGQUIT kills all of its processes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from elasticdl.cluster.local.parent_death import die_with_parent
from elasticdl.cluster.local.supervisor.supervisor import Supervisor
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.own_process import log_to_stderr, raise_file_limit


def main() -> int:
    """Run the process; return the job's exit code."""
    die_with_parent()
    raise_file_limit()
    log_to_stderr()
    imports, *command = sys.argv[1:]
    directory = JobDirectory(Path(os.environ["ELASTICDL_JOB_DIR"]))
    return asyncio.run(_supervise(directory, command, tuple(filter(None, imports.split(",")))))


async def _supervise(directory: JobDirectory, command: list[str], imports: tuple[str, ...]) -> int:
    return await Supervisor(directory, command, imports).run()


if __name__ == "__main__":
    sys.exit(main())
