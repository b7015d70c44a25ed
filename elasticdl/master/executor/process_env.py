"""The environment and resources of a new worker or parameter server."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from elasticdl.cluster.base import ProcessName, ProcessSpec, Role
from elasticdl.cluster.role_environment import TOKEN, RoleEnvironment
from elasticdl.formatting import STACKS_VARIABLE
from elasticdl.job import JobSpec
from elasticdl.master import preflight
from elasticdl.tokens import process_token

COMMANDS = {
    Role.WORKER: (sys.executable, "-m", "elasticdl.worker.main"),
    Role.PS: (sys.executable, "-m", "elasticdl.ps.main"),
}

_FAST_ENDS = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "PYTHONMALLOC": "malloc"}
"""Large memory pages, so that a killed process's connections close sooner.

The kernel frees a killed process's memory before it closes its connections, by which the ring
notices the end. With TensorFlow that takes 60 ms, and a third of that with large pages.
"""


@final
@dataclass(frozen=True, slots=True)
class ProcessEnv:
    """Makes process specs.

    `address` is the master's, `token` the job's. `cores` is the number of cores for the job; None
    leaves each process its own. `bind_host` is the listen address of servers; '' means this machine
    only. `authority` is the certificate that processes trust, as PEM; None: no TLS.
    """

    spec: JobSpec
    directory: str
    address: str
    token: str = field(repr=False)
    cores: float | None
    bind_host: str = ""
    authority: str | None = None

    def __call__(self, name: ProcessName) -> ProcessSpec:
        """Return the spec of one process. The user's environment cannot override our variables."""
        member = self.spec.trains_on_ring and name.role is Role.WORKER
        return ProcessSpec(
            name=name,
            command=COMMANDS[name.role],
            env={
                **(_FAST_ENDS if member else {}),
                **self.spec.cluster.envs,
                **self._role(name),
            },
            secrets={TOKEN: process_token(self.token, str(name))},
            cores=self._share(name.role),
        )

    def check(self) -> ProcessSpec:
        """Return the spec of the check of model and data.

        It has a worker's variables, so that a fork of the workers' template can run it, but not
        those by which user code sees that it runs in a worker, nor a token.
        """
        name = ProcessName(Role.WORKER, 0)
        worker, role = self(name), self._role(name)
        env = {key: value for key, value in worker.env.items() if key not in role}
        env[STACKS_VARIABLE] = str(preflight.LIMITS.stacks_s)
        return replace(worker, command=preflight.COMMAND, env=env, secrets={})

    def _role(self, name: ProcessName) -> dict[str, str]:
        return RoleEnvironment(
            self.address,
            "",
            name,
            Path(self.directory),
            self.bind_host,
            self.authority,
        ).variables()

    def _share(self, role: Role) -> float:
        """Return a fair share of the cores among processes of the same role.

        Roles do not share: they take turns, since workers wait for servers.
        """
        if self.cores is None:
            return 1.0
        cluster = self.spec.cluster
        range_ = cluster.num_workers if role is Role.WORKER else cluster.num_ps_pods
        return max(1.0, self.cores / range_.high)
