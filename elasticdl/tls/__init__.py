"""TLS within a job: its certificate authority, and both ends of a connection.

A process is known by a name that outlives its address: `master`, or `ps-1`.
"""

MASTER_NAME = "master"
"""The name in the certificate of a job's master."""
