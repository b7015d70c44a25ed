"""The master's interface for a job's processes: gRPC service, sessions, polls and orders."""
