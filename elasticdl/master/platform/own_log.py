"""Keeps the log of a master in a pod: the node's log goes with the pod."""

from __future__ import annotations

import logging
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import final

from elasticdl.cluster.kubernetes.labels import MASTER
from elasticdl.cluster.logs.log_files import log_path
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.private_file import make_private, private

_LOG = logging.getLogger(__name__)
_OWN_LOG_BYTES = 8 << 20
_LOG_FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


@final
class _OwnLog(RotatingFileHandler):
    """A rotating log that only its owner can read."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=private)


def keep_own_log(directory: JobDirectory, pod_name: str) -> None:
    """Copy this master's log to the job's directory from now on."""
    try:
        make_private(directory.logs)
        kept = _OwnLog(
            log_path(directory.logs, MASTER),
            maxBytes=_OWN_LOG_BYTES,
            backupCount=1,
            encoding="utf-8",
        )
    except OSError as error:
        _LOG.warning("cannot keep the master's log in %s: %s", directory.logs, error)
        return
    kept.setFormatter(logging.Formatter(_LOG_FORMAT))
    logging.getLogger().addHandler(kept)
    _LOG.info("=== the master in pod %s ===", pod_name)
