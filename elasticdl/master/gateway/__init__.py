"""What a job's processes talk to: gRPC servicer, sessions, lease polls, order streams."""
