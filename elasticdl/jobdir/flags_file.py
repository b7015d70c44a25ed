"""Write job.yaml: the job's flags, for people and for `-f`."""

from __future__ import annotations

from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import JobDirectory, write_atomically
from elasticdl.yaml_documents import as_yaml


def write_flags(spec: JobSpec, directory: JobDirectory) -> None:
    """Write the flags that differ from their defaults. Raises OSError."""
    flags = spec.replace(resume=False).flags(defaults=False)
    write_atomically(directory.yaml, f"# elasticdl {spec.action} -f job.yaml\n{as_yaml(flags)}")
