"""The product's master of a pod on a simulated node: `python -m experiments.master_process ADDRESS
FOLDER`.

Such a pod has no network and no files. So the master listens at a loopback address of its own, and
its files are below a folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

from elasticdl.master.main import main
from elasticdl.master.platform import kubernetes as platform

if __name__ == "__main__":
    address, folder = sys.argv[1], Path(sys.argv[2])
    platform._ANY = address
    vars(platform)["SECRET_FOLDER"] = str(folder / "secret")
    platform.TERMINATION_MESSAGE = str(folder / "outcome")
    sys.exit(main())
