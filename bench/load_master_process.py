"""The product's master on one machine, without its limit on workers that start at the same time.

A worker of the product uses a core for seconds when it starts. A client does not, and on a cluster
there is no such limit.
"""

from __future__ import annotations

import sys

from elasticdl.master.core.job_context import Limits
from elasticdl.master.main import main
from elasticdl.master.platform.local import LocalPlatform

if __name__ == "__main__":
    LocalPlatform.limits = property(lambda platform: Limits())  # type: ignore[assignment,method-assign]
    sys.exit(main())
