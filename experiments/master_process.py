"""The product's master of a pod on a simulated node: `python -m experiments.master_process ADDRESS
FOLDER`.

Such a pod has no network, no files and no log. So the master listens at a loopback address of its
own, its files are below a folder, and it copies no logs: an API server answers each such request
with an error after it has tried to reach the node.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from elasticdl.cluster.kubernetes.cluster import ClusterOptions
from elasticdl.master.main import main
from elasticdl.master.platform import kubernetes as platform

if __name__ == "__main__":
    address, folder = sys.argv[1], Path(sys.argv[2])
    platform._ANY = address
    vars(platform)["SECRET_FOLDER"] = str(folder / "secret")
    platform.TERMINATION_MESSAGE = str(folder / "outcome")
    vars(platform)["ClusterOptions"] = lambda **given: replace(ClusterOptions(**given), logs=None)
    sys.exit(main())
