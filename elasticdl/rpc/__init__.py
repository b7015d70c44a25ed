"""The wire: control messages over gRPC, tensors over the bulk plane, and the clients of both."""
