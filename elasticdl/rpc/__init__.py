"""The wire: control messages over gRPC, tensors over the bulk plane, and the clients of both."""

import os

# gRPC's own log has a line for each failed TLS handshake, so strangers could fill the job's volume.
# What goes wrong with a call is in its error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
