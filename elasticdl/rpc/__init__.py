"""The wire, and its clients.

Calls to a master travel in frames of our own (ADR 38), and tensors over the bulk plane. gRPC serves
the control of parameter servers and the copies of the journal.
"""

import os

# gRPC's own log has a line for each failed TLS handshake, so strangers could fill the job's volume.
# What goes wrong with a call is in its error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# A child of a master closes all files, and gRPC's handler of a fork aborts without its own. The
# child uses no gRPC: master/journal/image_process.py.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
